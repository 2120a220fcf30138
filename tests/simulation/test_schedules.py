"""Orders of work: complete, in a possible order, and as long as squared paper says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel.axes import SCHEDULES as CODES
from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.pipeline import Passes, zero_bubble_seconds
from layoutopt.errors import InternalError
from layoutopt.simulation.engine import Graph, Label
from layoutopt.simulation.schedules import Place, Unit, chunks_of, orders, places, splits_backward

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-2p", "zbv")
SIZES = [(1, 3), (2, 4), (3, 3), (4, 4), (4, 12), (5, 10)]
WITHIN = {"zb-h1": 0.03, "zb-2p": 0.12, "zbv": 0.08}
"""Zero bubbles: the closed form against the schedules, with passes that are not equally long."""
LABEL = Label(0, "compute", "compute", "")


def layout(schedule: str, p: int, m: int, v: int = 2) -> Layout:
    chunks = v if schedule == "interleaved" else 1
    name: Any = schedule
    return Layout(pp=p, microbatches=m, vpp=chunks, schedule=name)


def drawn(one: Layout, seconds: dict[str, float]) -> tuple[float, list[int]]:
    """Length of the schedule and most units held by each stage; messages take no time."""
    spots = places(one)
    virtual = {place: n for n, place in enumerate(spots)}
    graph, ends, most = Graph(), "W" if splits_backward(one) else "B", []
    for stage, order in enumerate(orders(one)):
        held, highest = 0, 0
        for unit in order:
            at = virtual[Place(stage, unit.chunk)]
            needs: list[tuple[str, int, int]] = []
            if unit.kind == "F" and at:
                needs = [("F", unit.microbatch, at - 1)]
            if unit.kind in "BI" and at < len(spots) - 1:
                needs = [("G", unit.microbatch, at + 1)]
            key = ({"B": "G", "I": "G"}.get(unit.kind, unit.kind), unit.microbatch, at)
            graph.add(stage, seconds[unit.kind], LABEL, needs, key)
            held += (unit.kind == "F") - (unit.kind == ends)
            highest = max(highest, held)
        most.append(highest)
    return graph.run().finish, most


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_every_unit_is_done_once_and_after_what_it_needs(schedule: str, p: int, m: int) -> None:
    m = m * p if schedule == "interleaved" else m
    one = layout(schedule, p, m)
    kinds = "FIW" if splits_backward(one) else "FB"
    expected = {Unit(k, i, c) for k in kinds for i in range(m) for c in range(chunks_of(one))}
    for order in orders(one):
        assert len(order) == len(expected)
        assert set(order) == expected
        seen: set[Unit] = set()
        for unit in order:
            before = {"F": "", "B": "F", "I": "F", "W": "I"}[unit.kind]
            assert not before or unit._replace(kind=before) in seen
            seen.add(unit)
    drawn(one, {"F": 1, "B": 2, "I": 1, "W": 1})  # raises where stages wait in a circle


def test_1f1b_of_two_stages_is_written_out() -> None:
    first, last = orders(layout("1f1b", 2, 3))
    assert ["".join(map(str, unit[:2])) for unit in first] == ["F0", "F1", "B0", "F2", "B1", "B2"]
    assert ["".join(map(str, unit[:2])) for unit in last] == ["F0", "B0", "F1", "B1", "F2", "B2"]


def test_megatrons_interleaved_order_is_written_out() -> None:
    """p 2, v 2, m 2, first stage: 2 (2 - 0 - 1) + (2 - 1) 2 = 4 forwards before a backward."""
    first, last = orders(layout("interleaved", 2, 2))
    text = ["".join(map(str, unit)) for unit in first]
    assert text == ["F00", "F10", "F01", "F11", "B01", "B11", "B00", "B10"]
    text = ["".join(map(str, unit)) for unit in last]
    assert text == ["F00", "F10", "F01", "B01", "F11", "B11", "B00", "B10"]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_fill_and_drain_of_four_stages(schedule: str) -> None:
    """12 microbatches of 1 + 2 and three stages' 1 + 2: 45."""
    assert drawn(layout(schedule, 4, 12), {"F": 1, "B": 2})[0] == 45


def test_interleaving_halves_the_fill() -> None:
    """Chunks of 1 + 2: 24 units of 3 are 72, the fill is 3 chunks' worth, 9."""
    assert drawn(layout("interleaved", 4, 12), {"F": 1, "B": 2})[0] == 72 + 9


