"""Outer choices: all of a layout but its split into stages and what each stage recomputes.

A pipeline is decided in two parts. The outer one is every axis of the search and the schedule; here
each outer choice gets a bound that no split and no recompute can beat, from the cost model itself,
for many choices at once. What is left inside is stagewise.py's:

    pipeline >= factor (t_max + fixed) + rest              (Group.bounds)
    t_max    >= the least T with which the stages together have room for L layers

A stage has room for the whole layers whose seconds stay within T and whose bytes stay within
memory, with as much recompute as memory forces; bytes are bounded from below by a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from layoutopt.costmodel import memory, stage_work, step
from layoutopt.costmodel.axes import FULL, NONE, SCHEDULES, Array, Axes, Flags, Ints, ints, take
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.costmodel.pipeline import Passes, layers_in_flight, zero_bubble_paths
from layoutopt.costmodel.stage_work import LayerKind
from layoutopt.costmodel.stages import Stages
from layoutopt.optimizer import choices
from layoutopt.optimizer.pricing import axes_from, complete
from layoutopt.optimizer.question import AXES
from layoutopt.optimizer.shapes import SHAPE
from layoutopt.optimizer.space import Space

ROUNDING = 1e-9
"""What whole layers may be off by in floats: rooms are counted up, bounds down."""
_ROUNDED_KIB = 8
"""More than the parts of a stage's state are rounded up by."""


@dataclass(frozen=True)
class Variant:
    """What a search may recompute: every layer by ``code``, or ``counts`` of each stage in full."""

    code: int
    counts: str = "all"
    """all: every layer; each: a number for each stage; same: one number for all of them."""

    @property
    def partly(self) -> bool:
        """Whether some layers may keep everything while others recompute."""
        return self.counts != "all"


def variants_of(space: Space, able: str) -> tuple[Variant, ...]:
    """Ways to recompute that the axis ``mode`` leaves and the framework has (``able``)."""
    codes = sorted({choices.mode(code).recompute for code in space.values["mode"]})
    if able == "whole" or not {NONE, FULL} <= set(codes):
        return tuple(Variant(code) for code in codes)
    # Prediction blocks recompute wherever some layer does: none at all is then a way of its own.
    covered = (FULL,) if space.job.model.mtp_layers else (NONE, FULL)
    rest = tuple(Variant(code) for code in codes if code not in covered)
    return (Variant(FULL, able), *rest)


