"""What a choice rests on, in sentences with numbers: what binds, and what was traded for what.

What one layout needs and takes is said elsewhere, for any layout; here is what only a search can
say: what a better machine would change, and what the neighbours of the choice would cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.estimate import estimate, memory_of, step_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout, Recompute, Schedule
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.stages import even_split
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.optimizer.question import KEYS, Question
from layoutopt.optimizer.space import layout_of
from layoutopt.optimizer.survey import Found, Seen
from layoutopt.units import format_bytes, format_seconds

NOTABLE = 0.005
"""A gain below this is not worth more memory, and not worth a sentence."""
MORE = 0.1
"""How much faster a part of the machine is made, to see what it is worth."""


@dataclass(frozen=True)
class Around:
    """What stands around a proved answer."""

    others: Found
    """The next best even layouts."""
    misfits: Found
    """Even layouts that are faster and do not fit."""
    near: tuple[Estimate, ...] = ()
    """Faster layouts of any split and recompute that little more memory would let through."""
    wider: bool = False
    """Alternatives were looked for beside even layouts."""


def explain(question: Question, plan: Estimate, around: Around | None = None) -> tuple[str, ...]:
    """What binds, what one change at a time would cost, ties.

    ``around`` is of a survey, which an unproved answer goes without.
    """
    job = question.job
    sentences = [_machine(job, plan)]
    if around is not None:
        sentences.append(_memory(question, plan, around))
    sentences += _changes(question, plan)
    if around is not None and around.wider:
        sentences.append(
            "Next best: looked for, with every split, recompute and schedule, at the tp, cp, pp "
            "and ep whose even layouts are fastest or lack least memory; others may come between."
        )
    if around is not None and around.others.ties:
        sentences.append(_tied(around.others))
    return tuple(sentences)


def _machine(job: Job, plan: Estimate) -> str:
    """What a tenth more of each part of the machine is worth on this layout."""
    shorter = {}
    for name, cluster in _better(job.cluster):
        step = step_of(replace(job, cluster=cluster), plan.layout)
        shorter[name] = 1 - step.time_s / plan.step.time_s
    order = sorted(shorter, key=lambda name: (-shorter[name], name))
    shares = ", ".join(f"{name} {max(shorter[name], 0.0):.1%}" for name in order)
    return f"Binds: {order[0]}. A step would be shorter with {MORE:.0%} more of it: {shares}."


def _better(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """The cluster with one part faster, and the part's name."""
    gpu = cluster.gpu
    peaks = {name: rate * (1 + MORE) for name, rate in gpu.peak_flops_per_s.items()}
    faster = gpu.model_copy(update={"peak_flops_per_s": peaks})
    yield "matrix FLOP/s", cluster.model_copy(update={"gpu": faster})
    memory = gpu.memory_bytes_per_s * (1 + MORE)
    faster = gpu.model_copy(update={"memory_bytes_per_s": memory})
    yield "memory bandwidth", cluster.model_copy(update={"gpu": faster})
    for number, level in enumerate(cluster.levels):
        rate = level.bytes_per_s_per_gpu_one_way * (1 + MORE)
        levels = list(cluster.levels)
        levels[number] = level.model_copy(update={"bytes_per_s_per_gpu_one_way": rate})
        yield f"{level.name} bandwidth", cluster.model_copy(update={"levels": tuple(levels)})


def least_lacking(found: Found, wall_s: float) -> Seen | None:
    """Of the even layouts that do not fit and are worth more memory, the one that lacks least."""
    worth = [one for one in found.layouts if one.wall_s < wall_s * (1 - NOTABLE)]
    return min(worth, key=lambda one: (one.over_kib, one.wall_s), default=None)


