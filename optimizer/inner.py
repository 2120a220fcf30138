"""The tables of an outer choice's stages: what each may hold, what it takes, what fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel import gradient_sync, memory, once
from layoutopt.costmodel.axes import Array, Axes, Flags, Ints, ints, take
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.offload import largest_host_kib
from layoutopt.costmodel.pipelines import pipelines_of
from layoutopt.costmodel.rules import pipeline_fits
from layoutopt.costmodel.stages import Stages, even_split
from layoutopt.optimizer.outer import SLACK, Group
from layoutopt.optimizer.space import Space, layout_of
from layoutopt.optimizer.stagewise import Chain, Late, Row, Stagewise

HUGE = 2**40
"""More layers than there are."""
_HALVINGS = 30


@dataclass(frozen=True)
class Part:
    """One outer choice of one job."""

    space: Space
    group: Group
    place: int


def problems_of(
    space: Space, group: Group, place: int, most_layers: Ints, most_s: float = math.inf
) -> Iterator[Stagewise]:
    """The inner problems of one outer choice: one, or one for each number of layers that all
    stages recompute alike. ``most_layers``: what each stage has room for below the cut-off;
    ``most_s``: pipelines alone that take longer are not wanted."""
    for (problem,) in shared_problems((Part(space, group, place),), most_layers, most_s):
        yield problem


def shared_problems(
    parts: Sequence[Part], most_layers: Ints, most_s: float = math.inf
) -> Iterator[tuple[Stagewise, ...]]:
    """The same for several jobs that run one layout: tables whose rows fit in all of them, with the
    seconds of each. The choices differ in the number of microbatches alone. ``most_s`` is of the
    first job."""
    one = parts[0]
    ranges = layer_ranges(one.space, one.group, one.place, most_layers)
    if any(not values for values in ranges):
        return
    if one.group.variant.counts != "same":
        yield from _problems(parts, ranges)
        return
    # Megatron-LM counts the layers to recompute within a chunk.
    chunks = int(one.group.axes.interleaved[one.place])
    fewest = chunks if one.space.job.model.mtp_layers else 0
    numbers = np.arange(fewest, max(map(max, ranges)) + chunks, chunks)
    yield from _counted_problems(parts, ranges, numbers, most_s)


def layer_ranges(space: Space, group: Group, place: int, most_layers: Ints) -> list[list[int]]:
    """Numbers of layers that each stage may hold. Chunks that take turns hold whole layers, as
    many in each; the embedding and the head stand in the place of one (rules.pipeline_fits)."""
    layers, pp = space.job.model.layers, len(most_layers)
    able = pipelines_of(space.job.software.framework)
    if space.question.pipeline.splits == "even" or able.splits == "even":
        even = even_split(layers, pp)
        return [[n] if n <= most else [] for n, most in zip(even, most_layers, strict=True)]
    chunks = int(group.axes.interleaved[place])
    fewest = int(group.axes.chunks[place]) if chunks == 1 else 1
    room = int(most_layers.sum())
    ranges = []
    for stage, most in enumerate(most_layers.tolist()):
        least = max(fewest, layers - (room - most))
        ends = {0, 1} if pp > 1 and stage in (0, pp - 1) else {0}
        ranges.append(
            [n for n in range(least, most + 1) if any((n + e) % chunks == 0 for e in ends)]
        )
    return ranges


def _problems(parts: Sequence[Part], ranges: list[list[int]]) -> Iterator[tuple[Stagewise, ...]]:
    """The rows that fit; nothing where a stage has none."""
    stage, layers, again = _combinations(parts[0].group, ranges)
    stages = _stages(parts[0].group, len(ranges), stage, layers, again)
    fits = _fit_all(parts, stages)
    # Recompute costs time and frees memory: beyond what fits, more of it never helps.
    needed = fits & _fewest(stage, layers, again, fits)
    if len(np.unique(stage[needed])) < len(ranges):
        return
    yield from _listed(parts, len(ranges), stages.keep(needed), np.zeros(int(needed.sum()), int))


def _counted_problems(
    parts: Sequence[Part], ranges: list[list[int]], numbers: Ints, most_s: float
) -> Iterator[tuple[Stagewise, ...]]:
    """The same for each of ``numbers``, rising, of layers that every stage recomputes if it has so
    many. Memory and seconds of all of them are asked for at once."""
    group, pp = parts[0].group, len(ranges)
    pairs = ints([(stage, layers) for stage, values in enumerate(ranges) for layers in values])
    stage, layers = (np.tile(column, len(numbers)) for column in pairs.T)
    again = np.minimum(np.repeat(numbers, len(pairs)), layers)
    stages = _stages(group, pp, stage, layers, again)
    fits = np.reshape(_fit_all(parts, stages), (len(numbers), len(pairs)))
    firsts = np.searchsorted(pairs[:, 0], np.arange(pp))
    wanted: Flags = np.all(np.logical_or.reduceat(fits, firsts, axis=1), axis=1)
    # Recompute costs time and frees memory: beyond the number with which all fits it never helps.
    every = np.all(fits, axis=1)
    wanted &= np.cumsum(every) - every == 0
    if math.isfinite(most_s):
        told = again.reshape(fits.shape)
        least = _least_counted_s(group, parts[0].place, pairs.T, told, fits, firsts)
        wanted &= least <= most_s
    kept = (fits & wanted[:, None]).ravel()
    if wanted.any():
        number = np.repeat(np.arange(len(numbers)), len(pairs))
        yield from _listed(parts, pp, stages.keep(kept), number[kept])


def _least_counted_s(
    group: Group, place: int, pairs: Ints, again: Ints, fits: Flags, firsts: Ints
) -> Array:
    """What the pipeline takes at least with each number of recomputed layers, of the rows (stage,
    layers) in ``pairs`` that fit with it: the least slowest stage with room for all layers."""
    stage, layers = pairs
    many = group.keep(np.full(len(again), place))
    fewest = np.add.reduce(np.minimum.reduceat(np.where(fits, again, HUGE), firsts, axis=1), axis=1)
    # Whatever stands where: so many layers recompute, which is work like any other.
    many = replace(many, head_s=many.head_s + many.again_s * fewest)
    head = 0 if group.schedule == "zbv" else len(firsts) - 1
    seconds = layers * group.layer_s[place] + again * group.again_s[place]
    seconds = seconds + np.where(stage == 0, group.embedding_s[place], 0.0)
    seconds = seconds + np.where(stage == head, group.head_s[place], 0.0)

    def room(slowest: Array) -> Ints:
        held = np.where(fits & (seconds <= slowest[:, None]), layers, -HUGE)
        whole: Ints = np.add.reduce(np.maximum.reduceat(held, firsts, axis=1), axis=1)
        return whole

    low, high = np.zeros(len(again)), np.max(np.where(fits, seconds, 0.0), axis=1)
    never = room(high) < group.layers
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = room(middle) >= group.layers
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    least = np.max([factor * low + rest for factor, rest in many.bounds()], axis=0)
    return np.where(never, np.inf, least * (1 - SLACK))


def _listed(
    parts: Sequence[Part], pp: int, stages: Stages, number: Ints
) -> Iterator[tuple[Stagewise, ...]]:
    """A problem for each ``number`` that rows have, in their order, for each of ``parts``."""
    again = np.zeros_like(stages.layers) if stages.recomputed is None else stages.recomputed
    told = [column[0].tolist() for column in (stages.index, stages.layers, again)]
    found: list[list[Stagewise]] = []
    for part in parts:
        tables: dict[int, list[list[Row]]] = {}
        columns = _columns(part.space.job, part.group, part.place, _axes(part), stages)
        for which, at, *values in zip(number.tolist(), *told, *columns, strict=True):
            tables.setdefault(which, [[] for _ in range(pp)])[at].append(Row(*values))
        rows = (tuple(map(tuple, table)) for table in tables.values())
        found.append([_stagewise(part.group, part.place, table) for table in rows])
    yield from zip(*found, strict=True)


def _stages(group: Group, pp: int, stage: Ints, layers: Ints, again: Ints) -> Stages:
    """Rows as stages of one layout each."""
    head = 0 if group.schedule == "zbv" else pp - 1
    return Stages(
        stage[None], layers[None], stage[None] == 0, stage[None] == head,
        again[None] if group.variant.partly else None,
    )  # fmt: skip


def _fit_all(parts: Sequence[Part], stages: Stages) -> Flags:
    """Rows that fit in every part."""
    fits: Flags = np.logical_and.reduce([_fits(part.space, _axes(part), stages) for part in parts])
    return fits


def _axes(part: Part) -> Axes:
    return take(part.group.axes, ints([part.place]))


def _columns(
    job: Job, group: Group, place: int, axes: Axes, stages: Stages
) -> tuple[list[float], ...]:
    """Seconds, cost, forward pass, recompute, tail and traffic left of each row."""
    stage, layers = stages.index[0], stages.layers[0]
    again = np.zeros_like(layers) if stages.recomputed is None else stages.recomputed[0]
    recompute = again * group.again_s[place]
    seconds = layers * group.layer_s[place] + recompute
    seconds = seconds + np.where(stages.first[0], group.embedding_s[place], 0.0)
    seconds = seconds + np.where(stages.last[0], group.head_s[place], 0.0)
    cost = group.share[place] * seconds
    if group.plain[place]:
        seconds, cost = seconds + group.fixed_s[place], np.zeros_like(seconds)
    told = None if stages.recomputed is None else stages.recomputed.T
    rows = Stages(stages.index.T, stages.layers.T, stages.first.T, stages.last.T, told)
    left, tail = once.left_alone(job, axes, rows), once.longest_optimizer(job, axes, rows)
    tail = np.broadcast_to(tail, layers.shape)
    tied = gradient_sync.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp)
    cost = cost + np.where(stage == 0, left + tied, 0.0)
    forward = layers * group.forward_s[place]
    return tuple(values.tolist() for values in (seconds, cost, forward, recompute, tail, left))


def _stagewise(group: Group, place: int, tables: tuple[tuple[Row, ...], ...]) -> Stagewise:
    """The objective of the rows: the pipeline of step.bubble_seconds, and what comes once."""
    one = group.keep(ints([place]))
    late = None
    if once.waits_for_later(one.axes)[0]:
        start = float(once.head_start(one.axes)[0])
        fixed = float(one.fixed_s[0]) if one.plain[0] else 0.0
        late = Late(start, (fixed,) * len(tables))
    return replace(_pipeline(one, tables), late=late)


def _pipeline(one: Group, tables: tuple[tuple[Row, ...], ...]) -> Stagewise:
    """The pipeline of one outer choice."""
    fixed, late = float(one.fixed_s[0]), float(one.late_s[0])
    m, pp, layers = int(one.axes.microbatches[0]), int(one.axes.pp[0]), one.layers
    bounds = tuple((float(factor[0]), float(rest[0])) for factor, rest in one.bounds())
    if one.plain[0]:
        # Here a stage's seconds are with its messages.
        bounds = tuple((factor, rest - factor * fixed) for factor, rest in bounds)
        return Stagewise(layers, 0.0, tables, late, one_f_one_b_chains(pp, m), bounds)
    share = float(one.share[0])
    constant = late + (share * pp + m - share) * fixed
    if not one.shared:
        return Stagewise(layers, m - share, tables, constant)
    none = (0.0,) * pp
    chains = []
    for told, with_one in zip(one.waits(), one.waits(1), strict=True):
        again = float(one.again_s[0])
        slope = float(with_one[0] - told[0]) / again if again else 0.0
        chains.append(Chain(float(told[0]), none, none, (slope,) * pp))
    return Stagewise(layers, float(m), tables, constant, tuple(chains), bounds)


def one_f_one_b_chains(pp: int, m: int) -> tuple[Chain, ...]:
    """The paths of pipeline.one_f_one_b_seconds, for each stage s."""
    none, found = (0.0,) * pp, []
    for s in range(pp):
        later, ahead = pp - s - 1, min(pp - s - 1, m - 1)
        here = tuple(-float(ahead) if stage == s else 0.0 for stage in range(pp))
        found.append(Chain(0.0, (*(1.0,) * s, float(m), *(0.0,) * later), none, none))
        if later:
            found.append(Chain(0.0, (*(1.0,) * s, float(m), *(1.0,) * later), here, none))
        if later and m > pp - s:
            both = (*(1.0,) * s, float(m - ahead), *(2.0,) * later)
            found.append(Chain(0.0, both, none, none))
    return tuple(found)


def _combinations(group: Group, ranges: list[list[int]]) -> tuple[Ints, Ints, Ints]:
    """Stage, layers and layers recomputed of every row, memory ignored."""
    found = []
    for stage, values in enumerate(ranges):
        for layers in values:
            if group.variant.counts == "each":
                found += [(stage, layers, again) for again in range(layers + 1)]
            else:
                found.append((stage, layers, 0))
    stage, layers, again = ints(found).T
    return stage, layers, again


def _fits(space: Space, axes: Axes, stages: Stages) -> Flags:
    if not space.keeps("every_stage_fits"):
        return np.ones(stages.layers.shape[1], dtype=bool)
    held = memory.stage_bytes(space.job, axes, stages)
    fits = held.allocated[0] <= memory.largest_allocation_kib(space.job)
    host: Flags = np.broadcast_to(held.host, held.allocated.shape)[0] <= largest_host_kib(space.job)
    found: Flags = fits & host
    return found


def _fewest(stage: Ints, layers: Ints, again: Ints, fits: Flags) -> Flags:
    """Rows that recompute least among those with equal stage and layers that fit."""
    _, group = np.unique(np.stack([stage, layers]), axis=1, return_inverse=True)
    group = group.ravel()
    least = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, group[fits], again[fits])
    flags: Flags = again == least[group]
    return flags


def layout_from(space: Space, group: Group, place: int, rows: tuple[Row, ...]) -> Layout:
    """The layout of an outer choice and its rows, said as plainly as it can be."""
    job, chosen = space.job, group.chosen(place)
    split, again = (tuple(getattr(row, name) for row in rows) for name in ("layers", "recomputed"))
    values: dict[str, object] = {}
    even = split == even_split(job.model.layers, len(split))
    if not even or not pipeline_fits(job, chosen["pp"], chosen["vpp"]):
        values["layers_per_stage"] = split
    if group.schedule != "1f1b":
        values["schedule"] = group.schedule
    if group.variant.partly:
        values |= _recompute(job, split, again, same=group.variant.counts == "same")
    return replaced(layout_of(space.question, chosen), values)


def replaced(layout: Layout, values: dict[str, object]) -> Layout:
    """The layout with some of its fields changed."""
    return Layout(**{**vars(layout), **values})


def _recompute(
    job: Job, split: tuple[int, ...], again: tuple[int, ...], *, same: bool
) -> dict[str, object]:
    """None, all, one number, or a number for each stage; with prediction blocks, no layer but
    those blocks too."""
    if not any(again) and not job.model.mtp_layers:
        return {"recompute": RECOMPUTE[0], "recompute_layers": None}
    if again == split:
        return {"recompute": "full", "recompute_layers": None}
    number = max(again)
    if same or all(k == min(number, n) for k, n in zip(again, split, strict=True)):
        return {"recompute": "full", "recompute_layers": number}
    return {"recompute": "full", "recompute_layers": again}