@dataclass(frozen=True)
class Group:
    """Outer choices of one schedule and variant, as arrays, with what their bounds are made of."""

    schedule: str
    variant: Variant
    columns: dict[str, Ints]
    axes: Axes
    layers: int
    """Of the model."""
    layer_s: Array
    """Seconds of a layer and microbatch: one that keeps everything, where some may."""
    again_s: Array
    """What a layer that recomputes takes beyond it; 0 where all are alike."""
    embedding_s: Array
    head_s: Array
    fixed_s: Array
    """Messages and host of a microbatch on each stage."""
    late_s: Array
    """Messages that nothing hides, once a step."""
    forward_s: Array
    """Of a layer: its forward pass."""
    weight_s: Array
    """Of a layer: its weights' gradients."""
    ends_forward_s: Array
    ends_weight_s: Array

    def __len__(self) -> int:
        return len(self.layer_s)

    def keep(self, mask: Flags | Ints) -> Group:
        """Some of the choices."""
        taken = {
            item.name: getattr(self, item.name)[mask]
            for item in fields(self)
            if isinstance(getattr(self, item.name), np.ndarray)
        }
        columns = {axis: column[mask] for axis, column in self.columns.items()}
        return replace(self, columns=columns, axes=take(self.axes, mask), **taken)

    def chosen(self, place: int) -> dict[str, int]:
        """The axes of one choice."""
        return {axis: int(self.columns[axis][place]) for axis in AXES}

    @property
    def plain(self) -> Flags:
        """Stages of one chunk under 1F1B, whose time depends on their order."""
        one: Flags = (self.axes.pp > 1) & (self.axes.interleaved == 1)
        return one if self.schedule == "1f1b" else np.zeros_like(one)

    @property
    def shared(self) -> bool:
        """Whether the pipeline waits for what the mean stage does (zero bubble)."""
        return self.schedule.startswith("zb")

    @property
    def share(self) -> Array:
        """Share of the other stages' microbatch that the pipeline waits for, where their order does
        not matter: b in (m - b) t_max + b (all stages)."""
        if self.shared:
            return np.zeros(len(self))
        return np.where(self.axes.pp > 1, 1.0 / self.axes.interleaved, 0.0)

    @property
    def everything_s(self) -> Array:
        """One microbatch on all stages, none of their layers recomputed beyond the rest."""
        layers = self.layers * self.layer_s + self.embedding_s + self.head_s
        everything: Array = layers + self.axes.pp * self.fixed_s
        return everything

    def mean_passes(self, recomputed: int = 0) -> Passes:
        """The mean stage's passes, with so many layers that recompute beyond the rest."""
        forward = self.layers * self.forward_s + self.ends_forward_s
        weights = self.layers * self.weight_s + self.ends_weight_s
        both = self.layers * self.layer_s + self.embedding_s + self.head_s
        inputs = both + recomputed * self.again_s - forward - weights
        pp, half = self.axes.pp, self.fixed_s / 2
        return Passes(forward / pp + half, inputs / pp + half, weights / pp)

    def waits(self, recomputed: int = 0) -> tuple[Array, Array]:
        """What a zero-bubble schedule waits for is the larger of these."""
        axes = self.axes
        return zero_bubble_paths(
            self.mean_passes(recomputed), axes.schedule, axes.pp, axes.microbatches
        )

    def bounds(self) -> tuple[tuple[Array, Array], ...]:
        """(factor, rest): the pipeline takes factor t_max + rest at least, t_max without messages.

        Under plain 1F1B, with s the slowest stage, all three from `pipeline.one_f_one_b_seconds`:
        2 S - k t_s, where the stages before s take s t_max at most, so that S is all but (s + 1)
        t_max: 2 (all stages) + (m - p - 1) t_max; and S - k f_s, where a stage's forward pass is no
        more of it than a layer's is of a layer. Else the time is such a sum.
        """
        m, pp, everything = self.axes.microbatches, self.axes.pp, self.everything_s
        if self.shared:
            rest = np.maximum(*self.waits())
            return self._with_fixed(m.astype(float), rest)
        factor = m - self.share
        summed = self._with_fixed(factor, self.share * everything)
        if not self.plain.any():
            return summed
        ahead = np.minimum(pp, m) - 1
        forward = ahead * self.forward_s / self.layer_s
        (waiting,) = self._with_fixed(m - 1 - forward, everything)
        turns = np.maximum(m - 1.0 - pp, 0.0)
        (both,) = self._with_fixed(turns, np.where(m > pp, 2, 1) * everything)
        (usual,) = summed
        return tuple(
            (np.where(self.plain, one[0], usual[0]), np.where(self.plain, one[1], usual[1]))
            for one in (waiting, both)
        )

    def _with_fixed(self, factor: Array, rest: Array) -> tuple[tuple[Array, Array]]:
        """Messages and host of the slowest stage, and late messages, beside the rest."""
        return ((factor, rest + factor * self.fixed_s + self.late_s),)


def groups_of(space: Space, shapes: Ints, schedules: tuple[str, ...], able: str) -> Iterator[Group]:
    """All outer choices of ``shapes`` (rows of SHAPE)."""
    columns = _columns(space, shapes)
    for schedule in schedules:
        kept = columns
        if schedule != "1f1b":
            alone = (columns["vpp"] == 1) & (columns["pp"] > 1)
            if schedule == "zbv":
                alone &= space.job.model.layers >= 2 * columns["pp"]
            kept = {axis: column[alone] for axis, column in columns.items()}
        if not len(kept["tp"]):
            continue
        axes = axes_from(space, kept)
        axes = replace(axes, schedule=np.full_like(kept["tp"], SCHEDULES[schedule]))
        yield from _variants(space, kept, axes, schedule, able)


def _columns(space: Space, shapes: Ints) -> dict[str, Ints]:
    """Every legal completion of the shapes by the axes that a shape leaves open; recompute is
    left to the variants."""
    rest = [axis for axis in AXES if axis not in SHAPE]
    alike = {choices.with_recompute(code, NONE) for code in space.values["mode"]}
    values = {**space.values, "mode": tuple(sorted(alike))}
    grids = np.meshgrid(
        np.arange(len(shapes)), *(ints(values[axis]) for axis in rest), indexing="ij"
    )
    place, *others = (grid.ravel() for grid in grids)
    free = dict(zip(rest, others, strict=True))
    free |= {axis: shapes[place, number] for number, axis in enumerate(SHAPE)}
    return complete(space, free)