def _memory(question: Question, plan: Estimate, around: Around) -> str:
    """Whether more memory per GPU would change the choice, and from how much on."""
    found, wall, job = around.misfits, plan.run.wall_time_s, question.job
    even, near = least_lacking(found, wall), list(around.near)
    if even is not None:
        near.append(estimate(job, layout_of(question, even.chosen)))
    # What lacks the host's memory alone, for offload, is none of them.
    near = [one for one in near if _lacks(one) > 0]
    if not near:
        if even is not None or not found.complete:
            return "More memory: no layout was found that would use it to be faster."
        return (
            "More memory would not change the choice: of all even layouts that need it, none is "
            f"{NOTABLE:.1%} faster."
        )
    least = min(near, key=lambda one: (_lacks(one), one.run.wall_time_s))
    words = whole_difference(job, least, plan)
    text = f"More memory would change the choice: {_with_more(least)}, and {words} would make "
    text += f"the run {_gain(least, plan):.1%} shorter"
    if even is not None:
        fastest = estimate(job, layout_of(question, found.layouts[0].chosen))
        if _lacks(fastest) > _lacks(least):
            gain, over = _gain(fastest, plan), _with_more(fastest)
            text += f"; the fastest even layout of all, by {gain:.1%}, needs {over}"
    return f"{text}."


def _lacks(one: Estimate) -> int:
    """Bytes that the worst stage of a layout that does not fit lacks."""
    return one.memory.worst.reserved - one.memory.usable_bytes


def _with_more(one: Estimate) -> str:
    return f"{format_bytes(_lacks(one))} more on stage {one.memory.worst.stage}"


def _gain(one: Estimate, plan: Estimate) -> float:
    """By how much its run is shorter."""
    return 1 - one.run.wall_time_s / plan.run.wall_time_s


def whole_difference(job: Job, other: Estimate, plan: Estimate) -> str:
    """`difference`, with the split and with how many layers recompute in full."""
    told, layers = difference(other.layout, plan.layout), job.model.layers
    splits = [
        one.layout.layers_per_stage or even_split(layers, one.layout.pp) for one in (other, plan)
    ]
    again = [
        _recomputed(one.layout, split) for one, split in zip((other, plan), splits, strict=True)
    ]
    parts = [told] if told else []
    if other.layout.recompute == plan.layout.recompute and again[0] != again[1]:
        parts.append(f"full recompute of {again[0]} layers instead of {again[1]}")
    if splits[0] != splits[1] and other.layout.pp == plan.layout.pp:
        parts.append("another split of the layers")
    return ", ".join(parts)


def _recomputed(layout: Layout, split: tuple[int, ...]) -> int:
    """Layers that recompute in full, on all stages."""
    if layout.recompute != "full":
        return 0
    counts = layout.recompute_layers
    if counts is None:
        return sum(split)
    each = counts if isinstance(counts, tuple) else (counts,) * len(split)
    return sum(map(min, each, split))


def difference(layout: Layout, plan: Layout) -> str:
    """``tp 4, recompute none instead of tp 8, recompute full``: dp and microbatches follow."""
    follow = ("dp", "microbatches")
    axes = [
        axis for axis in KEYS if axis not in follow and getattr(layout, axis) != getattr(plan, axis)
    ]
    mine, its = (
        ", ".join(f"{axis} {getattr(one, axis)}" for axis in axes) for one in (layout, plan)
    )
    if layout.layers_per_stage is None and plan.layers_per_stage is not None:
        mine = f"{mine}, even stages" if mine else "even stages"
    return f"{mine} instead of {its}" if its else mine


@dataclass(frozen=True)
class _Change:
    """A neighbour of the plan that a reader would ask about."""

    axis: str
    words: str
    layout: Layout


def _changes(question: Question, plan: Estimate) -> Iterator[str]:
    """One choice changed at a time, the rest kept: in one sentence."""
    job, found = question.job, []
    asked = {*question.fix, *(limit.axis for limit in question.limits)}
    for change in _neighbours(job, plan.layout):
        if not broken_rules(job, change.layout):
            note = " (your --fix or --limit)" if change.axis in asked else ""
            found.append(f"{change.words}{note}, {_cost(job, change.layout, plan)}")
    if found:
        yield f"One change at a time: {'; '.join(found)}."


