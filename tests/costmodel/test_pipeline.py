"""The pipeline against schedules that are laid out unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel.axes import GPIPE, ONE_F_ONE_B, V_SHAPE, ZERO_BUBBLE, ZERO_BUBBLE_2P
from layoutopt.costmodel.pipeline import (
    Passes,
    Work,
    bubble_fraction,
    bubble_of_ideal,
    late_messages,
    layers_in_flight,
    one_f_one_b_seconds,
    overlap_window,
    pipeline_seconds,
    recomputed_in_flight,
    zero_bubble_seconds,
)
from layoutopt.costmodel.stages import given_stages
from tests.costmodel.cases import one

Unit = tuple[str, int, int]
"""("F" or "B", microbatch, chunk)."""


def unit_order(p: int, m: int, v: int, stage: int) -> tuple[list[Unit], list[Unit]]:
    """Forward and backward units of a stage, in groups of p microbatches, chunk by chunk."""
    if v == 1:
        return [("F", i, 0) for i in range(m)], [("B", i, 0) for i in range(m)]
    groups = [range(start, start + p) for start in range(0, m, p)]
    forward = [("F", i, c) for group in groups for c in range(v) for i in group]
    backward = [("B", i, c) for group in groups for c in reversed(range(v)) for i in group]
    return forward, backward


def one_f_one_b(p: int, m: int, v: int, stage: int) -> list[Unit]:
    """Megatron-LM's order: warm-up, then one forward and one backward in turn, then the rest."""
    forward, backward = unit_order(p, m, v, stage)
    warm = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
    warm = min(warm, len(forward))
    if v > 1 and m == p:
        warm = len(forward)
    steady = [unit for pair in zip(forward[warm:], backward, strict=False) for unit in pair]
    return forward[:warm] + steady + backward[len(forward) - warm :]


def gpipe(p: int, m: int, v: int, stage: int) -> list[Unit]:
    """All forwards, then all backwards."""
    forward, backward = unit_order(p, m, v, stage)
    return forward + backward


@dataclass
class Drawn:
    """What the squared paper shows."""

    seconds: float
    most_units_held: list[int]


def draw(orders: list[list[Unit]], chunk_s: list[tuple[float, float]], v: int) -> Drawn:
    """Each stage does its units in order, each as soon as its input is there."""
    p = len(orders)
    ended: dict[tuple[str, int, int], float] = {}
    clock, at = [0.0] * p, [0] * p
    held, most = [0] * p, [0] * p
    while any(at[s] < len(orders[s]) for s in range(p)):
        moved = False
        for s in range(p):
            while at[s] < len(orders[s]):
                kind, i, c = orders[s][at[s]]
                virtual, last = c * p + s, p * v - 1
                if kind == "F":
                    needs = ("F", i, virtual - 1) if virtual else None
                else:
                    needs = ("B", i, virtual + 1) if virtual < last else ("F", i, virtual)
                if needs is not None and needs not in ended:
                    break
                start = max(clock[s], ended[needs] if needs else 0.0)
                clock[s] = ended[(kind, i, virtual)] = start + chunk_s[s][kind == "B"]
                held[s] += 1 if kind == "F" else -1
                most[s] = max(most[s], held[s])
                at[s] += 1
                moved = True
        assert moved, "the schedule hangs"
    return Drawn(max(clock), most)


def v_order(p: int, m: int, stage: int) -> list[Unit]:
    """ZB-V's order on a stage: chunk 0 runs down the stages, chunk 1 back up (Qi et al. 2023,
    section 6; torch.distributed.pipelining.schedules.ScheduleZBVZeroBubble). "B" is the input
    gradient, "W" the weight gradient; drawn for 2p - 1 microbatches or more, the surplus left out.
    """
    many, done = max(2 * p - 1, m), dict.fromkeys(("F0", "F1", "B0", "B1", "W0", "W1"), 0)
    order: list[Unit] = []

    def add(*units: str) -> None:
        for unit in units:
            order.append((unit[0], done[unit], int(unit[1])))
            done[unit] += 1

    add(*["F0"] * (2 * (p - stage) - 1))
    add(*["F1", "F0"] * stage)
    add(*["F1", "B1", "W1"] * (p - stage))
    while done["F1"] < done["F0"] or done["F0"] < many:
        add(*["F0"] * (done["F0"] < many), "B0", "W0", "F1", "B1", "W1")
    add(*["B0", "B1"] * stage)
    add(*["B0", "W0"] * (p - stage))
    add(*["W1"] * (done["B1"] - done["W1"]), *["W0"] * (done["B0"] - done["W0"]))
    return [unit for unit in order if unit[1] < m]


