"""The even layout that needs least memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layoutopt.costmodel.axes import RING, SCHEDULES, Axes, Ints, ints
from layoutopt.costmodel.estimate import allocated_kib, over_kib, step_seconds
from layoutopt.costmodel.layout import CP_KINDS
from layoutopt.optimizer import choices
from layoutopt.optimizer.pricing import axes_from, complete, row
from layoutopt.optimizer.question import AXES
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.survey import Seen


def leanest(space: Space, schedule: str = "1f1b") -> Seen | None:
    """The even layout that allocates least on its worst stage; ties go to the faster one.

    A smaller micro_batch never needs more: activations in flight grow with it, or stay where it
    takes away as many microbatches. So each dp is tried with its smallest one alone, unless the
    question holds the batch to something.
    """
    columns = _lean_columns(space)
    if not len(columns["tp"]):
        return None
    code = SCHEDULES[schedule]

    def axes_of(some: dict[str, Ints]) -> Axes:
        axes = axes_from(space, some)
        return replace(axes, schedule=np.full_like(axes.schedule, code))

    axes = axes_of(columns)
    allocated, over = allocated_kib(space.job, axes), over_kib(space.job, axes)
    # First what is over by least: the host's memory counts too, where something is offloaded.
    allocated = np.where(over == over.min(), allocated, np.iinfo(np.int64).max)
    places = np.flatnonzero(allocated == allocated.min())
    columns = {axis: column[places] for axis, column in columns.items()}
    seconds = step_seconds(space.job, axes_of(columns))
    order = np.lexsort([*(columns[axis] for axis in reversed(AXES)), seconds])
    return Seen(row(columns, int(order[0])), float(seconds[order[0]]), int(over.min()))


def _lean_columns(space: Space) -> dict[str, Ints]:
    batches = lean_batches(space)
    shapes = [
        (tp, cp, pp, micro_batch)
        for tp, cp, pp, dp in space.grids
        for micro_batch in batches.get(dp, [])
    ]
    rest = (ints(space.values["experts"]), ints(space.values["vpp"]), *lean_codes(space))
    grids = np.meshgrid(np.arange(len(shapes)), *rest, indexing="ij")
    place, experts, vpp, sharding, mode = (grid.ravel() for grid in grids)
    tp, cp, pp, micro_batch = ints(shapes).reshape(-1, 4)[place].T
    free = {"tp": tp, "cp": cp, "pp": pp, "experts": experts, "vpp": vpp}
    free |= {"micro_batch": micro_batch, "sharding": sharding, "mode": mode}
    return complete(space, free)


def lean_batches(space: Space) -> dict[int, list[int]]:
    """Of each dp the micro_batches that can be the leanest."""
    batches: dict[int, list[int]] = {}
    for dp, micro_batch, _ in space.batches:
        batches.setdefault(dp, []).append(micro_batch)
    # Where the optimizer step is the worst moment, larger microbatches hold no more.
    if held_axes(space) & {"micro_batch", "microbatches", "vpp"} or space.job.software.step_bytes:
        return batches
    return {dp: [min(found)] for dp, found in batches.items()}


def held_axes(space: Space) -> set[str]:
    """Keys that the question fixes or limits."""
    return {*space.question.fix, *(limit.axis for limit in space.question.limits)}


def lean_codes(space: Space) -> tuple[Ints, Ints]:
    """Values of sharding and mode that can be the leanest: fewer ranks to shard over, or weights
    that are kept, never need less, and memory does not depend on the kind of context parallelism.
    """
    sharding = ints(space.values["sharding"])
    spread = choices.sharding(sharding)
    if "shard_degree" not in held_axes(space):
        sharding = sharding[spread.degree == 0]
    modes = ints(space.values["mode"])
    kinds = choices.mode(modes).cp_kind
    if RING in kinds and CP_KINDS[RING] in space.job.software.cp_kinds:
        modes = modes[kinds == RING]
    return sharding, modes
