"""What was refused, and why: values and pairs of values by their rule, layouts by their memory.
Ways to run a layout (schedules, splits, offload and others) are in rejected_ways.py.

A refused value stands for every layout that has it, so that the list stays short: degrees by the
rule that decides on them alone, then shapes that do not use every GPU or the batch, then whole
layouts that do not fit, the fastest first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.framework_rules import one_sequence_packed
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS, RECOMPUTE, Layout
from layoutopt.costmodel.rules import Broken, broken_rules, divisors, sharding_fits
from layoutopt.costmodel.spreading import context_kind_splits_heads
from layoutopt.optimizer import orders
from layoutopt.optimizer.domains import within
from layoutopt.optimizer.floors import floors_of
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.rejected_ways import refused_ways
from layoutopt.optimizer.space import layout_of
from layoutopt.optimizer.survey import Survey
from layoutopt.optimizer.tables import tables_of
from layoutopt.optimizer.wall import Clock
from layoutopt.units import KIB, format_bytes

DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    "tensor_divides_heads": ("tp",),
    "framework_heads": ("tp",),
    "context_halves_the_sequence": ("cp",),
    "a_layer_per_stage": ("pp",),
    "even_chunks": ("pp", "vpp"),
    "framework_stages": ("pp", "vpp"),
    "framework_packs": ("micro_batch",),
    "framework_shards": ("pp", "zero_stage"),
    "experts_divide": ("ep", "pp"),
    "framework_experts": ("tp",),
    "framework_halves": ("tp", "cp"),
    "sequence_parallel_splits": ("tp", "cp"),
    "interleave_whole_groups": ("pp", "vpp", "microbatches"),
}
"""Rule of costmodel.rules -> the axes that decide it, whatever the others are."""


@dataclass(frozen=True)
class Rejected:
    """Axis values that no layout may have together, or a whole layout that does not fit."""

    axes: dict[str, Any]
    """What is refused: the values that decide it; every layout that has them is refused."""
    rule: str
    message: str
    layout: Layout | None = None
    """The whole layout, where it is one."""
    over_bytes: int | None = None
    """Bytes per GPU beyond what the worst stage may allocate."""


def rejected(question: Question) -> Iterator[Rejected]:
    """Everything that was refused at the question's GPU count and batch, one after another."""
    yield from _held_out(question)
    yield from _by_rule(question.job)
    for axes, rule, message in refused_ways(question):
        yield Rejected(axes, rule, message)
    yield from _by_products(question.job)
    yield from _by_memory(question)


def _values(job: Job) -> dict[str, tuple[int, ...]]:
    """What each axis is tried at: divisors, before any rule."""
    model, gpus = job.model, divisors(job.gpus)
    experts = model.moe.experts if model.moe else 1
    # Only where a rule looks at it by itself: other values are refused by their products alone.
    packs = {"micro_batch": divisors(job.training.global_batch)} if one_sequence_packed(job) else {}
    return {
        "tp": tuple(n for n in gpus if n <= model.heads),
        "cp": tuple(n for n in gpus if n <= job.training.seq_len),
        "pp": gpus,
        "vpp": tuple(range(1, model.layers + 1)),
        "ep": divisors(experts),
        "zero_stage": (0, 1, 2, 3),
        "microbatches": divisors(job.training.global_batch),
        **packs,
    }


def _held_out(question: Question) -> Iterator[Rejected]:
    """Values that ``fix`` and limits leave out."""
    values = {**_values(question.job), "recompute": RECOMPUTE}
    for axis, domain in values.items():
        for value in domain:
            if axis in question.fix and question.fix[axis] != value:
                words = f"{axis} was fixed to {question.fix[axis]}"
                yield Rejected({axis: value}, "keep_to_fix", words)
            elif isinstance(value, int) and not within(question.limits, axis, value):
                mine = [f"{one.axis}{one.op}{one.bound}" for one in question.limits]
                yield Rejected({axis: value}, "keep_to_limits", f"limits: {', '.join(mine)}")


def _by_rule(job: Job) -> Iterator[Rejected]:
    """Values that break a rule by themselves, with all else at its mildest.

    What a smaller set of values is refused for is not told again with others beside it.
    """
    values = _values(job)
    single = [(axis,) for axis in values]
    joint = [axes for axes in DECIDED_BY.values() if len(axes) > 1]
    told: list[tuple[tuple[str, int], ...]] = []
    for axes in sorted({*single, *joint}, key=lambda axes: (len(axes), axes)):
        before = [dict(said) for said in told]
        for chosen in itertools.product(*(values[axis] for axis in axes)):
            layout = _mildest(job, dict(zip(axes, chosen, strict=True)))
            mine = dict(zip(axes, chosen, strict=True))
            if any(one.items() <= mine.items() for one in before):
                continue
            for one in broken_rules(job, layout):
                if set(axes) in _deciding(one):
                    told.append(tuple(mine.items()))
                    yield Rejected(mine, one.rule, one.message)
                    break


def _deciding(one: Broken) -> tuple[set[str], ...]:
    """The sets of axes that the rule may turn on."""
    if one.rule == "framework_axes":
        return ({one.field},)
    mine = set(DECIDED_BY.get(one.rule, ()))
    # Where heads are what is split over cp (Ulysses), tp takes its share of them first.
    return (mine, {"tp", "cp"}) if one.rule == "context_halves_the_sequence" else (mine,)


def _mildest(job: Job, chosen: Mapping[str, int]) -> Layout:
    """A layout of these values that breaks no other rule which another value could mend."""
    tp, pp = chosen.get("tp", 1), chosen.get("pp", 1)
    usual = default_layout_values(job.software, tp=tp, pp=pp)
    zero_stage = next(z for z in (0, 1, 2, 3) if sharding_fits(job, z, pp))
    cp, codes = chosen.get("cp", 1), {kind: CP_KINDS.index(kind) for kind in job.software.cp_kinds}
    kind = next(
        (
            kind
            for kind, code in codes.items()
            if context_kind_splits_heads(job, ints(tp), ints(cp), code)
        ),
        job.software.cp_kinds[0],
    )
    said: dict[str, Any] = {"zero_stage": zero_stage, "cp_kind": kind, **chosen}
    return Layout(**said, sequence_parallel=usual.sequence_parallel)


def _by_products(job: Job) -> Iterator[Rejected]:
    """Shapes whose product does not divide the GPUs, or whose replicas do not divide the batch."""
    values, batch = _values(job), job.training.global_batch
    for tp, cp, pp in itertools.product(values["tp"], values["cp"], values["pp"]):
        product = tp * cp * pp
        axes = {"tp": tp, "cp": cp, "pp": pp}
        dp, rest = divmod(job.gpus, product)
        if rest:
            words = f"tp {tp} x cp {cp} x pp {pp} = {product} does not divide {job.gpus} GPUs"
            yield Rejected(axes, "use_every_gpu", words)
        elif batch % dp:
            words = f"{dp} replicas do not divide a global batch of {batch} sequences"
            yield Rejected({**axes, "dp": dp}, "use_the_batch", words)


def _by_memory(question: Question) -> Iterator[Rejected]:
    """Legal layouts that do not fit, the fastest first, as many as one survey prices."""
    space = orders.first_space(question)
    if space is None:
        return
    tables = tables_of(space)
    survey = Survey(space, floors_of(space, tables), Clock(space.job, tables))
    for seen in survey.faster_misfits(math.inf).layouts:
        layout, over = layout_of(space.question, seen.chosen), seen.over_kib * KIB
        words = f"the worst stage allocates {format_bytes(over)} more than there is"
        yield Rejected({}, "every_stage_fits", words, layout, over)
