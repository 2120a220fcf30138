"""The answer over a range of GPU counts: the best count's plan, its front, or what binds."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from layoutopt.errors import InternalError
from layoutopt.optimizer import ways
from layoutopt.optimizer.counts import Case, Counts, Key, batched, cases_of, no_count, run_value
from layoutopt.optimizer.misses import limit_misses, memory_misses
from layoutopt.optimizer.node_map import placed_in_words, placement_of
from layoutopt.optimizer.outcome import CountsReport, Miss, Outcome, SearchReport, Status
from layoutopt.optimizer.pareto import front
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.search import concluded
from layoutopt.units import HOUR

KILO = 1000


def search_counts(question: Question, budget: Budget | None = None) -> Outcome:
    """The GPU count and layout that are best for ``question``, and the proof.

    Raises RuleError where no count of the range has a legal layout.
    """
    budget, began = budget or Budget(), time.monotonic()
    cases = cases_of(question)
    if not cases:
        raise no_count(question)
    counts = Counts(cases, budget, began)
    counts.run()
    report = _report(question, counts, cases, began)
    if counts.best is None:
        return _without_plan(question, cases, counts, report)
    status = Status.OPTIMAL if counts.proved else Status.FEASIBLE
    best = counts.best
    points, whole = front(counts) if question.pareto else ((), None)
    if best.rounds is None:
        raise InternalError(f"the best run, on {best.case.gpus} GPUs, was not kept")
    outcome = concluded(budget, best.rounds, best.ended, began)
    tally = _counts_report(question, cases, counts, whole)
    job, plan = best.case.space.job, best.best
    place = placement_of(job, plan.layout) if job.cluster.switches and plan else None
    told = (*outcome.explain, _sentence(tally)) if tally else outcome.explain
    return replace(
        outcome,
        status=status,
        search=replace(report, counts=tally, wall_s=time.monotonic() - began),
        job=job,
        explain=(*told, *(placed_in_words(place, job) if place else ())),
        placement=place,
        pareto=points,
    )


def _sentence(counts: CountsReport) -> str:
    """How the count was chosen."""
    if counts.batches:
        return (
            f"GPUs and batch: {counts.legal:,} pairs of a GPU count and a batch (an odd number up "
            f"to 15 times a power of two, {counts.batches[0]:,} to {counts.batches[-1]:,}) have a "
            f"legal layout; {counts.searched:,} of them were searched, and a floor under their "
            "runs excluded the others."
        )
    return (
        f"GPUs: of the multiples of {counts.multiple_of} from {counts.least:,} to "
        f"{counts.most:,}, {counts.legal:,} have a legal layout; {counts.searched:,} of them were "
        "searched, and a floor under their runs excluded the others."
    )


def _report(question: Question, counts: Counts, cases: list[Case], began: float) -> SearchReport:
    """Bound and gap in the objective's own unit."""
    gap = shown = None
    best, bound = counts.best, counts.bound
    if math.isfinite(bound):
        shown = _in_unit(question, bound)
    if shown is not None and best is not None and best.best is not None:
        value = run_value(question, best.best.run, best.case.gpus)
        shown = min(shown, value)
        gap = max(0.0, 1 - shown / value)
    return SearchReport(
        objective=question.objective,
        bound=shown,
        gap=gap,
        wall_s=time.monotonic() - began,
        candidates=sum(case.candidates for case in cases),
        workers=counts.budget.workers,
        counts=_counts_report(question, cases, counts, None),
    )


def _in_unit(question: Question, value: float) -> float:
    """Seconds, GPU-seconds or GPUs in the objective's own unit."""
    cluster, hours = question.job.cluster, value / HOUR
    if question.objective == "cost":
        return hours if cluster.usd_per_gpu_hour is None else hours * cluster.usd_per_gpu_hour
    if question.objective == "energy":
        return hours if cluster.watts_per_gpu is None else hours * cluster.watts_per_gpu / KILO
    return value


def _counts_report(
    question: Question, cases: list[Case], counts: Counts, whole: bool | None
) -> CountsReport | None:
    """None where neither count nor batch was left open: on a fragment."""
    if question.counts is None and question.batches is None:
        return None
    least, most = question.range
    node = question.job.cluster.gpus_per_node
    batches = batched(question) if question.batches else ()
    # On a fragment a count has a case for each way in which its nodes may stand.
    legal, searched = ({key[:2] for key in keys} for keys in _keys(cases, counts))
    return CountsReport(least, most, node, len(legal), len(searched), batches, whole)


def _keys(cases: list[Case], counts: Counts) -> tuple[list[Key], list[Key]]:
    return [case.key for case in cases], list(counts.searched)


def _without_plan(
    question: Question, cases: list[Case], counts: Counts, report: SearchReport
) -> Outcome:
    """No count has a run that keeps to the limits: which limit binds, and by how much."""
    misses = _misses(question, cases, counts) if counts.proved else None
    if misses is None:
        return Outcome(Status.UNKNOWN, None, report)
    return Outcome(Status.INFEASIBLE, None, report, misses=misses)


def _misses(question: Question, cases: list[Case], counts: Counts) -> tuple[Miss, ...] | None:
    """None where time is up before it is known.

    The limits are let go one after another: where nothing is in time, the fastest run says by how
    much; where something is, the cheapest of these says what the budget lacks.
    """
    if not counts.cases:
        return _power_misses(question, cases, brief=counts.budget.brief)
    free = replace(question, deadline_s=None, budget_usd=None)
    fastest = _relaxed(counts, replace(free, objective="time"))
    if fastest.best is None or fastest.best.best is None:
        largest = max(counts.cases, key=lambda case: case.key)
        return memory_misses(largest.space, brief=counts.budget.brief) if fastest.proved else None
    late = question.deadline_s
    if late is not None and fastest.best.best.run.wall_time_s > late:
        return _missed(question, fastest)
    within = replace(free, deadline_s=late, objective="cost")
    return _missed(question, _relaxed(counts, within))


def _relaxed(counts: Counts, question: Question) -> Counts:
    """The same counts under another question, in the time that is left."""
    cases = [
        replace(case, space=replace(case.space, question=replace(question, job=case.space.job)))
        for case in counts.cases
    ]
    now = time.monotonic()
    left = replace(counts.budget, seconds=max(counts.ends_at - now, 1.0))
    relaxed = Counts(cases, left, now)
    relaxed.run()
    return relaxed


def _missed(question: Question, counts: Counts) -> tuple[Miss, ...] | None:
    found = counts.best
    if not counts.proved or found is None or found.best is None:
        return None
    return limit_misses(at_case(question, found.case), found.best, brief=counts.budget.brief)


def _power_misses(question: Question, cases: list[Case], *, brief: bool) -> tuple[Miss, ...]:
    """Even the fewest GPUs that hold the model draw more than the limit."""
    for case in cases:
        best = ways.fastest(replace(case.question, objective="time"))
        if best is not None:
            free = replace(question, deadline_s=None, budget_usd=None)
            return limit_misses(at_case(free, case), best, brief=brief)
    return memory_misses(cases[-1].space, brief=brief)


def at_case(question: Question, case: Case) -> Question:
    """The same question at one count and batch."""
    return replace(question, job=case.space.job, counts=None, batches=None, pareto=False)


def at_count(question: Question, gpus: int) -> Question:
    """The same question with exactly ``gpus`` GPUs."""
    job = replace(question.job, gpus=gpus)
    return replace(question, job=job, counts=None, pareto=False)