def _cost(job: Job, layout: Layout, plan: Estimate) -> str:
    gap = step_of(job, layout).time_s - plan.step.time_s
    share = abs(gap) / plan.step.time_s
    words = "the step is as long"
    if share > 5e-5:
        words = f"{share:.1%} {'longer' if gap > 0 else 'shorter'} ({format_seconds(abs(gap))})"
    memory = memory_of(job, layout)
    if memory.fits:
        return words
    over = memory.worst.reserved - memory.usable_bytes
    if over <= 0:
        away = format_bytes(memory.host_bytes - memory.host_usable_bytes)
        return f"{words} but {away} over in the host's memory"
    return f"{words} but {format_bytes(over)} over on stage {memory.worst.stage}"


def _neighbours(job: Job, layout: Layout) -> Iterator[_Change]:
    """The lighter recompute, half of each degree, no interleaving, the next ZeRO stage."""
    if layout.layers_per_stage is not None:
        even = replace(layout, layers_per_stage=None)
        yield _Change("layers_per_stage", "even stages", even)
    if layout.recompute_layers is not None:
        for words in ("none", "full"):
            mode: Recompute = "full" if words == "full" else "none"
            alike = replace(layout, recompute=mode, recompute_layers=None)
            yield _Change("recompute", f"recompute {words}", alike)
    elif layout.recompute != "none":
        lighter = RECOMPUTE[RECOMPUTE.index(layout.recompute) - 1]
        lighter_layout = replace(layout, recompute=lighter)
        yield _Change("recompute", f"recompute {lighter}", lighter_layout)
    for axis in ("tp", "cp", "pp"):
        degree, double = getattr(layout, axis), _twice_the_replicas(layout)
        if degree % 2 == 0 and double is not None:
            half = replace(double, **{axis: degree // 2})
            yield _Change(axis, f"{axis} {degree // 2}", _settled(job, half))
    if layout.vpp > 1:
        plain = replace(layout, vpp=1)
        yield _Change("vpp", "no interleaving", _settled(job, plain))
    for stage in (layout.zero_stage - 1, layout.zero_stage + 1):
        if 0 <= stage <= 3:
            yield _Change("zero_stage", f"ZeRO {stage}", replace(layout, zero_stage=stage))
    if layout.microbatches % 2 == 0:
        double = replace(
            layout, micro_batch=layout.micro_batch * 2, microbatches=layout.microbatches // 2
        )
        yield _Change("micro_batch", f"micro_batch {double.micro_batch}", double)


def _twice_the_replicas(layout: Layout) -> Layout | None:
    """With half of the microbatches, or of the micro_batch; None where neither can be halved."""
    for axis in ("microbatches", "micro_batch"):
        number = getattr(layout, axis)
        if number % 2 == 0:
            return replace(layout, dp=layout.dp * 2, **{axis: number // 2})
    return None


def _settled(job: Job, layout: Layout) -> Layout:
    """What follows from tp, pp and vpp, set again."""
    vpp = layout.vpp if layout.pp > 1 else 1
    counts = layout.recompute_layers
    if isinstance(counts, tuple) and len(counts) != layout.pp:
        layout = replace(layout, recompute_layers=max(counts))
    if layout.layers_per_stage is not None and len(layout.layers_per_stage) != layout.pp:
        layout = replace(layout, layers_per_stage=None)
    values = default_layout_values(job.software, tp=layout.tp, pp=layout.pp)
    return replace(
        layout,
        vpp=vpp,
        schedule=_schedule(layout, vpp),
        sequence_parallel=values.sequence_parallel,
        reshard=values.reshard,
    )


def _schedule(layout: Layout, vpp: int) -> Schedule:
    """The layout's own, unless interleaving begins or ends, or no pipeline is left."""
    if layout.schedule in ("1f1b", "interleaved") or layout.pp == 1:
        return "interleaved" if vpp > 1 else "1f1b"
    return layout.schedule


def _tied(others: Found) -> str:
    layouts = "layout takes" if others.ties == 1 else "layouts take"
    return (
        f"A tie: {others.ties} other {layouts} exactly as long; of these the first in the order "
        f"{', '.join(KEYS)} was taken."
    )