def draw_v(p: int, m: int, chunk_layers: list[tuple[int, int]]) -> Drawn:
    """Each unit of a chunk takes 1; what it holds is its layers, until their weight gradient."""
    orders = [v_order(p, m, stage) for stage in range(p)]
    ended: dict[tuple[str, int, int], float] = {}
    clock, held, most = [0.0] * p, [0] * p, [0] * p
    while any(orders):
        moved = False
        for s, order in enumerate(orders):
            while order:
                kind, i, c = order[0]
                place = 2 * p - 1 - s if c else s
                needs = {
                    "F": ("F", i, place - 1) if place else None,
                    "B": ("B", i, place + 1) if place < 2 * p - 1 else ("F", i, place),
                    "W": ("B", i, place),
                }[kind]
                if needs is not None and needs not in ended:
                    break
                clock[s] = max(clock[s], ended[needs] if needs else 0.0) + 1
                ended[(kind, i, place)] = clock[s]
                held[s] += {"F": 1, "B": 0, "W": -1}[kind] * chunk_layers[s][c]
                most[s] = max(most[s], held[s])
                order.pop(0)
                moved = True
        assert moved, "the schedule hangs"
    return Drawn(max(clock), most)


CASES = [(1, 4, 1), (2, 2, 1), (4, 2, 1), (4, 4, 1), (4, 12, 1), (4, 8, 2), (4, 4, 3), (3, 9, 4)]


@pytest.mark.parametrize(("p", "m", "v"), CASES)
def test_time_is_that_of_the_drawn_schedule(p: int, m: int, v: int) -> None:
    """Forward 1, backward 2 a chunk; every stage alike: m t + (p - 1) t / v."""
    orders = [one_f_one_b(p, m, v, stage) for stage in range(p)]
    drawn = draw(orders, [(1.0, 2.0)] * p, v)
    stage = np.array([3.0 * v])
    told = pipeline_seconds(stage, p * stage, one(p), one(v), one(m))
    assert float(told[0]) == pytest.approx(drawn.seconds)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 6), (5, 2)])
def test_gpipe_takes_as_long_as_1f1b(p: int, m: int) -> None:
    drawn = draw([gpipe(p, m, 1, stage) for stage in range(p)], [(1.0, 2.0)] * p, 1)
    told = pipeline_seconds(np.array([3.0]), np.array([3.0 * p]), one(p), one(1), one(m))
    assert float(told[0]) == pytest.approx(drawn.seconds)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=5), st.integers(1, 8))
def test_unequal_stages_under_gpipe_take_exactly_as_long(stages: list[int], m: int) -> None:
    """(m - 1) times the slowest stage and once every stage, forward and backward alike."""
    p = len(stages)
    drawn = draw([gpipe(p, m, 1, s) for s in range(p)], [(t, 2.0 * t) for t in stages], 1)
    slowest, total = np.array([3.0 * max(stages)]), np.array([3.0 * sum(stages)])
    told = pipeline_seconds(slowest, total, one(p), one(1), one(m))
    assert float(told[0]) == pytest.approx(drawn.seconds)


def told_1f1b(stages: Sequence[float], m: int) -> float:
    """one_f_one_b_seconds of stages whose backward pass is twice the forward pass."""
    p, seconds = len(stages), np.array([[3.0 * t for t in stages]])
    work = Work(
        stage=seconds,
        forward=seconds / 3,
        before=np.cumsum(seconds, axis=-1) - seconds,
        place=np.arange(p)[None, :],
        everything=np.sum(seconds, axis=-1),
    )
    return float(one_f_one_b_seconds(work, one(p), one(m))[0])


@pytest.mark.parametrize(
    ("stages", "m", "slots"),
    [
        # Stage 0 does F1 F2 at once, 4; the other B1 at 4.. B2: no wait but for the last gradient:
        # 2 x 6, and max(0, 3 - 2, 6 - 6) for the first one.
        ((2, 1), 2, 13),
        # The slow one last: three before it, then 4 x 6.
        ((1, 2), 4, 27),
        # Stage 1 of 3 slow: 3 + 4 x 6, and 2 x 3 - 1 x 6 = 0 or 3 - 2 = 1 of waiting.
        ((1, 2, 1), 4, 28),
        # Equal ones: (4 + 2) x 3.
        ((1, 1, 1), 4, 18),
    ],
)
def test_unequal_stages_under_1f1b_by_hand(stages: tuple[int, ...], m: int, slots: int) -> None:
    drawn = draw(
        [one_f_one_b(len(stages), m, 1, s) for s in range(len(stages))],
        [(float(t), 2.0 * t) for t in stages],
        1,
    )
    assert told_1f1b(stages, m) == slots == drawn.seconds


