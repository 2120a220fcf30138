"""Outer choices: all of a layout but its split into stages and what each stage recomputes.

A pipeline is decided in two parts. The outer one is every axis of the search and the schedule;
each outer choice gets a bound that no split and no recompute can beat, from the cost model itself,
for many choices at once. What is left inside is stagewise.py's:

    pipeline >= factor (t_max + fixed) + rest              (Group.bounds)
    t_max    >= the least T with which the stages together have room for L layers (rooms.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from layoutopt.costmodel import stage_work, step
from layoutopt.costmodel.axes import FULL, NONE, SCHEDULES, Array, Axes, Flags, Ints, ints, take
from layoutopt.costmodel.once import gradient_pass
from layoutopt.costmodel.pipeline import Passes, zero_bubble_paths
from layoutopt.costmodel.stage_work import Ends, LayerKind
from layoutopt.optimizer import choices
from layoutopt.optimizer.pricing import axes_from, complete
from layoutopt.optimizer.question import AXES
from layoutopt.optimizer.shapes import SHAPE
from layoutopt.optimizer.space import Space

SLACK = 1e-9
"""Bounds and limits in floats are taken to be off by this much."""
_NO_FACTOR = 1e-12
_FEW = 500
"""Choices, sharded in every way, that are bounded as soon as it is known which are worth it."""


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
    hiding_s: tuple[Array, Array]
    """Passes of a layer that recomputes, which traffic hides behind: the forward pass, and the one
    that ends with its gradients."""

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
        hiding = (self.hiding_s[0][mask], self.hiding_s[1][mask])
        axes = take(self.axes, mask)
        return replace(self, columns=columns, axes=axes, hiding_s=hiding, **taken)

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

    def slowest_s(self, left_s: Array) -> Array:
        """The longest a stage may take where ``left_s`` are left for the pipeline; all there is at
        most."""
        most = self.layers * (self.layer_s + self.again_s) + self.embedding_s + self.head_s
        slowest: Array = most
        for factor, rest in self.bounds():
            # Where the slowest stage costs no more than any other, what is left has to be enough.
            within = (left_s - rest) / np.maximum(factor, _NO_FACTOR)
            slowest = np.minimum(slowest, within)
        return np.clip(slowest, 0.0, most) * (1 + SLACK)

    @property
    def share_s(self) -> Array:
        """A stage's even share of the work: the slowest one has at least as much."""
        share: Array = self.layers * self.layer_s + self.embedding_s + self.head_s
        return share / self.axes.pp

    def _with_fixed(self, factor: Array, rest: Array) -> tuple[tuple[Array, Array]]:
        """Messages and host of the slowest stage, and late messages, beside the rest."""
        return ((factor, rest + factor * self.fixed_s + self.late_s),)


def groups_of(
    space: Space,
    shapes: Ints,
    schedules: tuple[str, ...],
    able: str,
    worth: Callable[[Group], Flags] | None = None,
) -> Iterator[Group]:
    """All outer choices of ``shapes`` (rows of SHAPE), a group for each schedule and variant.

    ``worth``: of a group without any sharding, the choices that are worth every way to shard.
    """
    bare = _bare(space, shapes)
    for schedule in schedules:
        columns = bare
        if schedule != "1f1b":
            alone = (columns["vpp"] == 1) & (columns["pp"] > 1)
            if schedule == "zbv":
                alone &= space.job.model.layers >= 2 * columns["pp"]
            columns = _kept(columns, alone)
        maker = _Maker(space, schedule, columns)
        for variant in variants_of(space, able):
            mine = columns
            if worth is not None and len(columns["tp"]) * len(space.values["sharding"]) > _FEW:
                group = maker.group(variant)
                mine = group.keep(worth(group)).columns
                mine["mode"] = choices.with_recompute(mine["mode"], NONE)
            sharded = _sharded(space, mine)
            if len(sharded["tp"]):
                yield _Maker(space, schedule, sharded).group(variant)


