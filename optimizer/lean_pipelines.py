"""The pipeline that lacks least memory, of every split and recompute: what comes nearest to
fitting, and whether anything fits.

Outer choices (outer.py) by a bound on what their fullest stage holds (rooms.py), least first; the
layers of each are put on the stages so that the fullest one lacks least, exactly, until no bound
is below what was found. No solver is asked: a stage adds nothing to another's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel import memory
from layoutopt.costmodel.axes import Array, Ints, ints, take
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.offload import largest_host_kib
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.stages import Stages
from layoutopt.optimizer.asked import recompute_of, schedules_of
from layoutopt.optimizer.inner import layer_ranges, layout_from
from layoutopt.optimizer.lean import held_axes, lean_batches, lean_codes
from layoutopt.optimizer.outer import Group, groups_of
from layoutopt.optimizer.rooms import by_pp, least_held_kib, state_line
from layoutopt.optimizer.shapes import chunked, unchunked, with_every_chunk
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.stagewise import Row

_NEVER = np.iinfo(np.int64).max // 4
"""KiB that no stage lacks, for what may not be."""
_MOST_TIED = 24
"""Layouts that lack equally little of which the fastest is named."""


@dataclass(frozen=True)
class Lean:
    """A layout, and the KiB that its worst stage lacks of the device's memory, or of what offload
    may fill of the host's; zero or less: it fits."""

    layout: Layout
    over_kib: int


def leanest_pipeline(space: Space, known_kib: int) -> Estimate | None:
    """The layout that lacks least, if it is less than ``known_kib``; of equal ones a fast one."""
    found: list[Lean] = []
    for one in _leaner(space, known_kib):
        if found and one.over_kib < found[-1].over_kib:
            found = []
        if len(found) < _MOST_TIED:
            found.append(one)
    priced = [estimate(space.job, one.layout) for one in found]
    return min(priced, key=lambda one: one.run.wall_time_s, default=None)


def some_pipeline_fits(space: Space) -> bool:
    """Whether some split and recompute of some layout fits in memory."""
    return any(one.over_kib <= 0 for one in _leaner(space, 1))


def _leaner(space: Space, known_kib: int) -> Iterator[Lean]:
    """Layouts that lack less than ``known_kib``, and no more than any before them; the last ones
    lack least of all."""
    lean = _lean_space(space)
    groups = _groups(lean)
    usable = memory.largest_allocation_kib(space.job)
    order = sorted(
        (bound, number, place)
        for number, group in enumerate(groups)
        for place, bound in enumerate(_bounds(lean, group, usable + known_kib - 1).tolist())
        if np.isfinite(bound)
    )
    best = known_kib - 1
    for bound, number, place in order:
        if bound - usable > best:
            return
        found = _leanest_split(lean, groups[number], place, best)
        if found is not None:
            best = found.over_kib
            yield found


def _lean_space(space: Space) -> Space:
    """The space with every number of chunks, and without what never holds less: fewer ranks to
    shard over, other kinds of context parallelism; more chunks, which hold more activations."""
    wide, (sharding, mode) = with_every_chunk(space), lean_codes(space)
    values = {**wide.values, "sharding": tuple(sharding.tolist()), "mode": tuple(mode.tolist())}
    if wide is not space and 1 in values["vpp"] and "vpp" not in held_axes(space):
        values["vpp"] = (1,)
    return replace(wide, values=values)


def _groups(lean: Space) -> list[Group]:
    """All outer choices of the space, with the smallest micro_batch where that is the leanest."""
    shapes, batches = unchunked(lean), lean_batches(lean)
    kept = [row for row in shapes.tolist() if row[4] in batches[row[3]]]
    if not kept:
        return []
    question = lean.question
    return list(
        groups_of(lean, chunked(lean, ints(kept)), schedules_of(question), recompute_of(question))
    )


def _bounds(space: Space, group: Group, high_kib: int) -> Array:
    """KiB that the fullest stage of each choice holds at least; infinite above ``high_kib``."""
    bounds = np.zeros(len(group))
    if not space.keeps("every_stage_fits"):
        return bounds
    for places in by_pp(group.axes.pp):
        mine = group.keep(places)
        line = state_line(space.job, mine, np.ones(len(mine), dtype=np.int64))
        bounds[places] = least_held_kib(space, mine, line, high_kib)
    return bounds