@given(st.lists(st.integers(4, 9), min_size=2, max_size=6), st.integers(1, 24))
def test_unequal_stages_under_1f1b_take_as_long_as_drawn(stages: list[int], m: int) -> None:
    """Never less than the longest of the stated chains, which are all but 3% of the time."""
    p = len(stages)
    orders = [one_f_one_b(p, m, 1, s) for s in range(p)]
    drawn = draw(orders, [(float(t), 2.0 * t) for t in stages], 1).seconds
    told = told_1f1b(stages, m)
    assert told <= drawn * (1 + 1e-12)
    assert told == pytest.approx(drawn, rel=0.03)


def held_layers(layers: tuple[int, ...], m: int, v: int, schedule: int) -> list[int]:
    """layers_in_flight of every stage of one layout."""
    stages = given_stages(layers)
    flight = layers_in_flight(stages, one(len(layers)), one(v), one(m), one(schedule))
    return [int(value) for value in flight[0]]


@pytest.mark.parametrize(("p", "m", "v"), CASES)
def test_in_flight_is_what_the_drawn_schedule_holds(p: int, m: int, v: int) -> None:
    """With v layers a stage a chunk is one layer, so layers held are units held."""
    drawn = draw([one_f_one_b(p, m, v, s) for s in range(p)], [(1.0, 2.0)] * p, v)
    told = held_layers((v,) * p, m, v if p > 1 else 1, ONE_F_ONE_B)
    # Where a schedule has m == p Megatron warms up with everything; the formula's warm-up stops
    # earlier on later stages, never on the first, which holds most.
    assert told[0] == drawn.most_units_held[0]
    if m > p or v == 1:
        assert told == drawn.most_units_held


def test_four_stages_hold_four_three_two_one() -> None:
    """min(p - s, m), in layers of 10 a stage."""
    assert held_layers((10, 10, 10, 10), 12, 1, ONE_F_ONE_B) == [40, 30, 20, 10]
    assert held_layers((10, 10, 10, 10), 2, 1, ONE_F_ONE_B) == [20, 20, 20, 10]
    assert held_layers((10, 10, 10, 10), 12, 1, ZERO_BUBBLE) == [40, 40, 40, 40]


def test_gpipe_holds_every_microbatch_on_every_stage() -> None:
    assert held_layers((10, 10, 10, 10), 12, 1, GPIPE) == [120] * 4
    drawn = draw([gpipe(4, 12, 1, s) for s in range(4)], [(1.0, 2.0)] * 4, 1)
    assert drawn.most_units_held == [12] * 4


def test_interleaving_holds_one_plus_p_minus_1_over_pv_times_as_much() -> None:
    """p 8, v 4, 4 layers a stage: 8 x 4 x (1 + 7 / 32) = 39 layers (Korthikanti 2022, 4.2.3)."""
    plain, mixed = held_layers((4,) * 8, 64, 1, 0)[0], held_layers((4,) * 8, 64, 4, 0)[0]
    assert plain == 32
    assert mixed == plain * (1 + 7 / 32) == 39


def test_chunks_of_uneven_stages_round_up() -> None:
    """7 layers in 8 chunks, 16 stages: (15 x 2 + 7 x 16 + 1) = 143 chunks of 7/8: 125.1 layers."""
    assert held_layers((7, *[8] * 14, 7), 128, 8, 0)[0] == 126


def test_bubbles_of_sixteen_stages() -> None:
    """15 of 16 microbatches' time wait, 48.4% of the step; with 128: 15/128; by 4 chunks: /4."""
    assert bubble_of_ideal(16, 16) == 15 / 16
    assert bubble_fraction(16, 16) == 15 / 31
    assert bubble_of_ideal(16, 128) == pytest.approx(0.117, abs=5e-4)
    assert bubble_of_ideal(16, 128, chunks=4) == 15 / 512
    assert bubble_fraction(1, 16) == 0


def waits(schedule: int, p: int, m: int, passes: tuple[float, float, float]) -> float:
    """zero_bubble_seconds of stages that all take ``passes``: forward, inputs, weights."""
    mean = Passes(*(np.array([seconds]) for seconds in passes))
    return float(zero_bubble_seconds(mean, one(schedule), one(p), one(m))[0])