UNITS = [(1, 1, 1), (3, 4, 2), (2, 3, 2)]


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 1), (4, 3), (4, 8), (8, 5), (8, 24)])
@pytest.mark.parametrize(("f", "i", "w"), UNITS)
def test_zero_bubble_h1_waits_as_its_paper_says(p: int, m: int, f: int, i: int, w: int) -> None:
    """(p - 1) (F + I - W), Qi et al. 2023, table 1; with fewer microbatches than stages there are
    only m - 1 weight gradients to fill with."""
    length, held = drawn(layout("zb-h1", p, m), {"F": f, "I": i, "W": w})
    assert length == m * (f + i + w) + (p - 1) * (f + i) - min(p - 1, m - 1) * w
    assert held == [min(p, m)] * p


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (6, 16)])
@pytest.mark.parametrize(("f", "i", "w"), UNITS)
def test_zero_bubble_h2_starts_one_stage_after_the_other(
    p: int, m: int, f: int, i: int, w: int
) -> None:
    """(p - 1) F: no stage waits, they start one forward pass apart. Each holds 2p - 1."""
    length, held = drawn(layout("zb-2p", p, m), {"F": f, "I": i, "W": w})
    assert length == m * (f + i + w) + (p - 1) * f
    assert held == [min(2 * p - 1, m)] * p


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 7), (4, 12), (8, 24)])
@pytest.mark.parametrize(("f", "i", "w"), UNITS)
def test_zero_bubble_v_waits_for_one_input_gradient_a_stage(
    p: int, m: int, f: int, i: int, w: int
) -> None:
    """Two chunks of three units, without a pause where units are equally long; the stages start
    one after the other, and end (p - 1) I apart."""
    length, _ = drawn(layout("zbv", p, m), {"F": f, "I": i, "W": w})
    assert length == 2 * m * (f + i + w) + (p - 1) * i


def test_what_is_held() -> None:
    """1F1B: p - s. GPipe: all. Interleaved: 2 (p - s - 1) + (v - 1) p + 1 chunks. H1: p until
    weight gradients are done. V: 2p chunks everywhere, as much as 1F1B's first stage."""
    even = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
    assert drawn(layout("1f1b", 4, 12), even)[1] == [4, 3, 2, 1]
    assert drawn(layout("gpipe", 4, 12), even)[1] == [12] * 4
    assert drawn(layout("interleaved", 4, 12), even)[1] == [11, 9, 7, 5]
    assert drawn(layout("zb-h1", 4, 12), even)[1] == [4, 4, 4, 4]
    assert drawn(layout("zbv", 4, 12), even)[1] == [8, 8, 8, 8]


def test_a_v_comes_back_to_the_first_stage() -> None:
    assert [tuple(place) for place in places(layout("zbv", 2, 4))] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (0, 1),
    ]


def test_a_schedule_that_hangs_is_a_fault_of_ours() -> None:
    graph = Graph()
    graph.add("a", 1.0, LABEL, ["second"], "first")
    graph.add("b", 1.0, LABEL, ["first"], "second")
    with pytest.raises(InternalError, match="hangs"):
        graph.run()


def test_a_lane_does_one_thing_at_a_time() -> None:
    """Two tasks of 1 on lane a, one on lane b that needs the first: b ends at 3, not at 4."""
    graph = Graph()
    first = graph.add("a", 1.0, LABEL)
    graph.add("a", 1.0, LABEL)
    graph.add("b", 2.0, LABEL, [first])
    timeline = graph.run()
    assert timeline.start == [0, 1, 1]
    assert timeline.finish == 3


@pytest.mark.parametrize("schedule", WITHIN)
@given(
    st.integers(2, 8), st.integers(1, 24), st.integers(4, 8), st.integers(0, 12), st.integers(1, 8)
)
def test_zero_bubbles_take_as_long_as_the_closed_form_says(
    schedule: str, p: int, m: int, forward: int, more: int, weights: int
) -> None:
    """Unequal passes. The input gradient, with recompute, is no shorter than the forward pass."""
    one, inputs = layout(schedule, p, m), forward + more
    seconds, _ = drawn(one, {"F": forward, "I": inputs, "W": weights})
    passes = [chunks_of(one) * float(each) for each in (forward, inputs, weights)]
    mean = Passes(*(np.array([each]) for each in passes))
    waits = zero_bubble_seconds(mean, ints(CODES[schedule]), ints(p), ints(m))
    assert m * sum(passes) + float(waits[0]) == pytest.approx(seconds, rel=WITHIN[schedule])
