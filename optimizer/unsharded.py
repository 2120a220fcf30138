"""Outer choices before they are sharded: which of them some way to shard may make fit, and in time.

There are ten times as many choices once each is sharded in every way. Model state and what comes
once a step depend on tp, pp, experts and sharding alone: the least of both over all ways to shard,
and a layer without ZeRO-2/3 traffic, bound all of a choice's ways to shard at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel import gradient_sync, memory, once
from layoutopt.costmodel.axes import SCHEDULES, Array, Axes, Flags, Ints, ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import PIPELINE_INSIDE
from layoutopt.costmodel.stages import Stages
from layoutopt.optimizer.outer import Group
from layoutopt.optimizer.pricing import axes_from
from layoutopt.optimizer.rooms import ROUNDED_KIB, Line, by_pp, rooms_of, stages_of
from layoutopt.optimizer.space import Space

_KEYS = ("tp", "pp", "experts")
"""What state and traffic depend on beside sharding; with the pipeline inside on cp too."""


def worth_sharding(space: Space, group: Group, most_s: float) -> Flags:
    """Which choices of a group without sharding may take ``most_s`` at most, jitter and the step's
    fixed cost left out, and fit, if they are sharded in the right way."""
    worth = np.zeros(len(group), dtype=bool)
    least = _least(space, group)
    slowest = group.slowest_s(np.full(len(group), most_s) - least.once_s[least.place])
    kept = np.flatnonzero(group.share_s <= slowest)
    for places in by_pp(group.axes.pp[kept]):
        here = kept[places]
        mine = group.keep(here)
        rooms = rooms_of(space, mine, least.line(mine, least.place[here]))
        worth[here] = rooms.layers(slowest[here]).sum(axis=1) >= space.job.model.layers
    return worth


@dataclass(frozen=True)
class _Least:
    """The least over all legal ways to shard, for each combination of _KEYS; infinite where there
    is none."""

    place: Ints
    """Of each choice's combination."""
    once_s: Array
    state: Array
    """KiB of a stage of one layer, shape (combinations, 3): the first stage, one between, the one
    with the loss head."""
    each: Array
    """KiB that a layer more takes at least, of the same shape."""

    def line(self, group: Group, place: Ints) -> Line:
        """State of every stage of the choices, which share one pp."""
        _, first, last = stages_of(group)
        rows, kinds = place[:, None], np.where(last, 2, np.where(first, 0, 1))
        one = np.ones((len(group), 1), dtype=np.int64)
        return Line(one, self.state[rows, kinds], self.each[rows, kinds])


def _least(space: Space, group: Group) -> _Least:
    axes_of_key = (*_KEYS, "cp") if space.job.axis_order == PIPELINE_INSIDE else _KEYS
    key = np.zeros(len(group), dtype=np.int64)
    for axis in axes_of_key:
        values = ints(space.values[axis])
        key = key * len(values) + np.searchsorted(values, group.columns[axis])
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    codes = ints(space.values["sharding"])
    number = np.repeat(np.arange(len(first)), len(codes))
    columns = {axis: column[first][number] for axis, column in group.columns.items()}
    columns["sharding"] = np.tile(codes, len(first))
    legal = np.flatnonzero(_legal(space, columns))
    columns, number = {axis: column[legal] for axis, column in columns.items()}, number[legal]
    axes = axes_from(space, columns)
    axes = replace(axes, schedule=np.full_like(axes.tp, SCHEDULES[group.schedule]))

    def least(values: Array) -> Array:
        found = np.full((len(first), *values.shape[1:]), np.inf)
        np.minimum.at(found, number, values)
        return found

    state, each = _states(space.job, axes, group.schedule)
    return _Least(place.ravel(), least(_once_s(space.job, axes)), least(state), least(each))


def _legal(space: Space, columns: dict[str, Ints]) -> Flags:
    pp, sharding = columns["pp"], columns["sharding"]
    places = (
        np.searchsorted(ints(space.values[axis]), columns[axis]) for axis in ("sharding", "pp")
    )
    runs = space.legal_pairs["sharding", "pp"][tuple(places)]
    grouped = space.groups_shards(columns["tp"], pp, columns["experts"], sharding)
    return np.asarray(runs & grouped)


def _once_s(job: Job, axes: Axes) -> Array:
    """Traffic of a first stage of one layer that no window hides, and the optimizer step of the
    longest stage."""
    ones = np.ones_like(axes.tp)
    one = once.first_stage_once(job, axes, ones)
    least = once.optimizer_seconds(job, axes, ones)
    longest = once.optimizer_seconds(job, axes, -(-job.model.layers // axes.pp), first=False)
    tied = gradient_sync.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp)
    seconds: Array = one.blocked(job) + tied + np.maximum(least, longest)
    return seconds


def _states(job: Job, axes: Axes, schedule: str) -> tuple[Array, Array]:
    """State of the three kinds of stages with one layer, and what each more takes at least."""
    # A stage that has the head is looked up as the third kind, whatever else it has.
    both = np.full(len(axes.tp), schedule == "zbv") | (axes.pp == 1)
    index = np.broadcast_to(np.arange(3), (len(axes.tp), 3))
    first = (index == 0) | ((index == 2) & both[:, None])

    def state(layers: int) -> Array:
        held = np.full_like(index, layers)
        total = memory.stage_state(job, axes, Stages(index, held, first, index == 2)).total
        return np.broadcast_to(total, index.shape).astype(float)

    least = state(1)
    each = np.maximum(state(1 + job.model.layers) - least - ROUNDED_KIB, 0) / job.model.layers
    return least, each