def _bare(space: Space, shapes: Ints) -> dict[str, Ints]:
    """The shapes with every way to run a layer but recompute, which is left to the variants, and
    nothing sharded."""
    alike = {choices.with_recompute(code, NONE) for code in space.values["mode"]}
    places, mode = np.meshgrid(np.arange(len(shapes)), ints(sorted(alike)), indexing="ij")
    columns = {axis: shapes[places.ravel(), number] for number, axis in enumerate(SHAPE)}
    columns |= {"sharding": np.zeros_like(mode.ravel()), "mode": mode.ravel()}
    legal = space.exchanges(columns["tp"], columns["cp"], columns["mode"])
    return _kept(columns, legal & space.moves(columns["pp"], columns["mode"]))


def _sharded(space: Space, columns: dict[str, Ints]) -> dict[str, Ints]:
    """Every legal way to shard the choices: shape by shape, then by sharding, then by mode."""
    codes, rows = ints(space.values["sharding"]), np.arange(len(columns["tp"]))
    shapes = np.stack([columns[axis] for axis in SHAPE])
    another = np.any(shapes[:, 1:] != shapes[:, :-1], axis=0)
    number = np.concatenate([np.zeros(min(len(rows), 1), np.int64), np.cumsum(another)])
    row, code = (grid.ravel() for grid in np.meshgrid(rows, codes, indexing="ij"))
    order = np.lexsort((row, code, number[row]))
    free = {axis: column[row[order]] for axis, column in columns.items()}
    return complete(space, {**free, "sharding": code[order]})


def _kept(columns: dict[str, Ints], mask: Flags) -> dict[str, Ints]:
    return {axis: column[mask] for axis, column in columns.items()}


class _Maker:
    """Groups of the same choices that recompute one way or another."""

    def __init__(self, space: Space, schedule: str, columns: dict[str, Ints]) -> None:
        self.space, self.schedule, self.columns = space, schedule, columns
        axes = axes_from(space, columns)
        self.axes = replace(axes, schedule=np.full_like(axes.tp, SCHEDULES[schedule]))
        self._kinds: dict[int, LayerKind] = {}

    def _kind(self, code: int) -> LayerKind:
        if code not in self._kinds:
            codes = np.full_like(self.axes.tp, code)
            self._kinds[code] = stage_work.layer_kind(self.space.job, self.axes, codes)
        return self._kinds[code]

    def _wide(self, values: Array | float) -> Array:
        return np.broadcast_to(np.asarray(values, dtype=float), self.axes.tp.shape)

    @cached_property
    def _always_s(self) -> tuple[Ends, Array, Array]:
        """The ends, a microbatch's fixed seconds, and late messages."""
        job, axes = self.space.job, self.axes
        fixed = stage_work.message_seconds(job, axes) + job.software.microbatch_overhead_s
        return stage_work.end_seconds(job, axes), fixed, step.late_seconds(job, axes)

    def group(self, variant: Variant) -> Group:
        """The choices that may recompute this way."""
        job, wide, axes = self.space.job, self._wide, self.axes
        (ends, fixed, late), blocks = self._always_s, job.model.mtp_layers
        first = self._kind(NONE if variant.partly else variant.code)
        ahead = self._kind(variant.code)
        mode = choices.with_recompute(self.columns["mode"], variant.code)
        legal = np.isin(mode, ints(self.space.values["mode"]))
        if variant.partly:
            legal &= np.isin(self.columns["mode"], ints(self.space.values["mode"]))
        group = Group(
            schedule=self.schedule,
            variant=variant,
            columns={**self.columns, "mode": mode},
            axes=replace(axes, recompute=np.full_like(axes.tp, variant.code)),
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
            hiding_s=(wide(ahead.terms.forward), wide(gradient_pass(axes)(ahead))),
        )
        return group if legal.all() else group.keep(legal)
