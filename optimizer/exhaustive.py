"""The slow, plain twin: tries every layout and prices it with ``estimate``.

It shares nothing with the search but the types of question and answer: its own loops, and the
rules of a layout as costmodel.rules has them for `estimate`. For small questions and for tests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.estimate import estimate, memory_of
from layoutopt.costmodel.layout import CP_KINDS, PIPELINE_INSIDE, RECOMPUTE, CpKind, Layout
from layoutopt.costmodel.results import Estimate, Run
from layoutopt.costmodel.rules import broken_rules, pipeline_fits
from layoutopt.optimizer.outcome import Outcome, SearchReport, Status
from layoutopt.optimizer.question import Limit, Question


def try_everything(question: Question, layouts: Iterable[Layout] | None = None) -> Outcome:
    """The best layout by pricing each one. The status is never ``feasible`` or ``unknown``.

    ``layouts``: which to price (None: every even one on the usual schedules).
    """
    began, tried = time.monotonic(), 0
    best: Estimate | None = None
    for layout in every_layout(question) if layouts is None else layouts:
        tried += 1
        if not memory_of(question.job, layout).fits:
            continue
        priced = estimate(question.job, layout)
        if _keeps_limits(question, priced) and (best is None or _before(question, priced, best)):
            best = priced
    value = None if best is None else objective_of(question, best.run)
    report = SearchReport(
        objective=question.objective,
        bound=value,
        gap=None if value is None else 0.0,
        wall_s=time.monotonic() - began,
        candidates=tried,
        workers=1,
    )
    return Outcome(Status.INFEASIBLE if best is None else Status.OPTIMAL, best, report)


def try_every_batch(question: Question, batches: tuple[int, ...]) -> Outcome:
    """The best layout over counts and these batches, each with the tokens that it needs."""
    plans: list[Estimate] = []
    tried = 0
    for batch in batches:
        tokens = question.job.training.tokens
        share = batch * question.job.training.seq_len / question.critical_tokens
        needed = math.ceil(tokens * (1 + share))
        changed = {"global_batch": batch, "tokens": needed}
        training = question.job.training.model_copy(update=changed)
        at = replace(question, job=replace(question.job, training=training), batches=None)
        outcome = try_every_count(at)
        plans += outcome.pareto
        tried += outcome.search.candidates
    status = Status.OPTIMAL if plans else Status.INFEASIBLE
    report = SearchReport(question.objective, None, None, 0.0, tried, 1)
    return Outcome(status, None, report, pareto=tuple(plans))


def try_every_count(question: Question) -> Outcome:
    """The best layout of a range of GPU counts: each count tried as above, one after another.

    Of counts that are equally good (``gpus`` aside) the smallest is taken, and the whole list of
    their best runs is ``pareto``: dominated ones included.
    """
    least, most = question.range
    node, tried, found = question.job.cluster.gpus_per_node, 0, []
    for gpus in range(least, most + 1):
        if question.counts and gpus > node and gpus % node:
            continue
        at = replace(question, job=replace(question.job, gpus=gpus), counts=None)
        # At one count the shortest run is the best for every objective.
        outcome = try_everything(replace(at, objective="time"))
        tried += outcome.search.candidates
        if outcome.plan is not None:
            found.append((objective_of(at, outcome.plan.run), outcome.plan))
    value, best = min(found, key=lambda one: one[0]) if found else (None, None)
    gap = None if value is None else 0.0
    report = SearchReport(question.objective, value, gap, 0.0, tried, 1)
    status = Status.INFEASIBLE if best is None else Status.OPTIMAL
    return Outcome(status, best, report, pareto=tuple(plan for _, plan in found))


def every_layout(question: Question) -> Iterator[Layout]:
    """Every legal layout of the question, memory ignored, one after another."""
    yield from layouts_like(question, Layout())
    # Another order is searched for dense models, whose pipelines then stand together.
    if PIPELINE_INSIDE in question.job.software.axis_orders and not question.job.model.moe:
        for layout in layouts_like(question, Layout(axis_order=PIPELINE_INSIDE)):
            if layout.pp > 1 and layout.cp == 1:
                yield layout


def layouts_like(question: Question, start: Layout) -> Iterator[Layout]:
    """Every legal layout that shares with ``start`` what is not in AXES: the axis order."""
    job = question.job
    gpus, batch, layers = job.gpus, job.training.global_batch, job.model.layers
    for tp in _dividing(gpus):
        for cp in _dividing(gpus // tp):
            for pp in _dividing(gpus // (tp * cp)):
                dp = gpus // (tp * cp * pp)
                if pp > layers or batch % dp:
                    continue
                plain = replace(start, tp=tp, cp=cp, pp=pp, dp=dp)
                for micro_batch in _dividing(batch // dp):
                    shape = replace(
                        plain,
                        micro_batch=micro_batch,
                        microbatches=batch // dp // micro_batch,
                    )
                    for held in _experts(question, shape):
                        yield from _variants(question, held)


def _experts(question: Question, shape: Layout) -> Iterator[Layout]:
    """Ways to spread experts: etp, where the framework has it, cuts them over tensor ranks."""
    moe = question.job.model.moe
    for ep in _dividing(moe.experts if moe else 1):
        for etp in _dividing(shape.tp):
            whole = moe is not None and moe.expert_ffn % etp == 0
            if etp == 1 or (whole and question.job.software.expert_tensor):
                yield replace(shape, ep=ep, etp=etp)


def _variants(question: Question, shape: Layout) -> Iterator[Layout]:
    """Chunks, shardings, recompute modes and kinds of context parallelism of one shape, as far as
    they are legal."""
    job = question.job
    for vpp in range(1, job.model.layers + 3):
        if not pipeline_fits(job, shape.pp, vpp):
            continue  # Uneven chunks are legal where a framework takes them, but not searched.
        chunked = replace(shape, vpp=vpp, schedule="interleaved" if vpp > 1 else "1f1b")
        for sharded in _shardings(question, chunked):
            for recompute in RECOMPUTE:
                if question.fix.get("recompute", recompute) != recompute:
                    continue
                ways = _offloads(question, "offload_activations")
                for kind, away in product(_kinds(question, shape.cp), ways):
                    layout = replace(
                        sharded,
                        recompute=recompute,
                        cp_kind=kind,
                        offload_activations=away,
                        sequence_parallel=_sequence(question, sharded),
                    )
                    if asked_for(question, layout) and not broken_rules(job, layout):
                        yield layout


def _shardings(question: Question, shape: Layout) -> Iterator[Layout]:
    """ZeRO stages; over all replicas, or over groups of them."""
    job, group = question.job, shape.dp * shape.cp
    usual = default_layout_values(job.software, tp=shape.tp, pp=shape.pp).reshard
    for zero_stage in (0, 1, 2, 3):
        for degree in _dividing(group):
            whole = degree == group
            asked = question.fix.get("shard_degree") == degree
            if not whole and (zero_stage == 0 or (degree == 1 and not asked)):
                continue
            kept = (True, False) if zero_stage == 3 else (usual,)
            for reshard, away in product(kept, _offloads(question, "offload_optimizer")):
                yield replace(
                    shape,
                    zero_stage=zero_stage,
                    shard_degree=None if whole else degree,
                    reshard=reshard,
                    offload_optimizer=away,
                )


def _offloads(question: Question, key: str) -> tuple[bool, ...]:
    """Both ways where the framework takes offload for granted or it is asked about."""
    granted = getattr(question.job.software, key)
    return (False, True) if granted or key in question.fix else (False,)


def _kinds(question: Question, cp: int) -> tuple[CpKind, ...]:
    """All that there are; where nothing is exchanged the one that was asked for, or a ring."""
    if cp > 1:
        return CP_KINDS
    asked = question.fix.get("cp_kind")
    return tuple(kind for kind in CP_KINDS if kind == (asked or "ring"))


def _sequence(question: Question, layout: Layout) -> bool:
    """Sequence parallelism where it is asked for; else wherever the sequence splits."""
    asked = question.fix.get("sequence_parallel")
    if asked is not None or layout.tp == 1:
        return layout.tp > 1 and bool(asked)
    whole = question.job.training.seq_len % (layout.tp * layout.cp) == 0
    return question.job.software.default_sequence_parallel and whole


def _dividing(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def asked_for(question: Question, layout: Layout) -> bool:
    """``fix`` and ``limits`` hold."""
    if any(_said(layout, key) != value for key, value in question.fix.items()):
        return False
    return all(_holds(limit, _said(layout, limit.axis)) for limit in question.limits)


def _said(layout: Layout, key: str) -> Any:
    """What the layout says of a key; shards over all replicas are as many as those."""
    if key == "shard_degree":
        return layout.shard_degree or layout.dp * layout.cp
    return getattr(layout, key)


def _holds(limit: Limit, value: int) -> bool:
    signs = {
        "<=": value <= limit.bound,
        ">=": value >= limit.bound,
        "<": value < limit.bound,
        ">": value > limit.bound,
        "==": value == limit.bound,
        "!=": value != limit.bound,
    }
    return signs[limit.op]


def _keeps_limits(question: Question, priced: Estimate) -> bool:
    """It keeps to deadline, budget and power."""
    watts = question.job.cluster.watts_per_gpu
    if (
        question.max_power_w is not None
        and priced.layout.gpus * (watts or 0) > question.max_power_w
    ):
        return False
    if question.deadline_s is not None and priced.run.wall_time_s > question.deadline_s:
        return False
    cost = priced.run.cost_usd
    return question.budget_usd is None or (cost is not None and cost <= question.budget_usd)


def objective_of(question: Question, run: Run) -> float:
    """What is to be least: seconds of wall time, dollars, kilowatt-hours, or GPUs."""
    value = {"time": run.wall_time_s, "cost": run.cost_usd, "energy": run.energy_kwh}
    if question.objective == "gpus":
        return question.job.gpus
    found = value[question.objective]
    # Without a price or a power the GPU count is given, so that time decides all the same.
    return run.wall_time_s if found is None else found


def _before(question: Question, one: Estimate, other: Estimate) -> bool:
    """``one`` is better than ``other``; equal to a billionth, the order of AXES decides."""
    left, right = objective_of(question, one.run), objective_of(question, other.run)
    if abs(left - right) > 1e-9 * max(left, right):
        return left < right
    return _order(one.layout) < _order(other.layout)


def _order(layout: Layout) -> tuple[int, ...]:
    """Keys in their order, smaller first; plain choices before others."""
    return (
        *(getattr(layout, axis) for axis in ("tp", "cp", "pp", "dp", "ep", "etp", "vpp")),
        layout.micro_batch,
        layout.microbatches,
        layout.zero_stage,
        layout.shard_degree or 0,
        int(layout.zero_stage == 3 and not layout.reshard),
        int(layout.offload_optimizer),
        RECOMPUTE.index(layout.recompute),
        CP_KINDS.index(layout.cp_kind),
        int(layout.offload_activations),
    )
