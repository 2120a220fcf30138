"""The slow, plain twin: tries every layout and prices it with ``estimate``.

It shares nothing with the search but the types of question and answer: its own loops, and the
rules of a layout as costmodel.rules has them for `estimate`. For small questions and for tests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.estimate import estimate, memory_of
from layoutopt.costmodel.layout import PIPELINE_INSIDE, RECOMPUTE, Layout
from layoutopt.costmodel.results import Estimate, Run
from layoutopt.costmodel.rules import broken_rules, pipeline_fits
from layoutopt.optimizer.outcome import Outcome, SearchReport, Status
from layoutopt.optimizer.question import AXES, Limit, Question


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
    experts = job.model.moe.experts if job.model.moe else 1
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
                    for ep in _dividing(experts):
                        yield from _variants(question, replace(shape, ep=ep))


def _variants(question: Question, shape: Layout) -> Iterator[Layout]:
    """Chunks, ZeRO stages and recompute modes of one shape, as far as they are legal."""
    job = question.job
    defaults = default_layout_values(job.software, tp=shape.tp, pp=shape.pp)
    for vpp in range(1, job.model.layers + 3):
        if not pipeline_fits(job, shape.pp, vpp):
            continue  # Uneven chunks are legal where a framework takes them, but not searched.
        for zero_stage in (0, 1, 2, 3):
            for recompute in RECOMPUTE:
                layout = replace(
                    shape,
                    vpp=vpp,
                    zero_stage=zero_stage,
                    recompute=recompute,
                    sequence_parallel=defaults.sequence_parallel,
                    reshard=defaults.reshard,
                    schedule="interleaved" if vpp > 1 else "1f1b",
                )
                if asked_for(question, layout) and not broken_rules(job, layout):
                    yield layout


def _dividing(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def asked_for(question: Question, layout: Layout) -> bool:
    """``fix`` and ``limits`` hold."""
    if any(getattr(layout, axis) != value for axis, value in question.fix.items()):
        return False
    return all(_holds(limit, getattr(layout, limit.axis)) for limit in question.limits)


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
    values = [getattr(layout, axis) for axis in AXES]
    return tuple(RECOMPUTE.index(v) if isinstance(v, str) else v for v in values)
