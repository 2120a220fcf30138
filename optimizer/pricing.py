"""Prices arrays of layouts with the cost model itself: for warm starts and for alternatives.

Nothing here proves anything; the solver does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layoutopt.costmodel.axes import ONE_F_ONE_B, Array, Axes, Flags, Ints, ints
from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.estimate import over_kib, step_seconds
from layoutopt.optimizer import choices
from layoutopt.optimizer.question import AXES
from layoutopt.optimizer.space import Space

Columns = Mapping[str, Ints]
"""One array per axis of AXES, entry by entry a layout."""
_BITS = 31
"""No degree is as large as 2^31."""


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
    """The rules that join axes: pairs looked up in a small table, the rest on the arrays."""
    pp, vpp = columns["pp"], columns["vpp"]
    chunks = ints([p * 10**6 + v for p, v in space.chunks])
    mask = np.isin(pp * 10**6 + vpp, chunks)
    if space.keeps("interleave_whole_groups"):
        mask &= (vpp == 1) | (columns["microbatches"] % pp == 0)
    for (first, second), good in space.legal_pairs.items():
        rows, across = (ints(space.values[axis]) for axis in (first, second))
        mask &= good[
            np.searchsorted(rows, columns[first]), np.searchsorted(across, columns[second])
        ]
    mask &= space.exchanges(columns["tp"], columns["cp"], columns["mode"])
    mask &= space.moves(pp, columns["mode"])
    sharded = (columns[axis] for axis in ("tp", "pp", "experts", "sharding"))
    return mask & space.groups_shards(*sharded)


def axes_from(space: Space, columns: Columns) -> Axes:
    """The arrays as the cost model takes them, with the framework's own options."""
    tp, pp, ones = columns["tp"], columns["pp"], np.ones_like(columns["tp"])
    held = choices.experts(columns["experts"])
    spread, way = choices.sharding(columns["sharding"]), choices.mode(columns["mode"])
    group = columns["dp"] * columns["cp"]
    return Axes(
        tp=tp,
        cp=columns["cp"],
        pp=pp,
        dp=columns["dp"],
        ep=held.ep,
        etp=held.etp,
        vpp=columns["vpp"],
        micro_batch=columns["micro_batch"],
        microbatches=columns["microbatches"],
        zero_stage=spread.zero_stage,
        recompute=way.recompute,
        sequence_parallel=sequence_parallel(space, tp, columns["cp"]),
        schedule=ones * ONE_F_ONE_B,
        shard_degree=np.where(spread.degree == 0, group, spread.degree),
        reshard=reshard(space, pp, columns["sharding"]),
        cp_kind=way.cp_kind,
        offload_optimizer=spread.offload == 1,
        offload_activations=way.offload == 1,
    )


def sequence_parallel(space: Space, tp: Ints, cp: Ints) -> Flags:
    """Whether each (tp, cp) uses it."""
    pairs = tp << _BITS | cp
    known, places = np.unique(pairs, return_inverse=True)
    uses = [space.sequence_parallel(p >> _BITS, p & ((1 << _BITS) - 1)) for p in known.tolist()]
    found: Flags = np.array(uses, dtype=bool)[places]
    return found


def reshard(space: Space, pp: Ints, sharding: Ints) -> Flags:
    """Whether gathered weights are dropped between the passes: chosen under ZeRO-3, else said as
    the framework would."""
    known, places = np.unique(pp, return_inverse=True)
    software, spread = space.job.software, choices.sharding(sharding)
    usual = [default_layout_values(software, tp=1, pp=p).reshard for p in known.tolist()]
    default = np.array(usual, dtype=bool)[places]
    found: Flags = np.where(spread.zero_stage == 3, spread.keep == 0, default)
    return found


def price(space: Space, columns: Columns) -> tuple[Array, Ints]:
    """Step time in seconds, and KiB beyond what a stage or its host may hold (0: it fits)."""
    axes = axes_from(space, columns)
    return step_seconds(space.job, axes), over_kib(space.job, axes)


def row(columns: Columns, place: int) -> dict[str, int]:
    """One layout of the arrays, axis by axis."""
    return {axis: int(columns[axis][place]) for axis in AXES}


def stack(chosen: list[dict[str, int]]) -> dict[str, Ints]:
    """Layouts as arrays."""
    return {axis: ints([one[axis] for one in chosen]) for axis in AXES}