def _leanest_split(space: Space, group: Group, place: int, most_kib: int) -> Lean | None:
    """The layers of one choice where its fullest stage lacks least, if that is ``most_kib`` or
    less."""
    layers, pp = space.job.model.layers, int(group.axes.pp[place])
    ranges = layer_ranges(space, group, place, np.full(pp, layers, dtype=np.int64))
    if any(not values for values in ranges):
        return None
    stage, held = ints([(s, n) for s, values in enumerate(ranges) for n in values]).T
    best: tuple[int, tuple[int, ...]] | None = None
    for lacks in _whole_stages(space, group, place, stage, held):
        table = np.full((pp, layers + 1), _NEVER)
        table[stage, held] = lacks
        found = _least_of_most(table)
        if found[0] <= most_kib and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    over, split = best
    rows = tuple(
        Row(n, k, 0.0, 0.0)
        for n, k in zip(split, _fewest(space, group, place, split, over), strict=True)
    )
    return Lean(layout_from(space, group, place, rows), over)


def _whole_stages(
    space: Space, group: Group, place: int, stage: Ints, held: Ints
) -> Iterator[Ints]:
    """KiB that each stage lacks with all of its layers recomputed, or none where a part may be.

    What a stage holds is linear in the layers that recompute but for the step from none to one,
    and from all but one to all: nothing between is less than both.
    """
    variant, blocks = group.variant, space.job.model.mtp_layers
    every = _lacks(space, group, place, stage, held, held if variant.partly else None)
    if variant.counts == "each":
        none = _lacks(space, group, place, stage, held, np.zeros_like(held))
        yield np.minimum(every, none)
        return
    yield every
    if variant.counts == "same" and not blocks:
        yield _lacks(space, group, place, stage, held, np.zeros_like(held))


def _fewest(
    space: Space, group: Group, place: int, split: tuple[int, ...], over: int
) -> tuple[int, ...]:
    """Layers to recompute on each stage, as few as keep it from lacking more than ``over``."""
    variant = group.variant
    if not variant.partly:
        return (0,) * len(split)
    chunks = int(group.axes.interleaved[place])
    fewest, unit = (0, 1) if variant.counts == "each" else (0, chunks)
    if variant.counts == "same" and space.job.model.mtp_layers:
        fewest = chunks
    numbers = ints([*range(fewest, max(split) + unit, unit)])
    held = np.repeat(ints(split), len(numbers))
    stage = np.repeat(np.arange(len(split)), len(numbers))
    again = np.minimum(np.tile(numbers, len(split)), held)
    enough = _lacks(space, group, place, stage, held, again) <= over
    table = enough.reshape(len(split), len(numbers))
    if variant.counts == "same":
        number = int(numbers[np.argmax(table.all(axis=0))])
        return tuple(min(number, n) for n in split)
    return tuple(
        min(int(numbers[first]), n) for first, n in zip(table.argmax(axis=1), split, strict=True)
    )


def _lacks(
    space: Space, group: Group, place: int, stage: Ints, held: Ints, again: Ints | None
) -> Ints:
    """KiB that stages of so many layers lack, of the device's memory or of the host's."""
    job, axes = space.job, take(group.axes, ints([place]))
    if not space.keeps("every_stage_fits"):
        return np.full(len(stage), -1)
    head = 0 if group.schedule == "zbv" else int(axes.pp[0]) - 1
    recomputed = None if again is None else again[None]
    stages = Stages(stage[None], held[None], stage[None] == 0, stage[None] == head, recomputed)
    parts = memory.stage_bytes(job, axes, stages)
    over: Ints = (parts.allocated - memory.largest_allocation_kib(job))[0]
    if np.any(axes.offload_optimizer) or np.any(axes.offload_activations):
        host = np.broadcast_to(parts.host, parts.allocated.shape)[0] - largest_host_kib(job)
        over = np.maximum(over, host)
    return over


def _least_of_most(table: Ints) -> tuple[int, tuple[int, ...]]:
    """The split of all layers (the columns but the first) over stages (the rows) whose largest
    entry is least, and that entry."""
    pp, layers = table.shape[0], table.shape[1] - 1
    least = np.full(layers + 1, _NEVER)
    least[0] = -_NEVER
    j, n = np.meshgrid(np.arange(layers + 1), np.arange(layers + 1), indexing="ij")
    before, legal = np.maximum(j - n, 0), n <= j
    taken = np.zeros((pp, layers + 1), dtype=np.int64)
    for stage in range(pp):
        worst = np.where(legal, np.maximum(least[before], table[stage][n]), _NEVER)
        taken[stage] = worst.argmin(axis=1)
        least = worst.min(axis=1)
    split, left = [], layers
    for stage in range(pp - 1, -1, -1):
        split.append(int(taken[stage, left]))
        left -= split[-1]
    return int(least[layers]), tuple(reversed(split))
