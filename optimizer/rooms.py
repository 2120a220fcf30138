"""Rooms: how many layers each stage of an outer choice can hold, in time and in memory.

A stage has room for the whole layers whose seconds stay within T and whose bytes stay within
memory, with as much recompute as memory forces; bytes are bounded from below by a line. Chunks that
take turns hold whole layers, as many in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from layoutopt.costmodel import memory
from layoutopt.costmodel.axes import NONE, Array, Flags, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.costmodel.pipeline import layers_in_flight
from layoutopt.costmodel.stages import Stages
from layoutopt.optimizer.outer import Group
from layoutopt.optimizer.space import Space

ROUNDING = 1e-9
"""What whole layers may be off by in floats: rooms are counted up, bounds down."""
ROUNDED_KIB = 8
"""More than the parts of a stage's state are rounded up by."""


@dataclass(frozen=True)
class Rooms:
    """How many layers each stage of choices with one pp has room for; arrays (choices, pp)."""

    layer_s: Array
    again_s: Array
    ends_s: Array
    most: Array
    """Layers that memory holds, all of them recomputed where they may be."""
    forced: Array
    """Layers that must recompute rise by this for each layer more ..."""
    spare: Array
    """... less this many."""
    chunks: Ints
    """Chunks that take turns; 1 where stages may hold any number of layers."""
    ends: Ints
    """1 where the embedding or the head may stand in the place of a layer, else 0."""

    def keep(self, places: Ints) -> Rooms:
        """Some of the choices."""
        return Rooms(*(getattr(self, item.name)[places] for item in fields(self)))

    def layers(self, slowest_s: Array) -> Array:
        """Whole layers on each stage within ``slowest_s``, counted up."""
        left = slowest_s[:, None] - self.ends_s
        plain = left / self.layer_s
        # a l + d (forced l - spare) <= left
        slower = (left + self.again_s * self.spare) / (self.layer_s + self.again_s * self.forced)
        room = np.minimum(np.minimum(plain, slower), self.most)
        whole = np.maximum(np.floor(room * (1 + ROUNDING) + ROUNDING), 0.0)
        return whole_chunks(whole, self.chunks, self.ends)


