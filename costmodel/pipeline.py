"""The pipeline: bubble, order of work, microbatches in flight."""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel.axes import GPIPE, ZERO_BUBBLE, Array, Ints
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
    Zero bubble (ZB-H1) holds as much as 1F1B (Qi et al. 2023, section 2).
    """
    p, v, m = pp[..., None], vpp[..., None], microbatches[..., None]
    plain = stages.layers * np.minimum(p - stages.index, m)
    chunks = np.minimum(2 * (p - stages.index - 1) + (v - 1) * p + 1, m * v)
    interleaved = -(-stages.layers * chunks // v)
    held = np.where((v > 1) & (p > 1), interleaved, plain)
    return np.where(schedule[..., None] == GPIPE, stages.layers * m, held)


def bubble_scale(schedule: Ints) -> Array:
    """Share of the 1F1B bubble that a schedule keeps.

    ZB-H1 fills two thirds of it with weight gradients (Qi et al. 2023, table 1: (p-1)(T_F + T_B -
    T_W), a third of 1F1B's (p-1)(T_F + T_B + T_W) where the three are equally long).
    """
    return np.where(schedule == ZERO_BUBBLE, 1 / 3, 1.0)


def overlap_window(pp: Ints, vpp: Ints) -> Array:
    """Passes of a stage's layers that the once-a-step collectives can hide behind.

    Without interleaving a stage's gradients are complete only in its last microbatch: one pass.
    With v chunks the last chunk is done a group of p microbatches before the one below it, so all
    but the first chunk's traffic has p (v - 1) / v passes to hide behind (Megatron-LM's schedule).
    """
    interleaved = pp * (vpp - 1) / vpp
    return np.where((pp > 1) & (vpp > 1), np.maximum(1.0, interleaved), 1.0)
