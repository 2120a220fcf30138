"""The pipeline: bubble, order of work, microbatches in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import (
    GPIPE,
    V_SHAPE,
    ZERO_BUBBLE,
    ZERO_BUBBLE_2P,
    Array,
    Ints,
)
from layoutopt.costmodel.stages import Stages


def bubble_of_ideal(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Waiting time of a stage over its working time: (p - 1) / (v m).

    Forward and backward of a chunk are taken as equally long on every stage (A7).
    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; Huang et al. 2018 (GPipe).
    """
    return (stages - 1) / (chunks * microbatches)


def bubble_fraction(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Share of a step in which a stage waits: (p - 1) / (v m + p - 1). Source: as above."""
    return (stages - 1) / (chunks * microbatches + stages - 1)


def pipeline_seconds(
    slowest: Array, all_stages: Array, pp: Ints, vpp: Ints, microbatches: Ints
) -> Array:
    """Time of one pass of all microbatches through the pipeline under GPipe, or interleaved.

    The slowest stage works on every microbatch without a pause, and waits while one chunk's worth
    of every other stage fills and drains: m t_max + (sum_s t_s - t_max) / v. With equal stages
    this is m t + (p - 1) t / v, the formula of Narayanan et al. 2021, section 2.2. Exact
    under GPipe. ``slowest`` and ``all_stages`` are seconds of one microbatch, forward and backward
    together.
    """
    return microbatches * slowest + (all_stages - slowest) / np.where(pp > 1, vpp, 1)


def layers_in_flight(
    stages: Stages, pp: Ints, vpp: Ints, microbatches: Ints, schedule: Ints
) -> Ints:
    """Layer-microbatches whose activations stage s holds at its peak; shape (layouts, stages).

    1F1B: l_s min(p - s, m). GPipe: l_s m. Interleaved 1F1B: the warm-up of stage s runs
    2 (p - s - 1) + (v - 1) p + 1 chunks of l_s / v layers (Megatron-LM's schedule;
    Korthikanti 2022, section 4.2.3: 1 + (p - 1) / (p v) of 1F1B's on stage 0), at most m v.
    Zero bubble (ZB-H1) holds on every stage what 1F1B holds on the first, l_s min(p, m): stage s
    puts its weight gradients, which need the activations, off by s microbatches (Qi et al. 2023,
    section 2.1; the front door's simulation runs it). In a V (ZB-V) stage s
    holds min(2p - s - 1, m) microbatches of its first chunk and min(s + 1, m) of the one that runs
    back: p microbatches of all its layers on every stage (Qi et al. 2024, section 3). ZB-2p fills
    every stage up to twice what 1F1B holds on the first, less one: min(2p - 1, m) (Qi et al. 2023,
    section 2.2).
    """
    return _held(stages.layers, stages, (pp, vpp, microbatches, schedule))


def recomputed_in_flight(
    stages: Stages, pp: Ints, vpp: Ints, microbatches: Ints, schedule: Ints
) -> tuple[Ints, Ints]:
    """The same of the layers that recompute, and of those that keep everything.

    The first layers of a stage recompute: in a V the chunk that is held longer. Interleaved chunks
    share them evenly, as Megatron-LM does (recompute-num-layers counts within a chunk).
    """
    how = (pp, vpp, microbatches, schedule)
    again = stages.layers if stages.recomputed is None else stages.recomputed
    above = -(-stages.layers // 2)
    held = _held(again, stages, how, above)
    kept = _held(stages.layers - again, stages, how, np.maximum(above - again, 0))
    return held, kept


def _held(
    layers: Ints,
    stages: Stages,
    how: tuple[Ints, Ints, Ints, Ints],
    first_chunk: Ints | None = None,
) -> Ints:
    """Layer-microbatches held of ``layers`` of each stage, of which a V's first chunk has at most
    ``first_chunk`` (None: half of them, rounded up)."""
    p, v, m, schedule = (values[..., None] for values in how)
    plain = layers * np.minimum(p - stages.index, m)
    chunks = np.minimum(2 * (p - stages.index - 1) + (v - 1) * p + 1, m * v)
    interleaved = -(-layers * chunks // v)
    held: Ints = np.where((v > 1) & (p > 1), interleaved, plain)
    if not schedule.any():  # all of them the usual one: much the most often
        return held
    first = np.minimum(layers, -(-layers // 2) if first_chunk is None else first_chunk)
    down, up = _held_of_v(stages, p, m)
    held = np.where((schedule == V_SHAPE) & (p > 1), first * down + (layers - first) * up, held)
    twice = layers * np.minimum(2 * p - 1, m)
    rest = [layers * m, layers * np.minimum(p, m), np.where(p > 1, twice, plain)]
    codes = [schedule == GPIPE, schedule == ZERO_BUBBLE, schedule == ZERO_BUBBLE_2P]
    return np.select(codes, rest, held)


def _held_of_v(stages: Stages, p: Ints, m: Ints) -> tuple[Ints, Ints]:
    """Microbatches of a V's two chunks that a stage holds when it holds most layers.

    Where the first chunk has a layer more, that is after one more of its forward passes, when a
    microbatch of the other chunk has left.
    """
    first, second = -(-stages.layers // 2), stages.layers // 2
    down, up = np.minimum(2 * p - stages.index - 1, m), np.minimum(stages.index + 1, m)
    more, fewer = np.minimum(2 * p - stages.index, m), np.minimum(stages.index, m)
    later = first * more + second * fewer > first * down + second * up
    return np.where(later, more, down), np.where(later, fewer, up)


@dataclass(frozen=True)
class Work:
    """Seconds of one microbatch on the listed stages, messages that hold a stage up included;
    shape (layouts, stages)."""

    stage: Array
    """Forward and backward."""
    forward: Array
    """The forward pass of the stage's layers alone."""
    before: Array
    """All stages before this one."""
    place: Ints
    """Which stage this is: of stages alike that follow one another, the last."""
    everything: Array
    """All stages, shape (layouts,)."""


def one_f_one_b_seconds(work: Work, pp: Ints, microbatches: Ints) -> Array:
    """Time of one pass of all microbatches through stages that need not be alike, under 1F1B.

    The longest of these paths, over all stages s, with S the sum of the stages after s and
    k = min(p - s - 1, m - 1) forwards that s does before its first backward pass:

        sum_{j<s} t_j + m t_s + max(0, S - k f_s, 2 S - k t_s)

    The first microbatch comes down to s and the last goes back from there; in between s works on
    all of them. It waits for the first gradient to come back, S, but for the k forwards that it
    does meanwhile. With m > p - s microbatches it also waits for the last one, but for k backward
    passes. Each of these is a chain of work in the order of Narayanan et al. 2021, section 2.2, so
    that no step is shorter; what chains through several slow stages add is below 3%
    (docs/simulation.md). With equal stages it is (m + p - 1) t.
    """
    p, m = pp[..., None], microbatches[..., None]
    after = work.everything[..., None] - work.before - work.stage
    ahead = np.minimum(p - work.place - 1, m - 1)
    wait = np.maximum(0.0, after - ahead * work.forward)
    both = np.where(m > p - work.place, 2 * after - ahead * work.stage, 0.0)
    seconds: Array = np.max(work.before + m * work.stage + np.maximum(wait, both), axis=-1)
    return seconds


@dataclass(frozen=True)
class Passes:
    """Seconds of one microbatch on the mean stage: forward pass, input and weight gradients."""

    forward: Array
    inputs: Array
    weights: Array


def zero_bubble_seconds(mean: Passes, schedule: Ints, pp: Ints, microbatches: Ints) -> Array:
    """What a stage waits for in a zero-bubble schedule; f, i, w of the mean stage, which stands for
    all (A7).

    One microbatch alone has to go down and back, (p - 1) (f + i), and more of them fill that with
    what needs no other stage. ZB-H1: weight gradients, at most p - 1 of them and none longer than
    the forward pass beside it (Qi et al. 2023, table 1: (p - 1) (T_F + T_B - T_W)). ZB-2p: twice as
    many, until the (p - 1) f are left by which the stages start apart; where gradients are clipped
    all wait for the last (section 2.2). A V: first the forward passes of the chunk that comes back,
    then weight gradients, until its (p - 1) i / 2 of one chunk are left (section 6, and PyTorch's
    ScheduleZBVZeroBubble). The schedules are drawn in tests/simulation/test_schedules.py.
    """
    return np.maximum(*zero_bubble_paths(mean, schedule, pp, microbatches))


def zero_bubble_paths(
    mean: Passes, schedule: Ints, pp: Ints, microbatches: Ints
) -> tuple[Array, Array]:
    """The two that `zero_bubble_seconds` is the larger of, each linear in the input gradient."""
    f, i, w = mean.forward, mean.inputs, mean.weights
    others, more = pp - 1, microbatches - 1
    empty = others * (f + i)
    filling = np.minimum(w, f)
    h1 = empty - np.minimum(others, more) * filling
    h2 = empty - np.minimum(2 * others, more) * filling
    late = np.clip(microbatches - pp, 0, others)
    v_shape = empty - np.minimum(others, more) * f - late * w
    kinds = [schedule == ZERO_BUBBLE, schedule == V_SHAPE]
    return np.select(kinds, [h1, others * i / 2], others * f), np.select(kinds, [h1, v_shape], h2)


def late_messages(schedule: Ints, pp: Ints, vpp: Ints) -> Array:
    """How many messages, there and back, no compute stands beside, though they could hide.

    While the pipeline fills a stage waits for what it is sent: p - 1 of them; p v - 1 with v
    chunks, because a group of p microbatches is back at the first stage just when it is needed;
    2 (p - 1) in a V, where the first microbatch goes down and up.
    """
    trips = np.where(schedule == V_SHAPE, 2, 1) * (pp - 1)
    late: Array = np.where((vpp > 1) & (pp > 1), pp * vpp - 1, trips).astype(float)
    return late


def overlap_window(pp: Ints, vpp: Ints) -> Array:
    """Passes of a stage's layers that the once-a-step collectives can hide behind.

    Without interleaving a stage's gradients are complete only in its last microbatch: one pass.
    With v chunks the last chunk is done a group of p microbatches before the one below it, so that
    from its last pass on p (v - 1) + 1 passes of a chunk are left: (p (v - 1) + 1) / v of all
    layers (Megatron-LM's schedule). The first chunk's own share has its last pass alone
    (`once.held_once`).
    """
    return np.where(pp > 1, (pp * (vpp - 1) + 1) / vpp, 1.0)