def whole_chunks(layers: Array, chunks: Ints, ends: Ints | int) -> Array:
    """The most layers, up to ``layers``, that ``chunks`` hold alike, where with ``ends`` 1 the
    embedding or the head may stand in the place of one (rules.pipeline_fits)."""
    short = (layers + ends) // chunks * chunks - ends
    whole: Array = np.maximum(layers // chunks * chunks, short)
    return whole


def by_pp(pp: Ints) -> Iterator[Ints]:
    """Places of the choices of each pp."""
    for value in np.unique(pp).tolist():
        yield np.flatnonzero(pp == value)


def chunks_of(space: Space, group: Group) -> Ints:
    """Chunks that hold equally many layers; 1 where the split is given."""
    even = space.question.pipeline.splits == "even"
    return np.ones_like(group.axes.pp) if even else group.axes.interleaved


@dataclass(frozen=True)
class Line:
    """Model state of a stage of n layers is at least ``least`` + (n - ``fewest``) ``each``, KiB.
    Arrays (choices, pp)."""

    fewest: Ints
    least: Array
    each: Array


def state_line(job: Job, group: Group, fewest: Ints) -> Line:
    """The chord of the state's concave growth, of stages of at least ``fewest`` layers."""
    index, first, last = stages_of(group)
    layers = job.model.layers

    def state(count: Ints) -> Ints:
        listed = Stages(index, np.broadcast_to(count[:, None], index.shape), first, last)
        return memory.stage_state(job, group.axes, listed).total

    least = state(fewest)
    each = np.maximum(state(fewest + layers) - least - ROUNDED_KIB, 0) / layers
    return Line(fewest[:, None], least.astype(float), each)


def stages_of(group: Group) -> tuple[Ints, Flags, Flags]:
    """Every stage of choices that share one pp: its number, whether it is the first one, and
    whether it has the loss head."""
    pp = int(group.axes.pp[0])
    index = np.broadcast_to(np.arange(pp), (len(group), pp))
    head = 0 if group.schedule == "zbv" else pp - 1
    return index, index == 0, index == head


def rooms_of(space: Space, group: Group, line: Line) -> Rooms:
    """Rooms of choices that share one pp."""
    index, first, last = stages_of(group)
    pp = index.shape[1]
    ends = np.where(first, group.embedding_s[:, None], 0) + np.where(last, group.head_s[:, None], 0)
    most, forced, spare = np.full(index.shape, np.inf), np.zeros(index.shape), np.zeros(index.shape)
    if space.keeps("every_stage_fits"):
        most, forced, spare = _memory_rooms(space.job, group, line)
    return Rooms(
        group.layer_s[:, None],
        group.again_s[:, None],
        ends,
        most,
        forced,
        spare,
        chunks_of(space, group)[:, None],
        ((index == 0) | (index == pp - 1)).astype(np.int64) * (pp > 1),
    )


@dataclass(frozen=True)
class _Loads:
    """What the layers of a stage hold at least, KiB; arrays (choices, pp) or (choices, 1).

    Activations without any rounding up: never more than a stage holds.
    """

    flight: Array
    """Microbatches in flight."""
    saved: Ints
    """Of a layer and microbatch that recomputes, on the device."""
    saved_whole: Ints
    """The same where nothing is recomputed."""
    working: Ints
    """Beside one layer's backward pass."""


def _loads(job: Job, group: Group) -> _Loads:
    axes, (index, first, last) = group.axes, stages_of(group)
    # One layer for each of the chunks and halves: no division leaves a rest.
    unit = 2 * axes.interleaved
    whole = Stages(index, np.broadcast_to(unit[:, None], index.shape), first, last)
    how = (axes.pp, axes.interleaved, axes.microbatches, axes.schedule)
    flight = layers_in_flight(whole, *how) / unit[:, None]
    saved, working = memory.layer_kib(job, axes)
    if group.variant.partly:
        plain = replace(axes, recompute=np.full_like(axes.recompute, NONE))
        saved_whole, working_whole = memory.layer_kib(job, plain)
    else:
        saved_whole, working_whole = saved, working
    # What is offloaded is held on the host, but for the layers on their way.
    away = np.asarray(axes.offload_activations)
    saved, saved_whole = np.where(away, 0, saved), np.where(away, 0, saved_whole)
    least_working = np.minimum(working, working_whole)[:, None]
    return _Loads(flight, saved[:, None], saved_whole[:, None], least_working)


def _memory_rooms(job: Job, group: Group, line: Line) -> tuple[Array, Array, Array]:
    """What memory leaves: the most layers, and the line that layers to recompute are above."""
    loads, each = _loads(job, group), line.each
    room = largest_allocation_kib(job) + ROUNDED_KIB - line.least + each * line.fewest
    room = np.maximum(room - loads.working, 0.0)
    most = room / (each + loads.flight * loads.saved)
    gain = loads.flight * np.maximum(loads.saved_whole - loads.saved, 0)
    some = gain > 0
    gain = np.where(some, gain, 1.0)
    forced = np.where(some, (each + loads.flight * loads.saved_whole) / gain, 0.0)
    return most, forced, np.where(some, room / gain, 0.0)


def least_held_kib(space: Space, group: Group, line: Line, high: int) -> Array:
    """KiB that the fullest stage of each choice (which share one pp) allocates at least, whatever
    its split and recompute; infinite above ``high``. Bisected from below."""
    layers, loads = space.job.model.layers, _loads(space.job, group)
    always = line.least - line.each * line.fewest + loads.working - ROUNDED_KIB
    each = line.each + loads.flight * loads.saved
    chunks = chunks_of(space, group)[:, None]
    index, _, _ = stages_of(group)
    pp = index.shape[1]
    ends = ((index == 0) | (index == pp - 1)).astype(np.int64) * (pp > 1)

    def enough(kib: Array, places: Ints) -> Flags:
        room = np.maximum((kib[:, None] - always[places]) / each[places], 0.0)
        whole = np.floor(np.minimum(room, layers) * (1 + ROUNDING) + ROUNDING)
        found: Flags = whole_chunks(whole, chunks[places], ends[places]).sum(axis=1) >= layers
        return found

    least = np.full(len(group), np.inf)
    places = np.flatnonzero(enough(np.full(len(group), float(high)), np.arange(len(group))))
    low, top = np.zeros(len(places)), np.full(len(places), float(high))
    for _ in range(30):
        middle = (low + top) / 2
        fits = enough(middle, places)
        low, top = np.where(fits, low, middle), np.where(fits, middle, top)
    least[places] = low
    return least


def least_slowest(rooms: Rooms, layers: int, low: Array, high: Array) -> Array:
    """The least time of the slowest stage with room for ``layers``; infinite where ``high`` is too
    little. Bisected from below: never more than the least."""
    least = np.full(len(high), np.inf)
    enough = np.flatnonzero(rooms.layers(high).sum(axis=1) >= layers)
    if not len(enough):
        return least
    rooms, low, high = rooms.keep(enough), low[enough], high[enough]
    for _ in range(30):
        middle = (low + high) / 2
        fits = rooms.layers(middle).sum(axis=1) >= layers
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    least[enough] = low
    return least