def test_zero_bubble_keeps_a_third_and_a_v_a_sixth() -> None:
    """Of 1F1B's (p - 1) 3 where the passes are equally long (Qi et al. 2023, table 1)."""
    codes = (ZERO_BUBBLE, V_SHAPE, ZERO_BUBBLE_2P)
    assert [waits(code, 4, 8, (1.0, 1.0, 1.0)) for code in codes] == [3, 1.5, 3]
    # Four stages, two microbatches: one weight gradient where three would fit: 6 - 1.
    assert waits(ZERO_BUBBLE, 4, 2, (1.0, 1.0, 1.0)) == 5
    # One stage has nothing to wait for.
    assert [waits(code, 1, 1, (1.0, 1.0, 1.0)) for code in codes] == [0, 0, 0]


def test_messages_of_the_fill_have_nothing_beside_them() -> None:
    """Four stages: 3 boundaries; two chunks more: 8 chunks, 7 of them sent on; a V down and up."""
    codes = np.array([ONE_F_ONE_B, ONE_F_ONE_B, GPIPE, V_SHAPE, ONE_F_ONE_B])
    pp, vpp = np.array([4, 4, 4, 4, 1]), np.array([1, 2, 1, 1, 1])
    assert late_messages(codes, pp, vpp).tolist() == [3, 7, 3, 6, 0]


def test_the_window_of_the_reduction_is_what_the_last_chunk_has_left() -> None:
    """Four stages of two chunks: the last chunk's gradients are there when its last pass begins to
    end, and 4 passes of the other chunk follow: (4 + 1) / 2 of all layers."""
    assert overlap_window(one(4), one(2)).tolist() == [2.5]
    assert overlap_window(np.array([4, 1]), np.array([1, 1])).tolist() == [1, 1]


V_CASES = [(2, 8), (2, 1), (3, 3), (4, 16), (4, 7), (4, 5), (4, 2), (8, 8), (8, 4), (5, 20)]


@pytest.mark.parametrize(("p", "m"), V_CASES)
def test_a_v_takes_as_long_as_the_drawn_schedule(p: int, m: int) -> None:
    """Forward, input gradient and weight gradient of a chunk 1 each: 6 a stage and microbatch."""
    drawn = draw_v(p, m, [(1, 1)] * p)
    told = 6 * m + waits(V_SHAPE, p, m, (2.0, 2.0, 2.0))
    assert told == pytest.approx(drawn.seconds)


@pytest.mark.parametrize(("p", "m"), V_CASES)
def test_in_flight_is_what_the_drawn_v_holds(p: int, m: int) -> None:
    """Stages of 2, 3, 4 ... and of 3, 4, 5 ... layers: the first chunk has the odd one."""
    for fewest in (2, 3):
        layers = tuple(fewest + stage for stage in range(p))
        drawn = draw_v(p, m, [(n - n // 2, n // 2) for n in layers])
        assert held_layers(layers, m, 1, V_SHAPE) == drawn.most_units_held


def test_layers_that_recompute_and_that_do_not_add_up() -> None:
    """pp 4, 10 layers each, 12 microbatches: 3 of stage 0's 10 in 4 microbatches; in a V 7 of the
    first chunk's 5 and 1 of the other's."""
    for code, again, kept in (
        (ONE_F_ONE_B, [12, 30, 0, 4], [28, 0, 20, 6]),
        (GPIPE, [36, 120, 0, 48], [84, 0, 120, 72]),
        (V_SHAPE, [21, 40, 0, 16], [19, 0, 40, 24]),
    ):
        stages = given_stages((10, 10, 10, 10), (3, 10, 0, 4), v_shape=code == V_SHAPE)
        how = (one(4), one(1), one(12), one(code))
        told = [values[0].tolist() for values in recomputed_in_flight(stages, *how)]
        assert told == [again, kept]
        both = np.array(again) + kept
        assert layers_in_flight(stages, *how)[0].tolist() == both.tolist()


def test_zb_2p_holds_twice_as_much_on_every_stage() -> None:
    """Up to 2p - 1 microbatches of each layer, on all stages alike; never more than there are."""
    stages = given_stages((2, 3, 3, 2))
    held = [
        layers_in_flight(stages, one(4), one(1), one(m), one(ZERO_BUBBLE_2P))[0].tolist()
        for m in (5, 24)
    ]
    assert held == [[10, 15, 15, 10], [14, 21, 21, 14]]
