"""The pipeline: bubble, order of work, microbatches in flight."""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel.axes import GPIPE, V_SHAPE, ZERO_BUBBLE, ZERO_BUBBLE_2P, Array, Ints
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
    """Time of one pass of all microbatches through the pipeline, messages included.

    The slowest stage works on every microbatch without a pause, and waits while one chunk's worth
    of every other stage fills and drains: m t_max + (sum_s t_s - t_max) / v. With equal stages
    this is m t + (p - 1) t / v, the formula of Narayanan et al. 2021, section 2.2. ``slowest`` and
    ``all_stages`` are seconds of one microbatch, forward and backward together.
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
    every stage up to twice what 1F1B holds on the first: min(2p, m) (Qi et al. 2023, section 4).
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
    twice = layers * np.minimum(2 * p, m)
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


def bubble_scale(schedule: Ints, pp: Ints, microbatches: Ints) -> Array:
    """Share of the 1F1B bubble that a schedule keeps.

    ZB-H1 fills two thirds of it with weight gradients (Qi et al. 2023, table 1: (p-1)(T_F + T_B -
    T_W), a third of 1F1B's (p-1)(T_F + T_B + T_W) where the three are equally long); m microbatches
    have m - 1 weight gradients to fill with, so that fewer than p fill less. A V with two
    chunks is without a bubble on each stage taken by itself, but the last stage starts p - 1
    forward passes of a chunk after the first: a sixth of 1F1B's bubble, where gradients are clipped
    and all stages wait for the slowest. With fewer than 2p - 1 microbatches the way there and
    back of one shows: 4p - 2 - 2m chunk passes (the schedule of Qi et al. 2023, section 6, drawn
    in tests/costmodel/test_pipeline.py). ZB-2p has room enough for none, but the same wait at the
    end (Qi et al. 2023, section 4: ZB-H2).
    """
    passes = np.maximum(pp - 1, 4 * pp - 2 - 2 * microbatches)
    v_shape = passes / (6 * np.maximum(pp - 1, 1))
    filled = np.minimum(1.0, (microbatches - 1) / np.maximum(pp - 1, 1))
    codes = [schedule == ZERO_BUBBLE, schedule == V_SHAPE, schedule == ZERO_BUBBLE_2P]
    return np.select(codes, [(2 - filled) / 3, v_shape, 1 / 6], 1.0)


def overlap_window(pp: Ints, vpp: Ints) -> Array:
    """Passes of a stage's layers that the once-a-step collectives can hide behind.

    Without interleaving a stage's gradients are complete only in its last microbatch: one pass.
    With v chunks the last chunk is done a group of p microbatches before the one below it, so all
    but the first chunk's traffic has p (v - 1) / v passes to hide behind (Megatron-LM's schedule).
    """
    interleaved = pp * (vpp - 1) / vpp
    return np.where((pp > 1) & (vpp > 1), np.maximum(1.0, interleaved), 1.0)
