"""What was refused of the ways to run a layout: schedules, splits, recompute of a part, kinds of
context parallelism, cuts of experts, shard groups, re-sharding, offload and orders of the axes.

Each is tried on a layout that is mild in all else (rules.broken_rules names the rule), or held
against the search's own rule (space.RULES) where legal layouts are left out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from layoutopt.costmodel.axes import SCHEDULES, ints
from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS, RECOMPUTE, Layout
from layoutopt.costmodel.pipelines import USUAL_SCHEDULES, pipelines_of
from layoutopt.costmodel.placement import PRICED
from layoutopt.costmodel.rules import broken_rules, divisors, sharding_fits
from layoutopt.costmodel.spreading import (
    context_kind_splits_heads,
    pipeline_fits,
    shards_divide_replicas,
)
from layoutopt.optimizer.asked import schedules_of
from layoutopt.optimizer.orders import orders_of
from layoutopt.optimizer.question import Question

Refusal = tuple[dict[str, Any], str, str]
"""The values that decide it, the rule, the sentence."""


def refused_ways(question: Question) -> Iterator[Refusal]:
    """Refusals of every way to run a layout, axis by axis."""
    yield from _schedules(question)
    yield from _parts(question)
    yield from _kinds(question.job)
    yield from _expert_cuts(question.job)
    yield from _shards(question)
    yield from _offload(question)
    yield from _orders(question)


def _broken(
    job: Job, rules: tuple[str, ...], told: dict[str, Any], **said: Any
) -> Iterator[Refusal]:
    """The first of ``rules`` that a layout of these values breaks."""
    pp = said.get("pp", 1)
    zero_stage = next(z for z in (0, 1, 2, 3) if sharding_fits(job, z, pp))
    layout = Layout(**{"zero_stage": zero_stage, "cp_kind": job.software.cp_kinds[0], **said})
    for one in broken_rules(job, layout):
        if one.rule in rules:
            yield told, one.rule, one.message
            return


def _two_stages(job: Job) -> int:
    """The fewest stages that are a pipeline."""
    return next((n for n in divisors(job.gpus) if n > 1), 2)


def _schedules(question: Question) -> Iterator[Refusal]:
    job, looked_at = question.job, schedules_of(question)
    rules = ("adapters_leave_bubbles", "framework_schedules")
    for schedule in SCHEDULES:
        told = {"schedule": schedule}
        if schedule in USUAL_SCHEDULES or schedule in looked_at:
            if schedule == "zbv":
                for pp in divisors(job.gpus):
                    both = {"schedule": schedule, "pp": pp}
                    yield from _broken(job, ("two_chunks_in_a_v",), both, schedule=schedule, pp=pp)
            elif schedule in USUAL_SCHEDULES and "1f1b" not in looked_at:
                yield told, "keep_to_fix", f"schedule was fixed to {' or '.join(looked_at)}"
            continue
        found = list(_broken(job, rules, told, schedule=schedule, pp=_two_stages(job)))
        yield from found
        if not found:
            asked = question.pipeline.schedules
            if asked is not None:
                yield told, "keep_to_fix", f"schedule was fixed to {' or '.join(asked)}"
            else:
                words = f"searched where --fix schedule={schedule} asks for it"
                if schedule == "gpipe":
                    words += ": it takes no less time than 1f1b and holds more"
                yield told, "schedules_are_asked_for", words


def _parts(question: Question) -> Iterator[Refusal]:
    """Uneven stages, and recompute of a part of them."""
    able, name = pipelines_of(question.job.software.framework), question.job.software.framework
    uneven = {"layers_per_stage": "uneven"}
    if able.splits == "even":
        yield uneven, "framework_splits", f"{name} does not take a number of layers for each stage"
    elif question.pipeline.splits == "even":
        yield uneven, "keep_to_fix", "layers_per_stage was fixed to even"
    kinds = ("whole", "same", "each")
    words = {"same": "one number of layers on all stages", "each": "a number for each stage"}
    for kind in kinds[1:]:
        told = {"recompute": "full:N" if kind == "same" else "full:N+M+..."}
        if kinds.index(kind) > kinds.index(able.recompute):
            text = f"{name} does not take full recompute of a part: {words[kind]}"
            yield told, "framework_recomputes", text
        elif question.pipeline.splits == "even":
            yield told, "keep_to_fix", "layers_per_stage was fixed to even"


def _kinds(job: Job) -> Iterator[Refusal]:
    """Kinds of context parallelism that the framework lacks, or that do not split the heads."""
    for code, kind in enumerate(CP_KINDS):
        if kind not in job.software.cp_kinds:
            yield from _broken(job, ("framework_exchanges",), {"cp_kind": kind}, cp=2, cp_kind=kind)
            continue
        for tp in divisors(job.gpus):
            for cp in divisors(job.gpus // tp):
                if tp <= job.model.heads and not _splits(job, tp, cp, code):
                    words = f"{kind} does not give each of tp {tp} x cp {cp} ranks whole heads"
                    if kind == "hierarchical":
                        words = f"cp {cp} at tp {tp} has no ranks both inside and outside a domain"
                        words += ", or no whole heads for those inside"
                    told = {"tp": tp, "cp": cp, "cp_kind": kind}
                    yield told, "context_kind_splits_heads", words


def _splits(job: Job, tp: int, cp: int, code: int) -> bool:
    return bool(context_kind_splits_heads(job, ints(tp), ints(cp), code))


def _expert_cuts(job: Job) -> Iterator[Refusal]:
    moe = job.model.moe
    if moe is None:
        return
    cuts = [d for d in divisors(moe.expert_ffn) if 1 < d <= job.model.heads and job.gpus % d == 0]
    for etp in cuts:
        found = list(
            _broken(job, ("framework_cuts_experts", "framework_axes"), {"etp": etp}, etp=etp)
        )
        yield from found
        if found:
            continue
        for tp in divisors(job.gpus):
            if tp <= job.model.heads and tp % etp:
                words = f"etp {etp} does not divide tp {tp}: experts are cut over tensor ranks"
                yield {"tp": tp, "etp": etp}, "experts_stay_within_tensor_ranks", words


def _shards(question: Question) -> Iterator[Refusal]:
    """Groups smaller than all replicas: their ZeRO stages, sizes and replicas; re-sharding."""
    job, stages = question.job, question.job.software.shard_group_stages
    asked = question.fix.get("shard_degree")
    for zero_stage in (1, 2, 3):
        if zero_stage not in stages:
            told = {"zero_stage": zero_stage, "shard_degree": "fewer than dp x cp"}
            has = ", ".join(map(str, stages)) or "no ZeRO stage"
            words = f"{job.software.framework} spreads shards over a part of the replicas with "
            yield told, "framework_groups_shards", f"{words}{has}, not {zero_stage}"
    if stages:
        for degree in divisors(job.gpus)[1:-1] if asked is None else [int(asked)]:
            yield from _uneven_groups(job, degree)
    for pp in (1, _two_stages(job)):
        reshard = not default_layout_values(job.software, tp=1, pp=pp).reshard
        told = {"zero_stage": 3, "pp": pp, "reshard": reshard}
        yield from _broken(job, ("framework_reshards",), told, **told)


def _uneven_groups(job: Job, degree: int) -> Iterator[Refusal]:
    """tp and pp whose replicas the groups do not divide; without experts, which take part in it."""
    if job.model.moe is not None:
        return
    for tp in divisors(job.gpus):
        for pp in divisors(job.gpus // tp):
            group = job.gpus // (tp * pp)
            one = np.asarray(1)
            good = shards_divide_replicas(job, ints(tp), ints(pp), one, one, ints(degree))
            if degree < group and not bool(good):
                told = {"tp": tp, "pp": pp, "shard_degree": degree}
                words = f"shard_degree {degree} does not divide dp x cp = {group}"
                yield told, "shards_divide_replicas", words


def _offload(question: Question) -> Iterator[Refusal]:
    job, software = question.job, question.job.software
    for key, has in (
        ("offload_optimizer", software.offload_optimizer),
        ("offload_activations", software.offload_activations),
    ):
        asked = question.fix.get(key)
        if asked is not None:
            yield {key: not asked}, "keep_to_fix", f"{key} was fixed to {str(asked).lower()}"
            if not asked:
                continue
        elif not has:
            if software.framework == "generic":
                words = f"searched where --fix {key}=true asks for it"
                yield {key: True}, "offload_is_asked_for", words
            else:
                words = f"{software.framework} does not offload that"
                yield {key: True}, "framework_offloads", words
            continue
        values: tuple[Any, ...] = (0, 1, 2, 3) if key == "offload_optimizer" else RECOMPUTE
        beside = "zero_stage" if key == "offload_optimizer" else "recompute"
        for value in values:
            told = {beside: value, key: True}
            yield from _broken(job, ("framework_offloads",), told, **told)
        if key == "offload_activations" and not pipeline_fits(job, 2):
            for pp in divisors(job.gpus)[1:]:
                words = f"{software.framework} does not offload activations with pp {pp}"
                yield {"pp": pp, key: True}, "framework_offloads", words


def _orders(question: Question) -> Iterator[Refusal]:
    job, searched = question.job, orders_of(question)
    for order in PRICED:
        if order in searched:
            for cp in divisors(job.gpus)[1:]:
                told = {"cp": cp, "axis_order": order}
                yield from _broken(
                    job, ("order_keeps_stages_whole",), told, **told, pp=_two_stages(job)
                )
            continue
        told = {"axis_order": order}
        found = list(_broken(job, ("framework_orders",), told, axis_order=order))
        yield from found
        if not found and "axis_order" in question.fix:
            yield told, "keep_to_fix", f"axis_order was fixed to {question.fix['axis_order']}"
        elif not found:
            words = "with experts, their groups would have to fill tp x cp ranks"
            if job.model.moe is None:
                words = f"{job.software.name} is not known to number its ranks so"
            yield told, "orders_of_the_framework", words
