"""Prices arrays of layouts with the cost model itself: for warm starts and for alternatives.

Nothing here proves anything; the solver does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layoutopt.costmodel.axes import ONE_F_ONE_B, Array, Axes, Flags, Ints, ints
from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.estimate import allocated_kib, step_seconds
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.optimizer.question import AXES
from layoutopt.optimizer.space import Space, uses_sequence_parallel

Columns = Mapping[str, Ints]
"""One array per axis of AXES, entry by entry a layout; recompute by its code."""


def complete(space: Space, free: Mapping[str, Ints]) -> dict[str, Ints]:
    """dp and microbatches from the other axes, and only the rows that are legal."""
    job = space.job
    whole = free["tp"] * free["cp"] * free["pp"]
    dp = job.gpus // whole
    sequences = np.maximum(dp, 1) * free["micro_batch"]
    microbatches = job.training.global_batch // sequences
    columns = {**free, "dp": dp, "microbatches": microbatches}
    mask = (dp * whole == job.gpus) & (microbatches * sequences == job.training.global_batch)
    mask &= _known(space, columns)
    kept = {axis: column[mask] for axis, column in columns.items()}
    legal = _pairs_legal(space, kept)
    return {axis: kept[axis][legal] for axis in AXES}


def _known(space: Space, columns: Columns) -> Flags:
    mask = np.ones(len(columns["tp"]), dtype=bool)
    for axis in ("dp", "microbatches"):
        mask &= np.isin(columns[axis], ints(space.values[axis]))
    return mask


def _pairs_legal(space: Space, columns: Columns) -> Flags:
    """The rules that join axes, each looked up in a small table."""
    pp, vpp = columns["pp"], columns["vpp"]
    chunks = ints([p * 10**6 + v for p, v in space.chunks])
    mask = np.isin(pp * 10**6 + vpp, chunks)
    if space.keeps("interleave_whole_groups"):
        mask &= (vpp == 1) | (columns["microbatches"] % pp == 0)
    for first, second, rule in (
        ("tp", "cp", space.splits),
        ("zero_stage", "pp", space.shards),
        ("ep", "pp", space.expert_groups),
    ):
        good = [
            a * 10**7 + b for a in space.values[first] for b in space.values[second] if rule(a, b)
        ]
        mask &= np.isin(columns[first] * 10**7 + columns[second], ints(good))
    return mask


def axes_from(space: Space, columns: Columns) -> Axes:
    """The arrays as the cost model takes them, with the framework's own options."""
    job = space.job
    tp, pp = columns["tp"], columns["pp"]
    ones = np.ones_like(tp)
    reshard = {
        p: default_layout_values(job.software, tp=1, pp=p).reshard for p in space.values["pp"]
    }
    return Axes(
        tp=tp,
        cp=columns["cp"],
        pp=pp,
        dp=columns["dp"],
        ep=columns["ep"],
        etp=ones,
        vpp=columns["vpp"],
        micro_batch=columns["micro_batch"],
        microbatches=columns["microbatches"],
        zero_stage=columns["zero_stage"],
        recompute=columns["recompute"],
        sequence_parallel=(tp > 1) & uses_sequence_parallel(job, 2),
        schedule=ones * ONE_F_ONE_B,
        shard_degree=columns["dp"] * columns["cp"],
        reshard=np.array([reshard[p] for p in pp.tolist()], dtype=bool),
    )


def price(space: Space, columns: Columns) -> tuple[Array, Ints]:
    """Step time in seconds, and KiB beyond what the worst stage may allocate (0: it fits)."""
    axes = axes_from(space, columns)
    over = np.maximum(allocated_kib(space.job, axes) - largest_allocation_kib(space.job), 0)
    return step_seconds(space.job, axes), over


def row(columns: Columns, place: int) -> dict[str, int]:
    """One layout of the arrays, axis by axis."""
    return {axis: int(columns[axis][place]) for axis in AXES}


def stack(chosen: list[dict[str, int]]) -> dict[str, Ints]:
    """Layouts as arrays."""
    return {axis: ints([one[axis] for one in chosen]) for axis in AXES}