def _variants(
    space: Space, columns: dict[str, Ints], axes: Axes, schedule: str, able: str
) -> Iterator[Group]:
    job = space.job
    ends = stage_work.end_seconds(job, axes)
    fixed = stage_work.message_seconds(job, axes) + job.software.microbatch_overhead_s
    late = step.late_seconds(job, axes)
    kinds: dict[int, LayerKind] = {}

    def wide(values: Array | float) -> Array:
        return np.broadcast_to(np.asarray(values, dtype=float), axes.tp.shape)

    def kind(code: int) -> LayerKind:
        if code not in kinds:
            kinds[code] = stage_work.layer_kind(job, axes, np.full_like(axes.tp, code))
        return kinds[code]

    for variant in variants_of(space, able):
        told = np.full_like(axes.tp, variant.code)
        first, blocks = kind(NONE) if variant.partly else kind(variant.code), job.model.mtp_layers
        ahead = kind(variant.code)
        mode = choices.with_recompute(columns["mode"], variant.code)
        legal = np.isin(mode, ints(space.values["mode"]))
        if variant.partly:
            legal &= np.isin(columns["mode"], ints(space.values["mode"]))
        group = Group(
            schedule=schedule,
            variant=variant,
            columns={**columns, "mode": mode},
            axes=replace(axes, recompute=told),
            layers=job.model.layers,
            layer_s=wide(first.total),
            again_s=wide(ahead.total) - wide(first.total),
            embedding_s=wide(ends.embedding),
            head_s=wide(ends.head + blocks * ahead.total),
            fixed_s=wide(fixed),
            late_s=wide(late),
            forward_s=wide(first.terms.forward),
            weight_s=wide(first.terms.weight),
            ends_forward_s=wide(ends.forward + blocks * ahead.terms.forward),
            ends_weight_s=wide(ends.weight + blocks * ahead.terms.weight),
        )
        yield group if legal.all() else group.keep(legal)


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
        whole: Array = np.maximum(np.floor(room * (1 + ROUNDING) + ROUNDING), 0.0)
        return whole


def rooms_of(space: Space, group: Group, fewest: Ints) -> Rooms:
    """Rooms of choices that share one pp, with ``fewest`` layers on every stage at least."""
    pp = int(group.axes.pp[0])
    index = np.arange(pp)[None, :]
    head = 0 if group.schedule == "zbv" else pp - 1
    shape = (len(group), pp)
    first, last = (np.broadcast_to(flags, shape) for flags in (index == 0, index == head))
    ends = np.where(first, group.embedding_s[:, None], 0) + np.where(last, group.head_s[:, None], 0)
    most, forced, spare = np.full(shape, np.inf), np.zeros(shape), np.zeros(shape)
    if space.keeps("every_stage_fits"):
        most, forced, spare = _memory_rooms(space.job, group, np.broadcast_to(index, shape), fewest)
    return Rooms(group.layer_s[:, None], group.again_s[:, None], ends, most, forced, spare)


def _memory_rooms(job: Job, group: Group, index: Ints, fewest: Ints) -> tuple[Array, Array, Array]:
    """What memory leaves: the most layers, and the line that layers to recompute are above.

    State on the chord of its (concave) growth with the layers, activations without any rounding
    up: never more than a stage of at least ``fewest`` layers holds.
    """
    axes, layers = group.axes, job.model.layers
    head = np.zeros_like(axes.pp) if group.schedule == "zbv" else axes.pp - 1
    first, last = index == 0, index == head[:, None]

    def state(count: Ints) -> Ints:
        listed = Stages(index, np.broadcast_to(count[:, None], index.shape), first, last)
        return memory.stage_state(job, axes, listed).total

    least = state(fewest)
    each = np.maximum(state(fewest + layers) - least - _ROUNDED_KIB, 0) / layers
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
    room = largest_allocation_kib(job) + _ROUNDED_KIB - least + each * fewest[:, None]
    room = np.maximum(room - np.minimum(working, working_whole)[:, None], 0.0)
    most = room / (each + flight * saved[:, None])
    gain = flight * np.maximum(saved_whole - saved, 0)[:, None]
    some = gain > 0
    gain = np.where(some, gain, 1.0)
    forced = np.where(some, (each + flight * saved_whole[:, None]) / gain, 0.0)
    return most, forced, np.where(some, room / gain, 0.0)


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
