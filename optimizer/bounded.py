"""Bounds of outer choices: the wall time that no split and no recompute of a choice can beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.costmodel import gradient_sync, once
from layoutopt.costmodel.axes import Array, Ints, ints
from layoutopt.costmodel.checkpoint import checkpoint_cost, run_wall_s
from layoutopt.costmodel.gradient_sync import Replicas
from layoutopt.costmodel.job import Job
from layoutopt.optimizer import choices
from layoutopt.optimizer.outer import SLACK, Group
from layoutopt.optimizer.program import Save
from layoutopt.optimizer.rooms import (
    by_pp,
    chunks_of,
    least_slowest,
    rooms_of,
    state_line,
    whole_chunks,
)
from layoutopt.optimizer.space import Space

if TYPE_CHECKING:
    from layoutopt.optimizer.pipelining import Pipelines


@dataclass(frozen=True)
class Bounded:
    """A group with the wall time that each of its choices takes at least; infinite: cut."""

    search: Pipelines
    group: Group
    walls: Array
    once_s: Array
    """What comes once a step takes at least."""
    writes: Array
    stalls: Array
    """What a checkpoint of each choice costs."""
    fewest: Ints

    def save(self, place: int) -> Save:
        """What a checkpoint of one choice costs."""
        return float(self.writes[place]), float(self.stalls[place])

    def rooms(self, place: int, limit: float) -> Ints:
        """Whole layers that each stage of one choice has room for within ``limit``."""
        one = self.group.keep(ints([place]))
        most = self.search.objective_s(limit, self.save(place))
        slowest = one.slowest_s(np.array([most]) - self.once_s[[place]])
        space = self.search.space
        rooms = rooms_of(space, one, state_line(space.job, one, self.fewest[[place]]))
        held = np.minimum(rooms.layers(slowest)[0], space.job.model.layers)
        whole: Ints = held.astype(np.int64)
        return whole


def bounds_of(search: Pipelines, group: Group, limit: float) -> Bounded:
    """Wall times that no split and no recompute of each choice can beat."""
    space, job = search.space, search.space.job
    zero_stage = choices.sharding(group.columns["sharding"]).zero_stage
    size, write, stall = checkpoint_cost(job, group.columns["tp"], group.columns["pp"], zero_stage)
    pairs, which = _distinct(write, stall)
    most = search.objectives_s(limit, pairs)
    objective = np.array([most[pair] for pair in pairs])[which]
    slowest = group.slowest_s(objective)
    fewest = fewest_of(space, group, slowest)
    once_s = _least_once_s(job, group, fewest)
    walls = np.full(len(group), np.inf)
    kept = np.flatnonzero(group.share_s <= group.slowest_s(objective - once_s))
    for places in by_pp(group.axes.pp[kept]):
        here = kept[places]
        mine = group.keep(here)
        found, least, told = _within(space, mine, fewest[here], objective[here], once_s[here])
        if not len(found):
            continue
        here, mine = here[found], mine.keep(found)
        once_s[here] = told
        pipeline = [factor * least + rest for factor, rest in mine.bounds()]
        seconds = (np.max(pipeline, axis=0) + told) * (1 - SLACK)
        steps = search.clock.scale * (seconds + job.software.step_overhead_s)
        walls[here] = run_wall_s(job, steps, write[here], stall[here], size)
    return Bounded(search, group, walls, once_s, write, stall, fewest)


def _distinct(write: Array, stall: Array) -> tuple[tuple[Save, ...], Ints]:
    """Distinct saves in the order that they come in, and which of them each is."""
    _, of_write = np.unique(write, return_inverse=True)
    _, of_stall = np.unique(stall, return_inverse=True)
    code = of_write * (len(stall) + 1) + of_stall
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = first[order]
    pairs = tuple(zip(write[first].tolist(), stall[first].tolist(), strict=True))
    return pairs, place[which]


def _within(
    space: Space, group: Group, fewest: Ints, objective_s: Array, once_s: Array
) -> tuple[Ints, Array, Array]:
    """Of choices that share one pp the places of those with room for all layers, the least time of
    their slowest stage, and what comes once a step at least."""
    layers, job = space.job.model.layers, space.job
    rooms, places = rooms_of(space, group, state_line(job, group, fewest)), np.arange(len(group))
    for _ in range(2):
        held = rooms.layers(group.slowest_s(objective_s - once_s))
        room = held.sum(axis=1)
        enough = np.flatnonzero(room >= layers)
        if not len(enough):
            return enough, objective_s[enough], once_s[enough]
        if len(enough) < len(places):
            places, rooms, group = places[enough], rooms.keep(enough), group.keep(enough)
            objective_s, once_s = objective_s[enough], once_s[enough]
        # What the other stages have no room for stands on the first.
        first = np.maximum(layers - (room - held[:, 0])[enough], 1).astype(np.int64)
        once_s = np.maximum(once_s, _least_once_s(job, group, first))
    slowest = group.slowest_s(objective_s - once_s)
    least = least_slowest(rooms, layers, group.share_s * (1 - SLACK), slowest)
    found = np.isfinite(least)
    return places[found], least[found], once_s[found]


def fewest_of(space: Space, group: Group, slowest_s: Array) -> Ints:
    """Layers that every stage holds at least, because the others have no time for more."""
    layers, pp, chunks = space.job.model.layers, group.axes.pp, chunks_of(space, group)
    most = np.floor(slowest_s / group.layer_s * (1 + SLACK))
    ends = whole_chunks(most, chunks, 1) * np.minimum(pp - 1, 2)
    others = ends + whole_chunks(most, chunks, 0) * np.maximum(pp - 3, 0)
    fewest: Ints = np.maximum(layers - others, 1).astype(np.int64)
    return fewest


def _least_once_s(job: Job, group: Group, first: Ints) -> Array:
    """What comes once a step at least, with ``first`` layers or more on the first stage: traffic
    that no pass hides, of the first stage or of a later one, and the longest optimizer step."""
    axes = group.axes
    replicas = once.replicas(job, axes)
    traffic = once.least_left(job, axes, first, group.hiding_s, replicas, first=True)
    if np.any(once.waits_for_later(axes) & (axes.pp > 1)):
        traffic = np.maximum(traffic, _least_late_s(job, group, replicas))
    # Some stage holds as many layers as an even split gives the longest.
    longest = once.optimizer_seconds(job, axes, -(-job.model.layers // axes.pp), first=False)
    optimizer = np.maximum(once.optimizer_seconds(job, axes, first), longest)
    least: Array = (
        traffic + gradient_sync.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp) + optimizer
    )
    return least


def _least_late_s(job: Job, group: Group, replicas: Replicas) -> Array:
    """What a later stage has left at least, because some stage holds as many layers as an even
    split gives each, and those before the first such stage hold fewer."""
    axes, pp = group.axes, group.axes.pp
    each = job.model.layers // pp
    before = (pp - 1) * each * (group.layer_s + group.again_s) + group.embedding_s
    left = once.least_left(job, axes, each, group.hiding_s, replicas, first=False)
    late: Array = np.where(once.waits_for_later(axes), left - once.head_start(axes) * before, 0.0)
    return late
