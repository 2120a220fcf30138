"""The answer to a run in phases: searched, or priced under a given layout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.costmodel.phases import PhasedRun, PhaseEstimate, phase_jobs, phased_run
from layoutopt.costmodel.results import Estimate
from layoutopt.errors import InternalError
from layoutopt.inputs.request import EstimateRequest, SolveRequest
from layoutopt.optimizer.outcome import Change, Miss, SearchReport
from layoutopt.report.answer import Answer
from layoutopt.report.phases import RULES, PhasesAnswer, phase_sentences
from layoutopt.report.reading import read_estimate
from layoutopt.units import format_seconds

if TYPE_CHECKING:
    from layoutopt.optimizer.phases import PhasedOutcome, Way

_WITH_PLAN = ("optimal", "feasible")


def solved(request: SolveRequest) -> Answer:
    """The layouts of all phases that make the shortest run, with the proof."""
    # Late: a bad request is answered without the solver.
    from layoutopt.optimizer.phase_limits import bound_of, for_time, value_of
    from layoutopt.optimizer.phases import PhasedQuestion, search_phases

    question, objective = request.question, request.question.objective
    asked = PhasedQuestion(for_time(question), request.phases, request.phase_layouts)
    outcome = search_phases(asked, request.budget)
    way = outcome.ways.get(asked.layouts)
    plan = way.plan if way else None
    status = outcome.status.value
    if (plan is not None) != (status in _WITH_PLAN):
        raise InternalError(f"the search of phases ended {status}")
    bound = way.bound_s if way else None
    value = value_of(plan.run, objective) if plan else None
    if plan is not None and bound is not None:
        bound = bound_of(plan, bound, objective)
    report = SearchReport(
        objective=objective,
        bound=bound,
        gap=None if value is None or bound is None else max(0.0, 1 - bound / value),
        wall_s=outcome.wall_s,
        candidates=outcome.candidates,
        workers=request.budget.workers,
        outer_choices=outcome.looked,
        inner_problems=outcome.inner,
    )
    if plan is None or way is None:
        return _without_plan(request, outcome, report)
    late = _over_limits(request, outcome, way, report)
    if late is not None:
        return late
    phases = PhasesAnswer(asked.layouts, plan, outcome.ways)
    told = (*phase_sentences(phases), *RULES)
    return _with_plan(
        replace(request, question=replace(asked.question, objective=objective)),
        status,
        phases,
        plan.main,
        told,
        report,
    )


def _over_limits(
    request: SolveRequest, outcome: PhasedOutcome, way: Way, report: SearchReport
) -> Answer | None:
    """The answer where the best run misses deadline, budget or power; None where it keeps to
    them. Of a run that is not proved best, only what its bound says is certain."""
    from layoutopt.optimizer.phase_limits import might_keep, missed

    plan, question = way.plan, request.question
    misses = missed(question, plan, outcome.ways) if plan else ()
    if plan is None or not misses:
        return None
    sure = way.proved or not might_keep(question, plan, way.bound_s)
    told = f"Phases: the best run that was found takes {format_seconds(plan.run.wall_time_s)}."
    return Answer(
        status="infeasible" if sure else "unknown",
        request=request.at(plan.main.planned.job),
        plan=None,
        search=replace(report, gap=None),
        misses=misses if sure else (),
        explain=(told,),
    )


def _without_plan(request: SolveRequest, outcome: PhasedOutcome, report: SearchReport) -> Answer:
    if outcome.failed is None:
        return _no_one_layout(request, outcome, report)
    number, found = outcome.failed
    planned = phase_jobs(request.job, request.phases)[number - 1]
    return Answer(
        status=outcome.status.value,
        request=request.at(planned.job),
        plan=None,
        search=report,
        misses=found.misses,
        explain=(f"Phases: phase {number} has no layout that fits in memory.",),
    )


def _no_one_layout(request: SolveRequest, outcome: PhasedOutcome, report: SearchReport) -> Answer:
    """No layout was found for all phases, or time was up before each had one."""
    each = outcome.ways["each"].plan if outcome.ways else None
    if each is None:
        return Answer(outcome.status.value, request, None, report)
    why = outcome.ways[request.phase_layouts].why_not
    change = Change("phase_layouts", "auto", each.main.step.time_s)
    miss = Miss("phases", None, None, None, None, each.main.layout, (change,))
    proved = outcome.status.value == "infeasible"
    return Answer(
        status=outcome.status.value,
        request=request.at(each.main.planned.job),
        plan=None,
        search=report,
        misses=(miss,) if proved else (),
        explain=(f"Phases: one layout for all is no way: {why}.",),
    )


def given(request: EstimateRequest) -> Answer:
    """What the given layout takes over all phases."""
    from layoutopt.api import refuse_broken

    planned = phase_jobs(request.job, request.phases)
    for one, layout in zip(planned, request.phase_layouts, strict=True):
        refuse_broken(one.job, layout)
    plan = phased_run(planned, request.phase_layouts)
    phases = PhasesAnswer(None, plan, {})
    return _with_plan(request, "given", phases, _told_first(plan), RULES)


def _told_first(plan: PhasedRun) -> PhaseEstimate:
    """The first phase that does not fit, else the longest."""
    return next((one for one in plan.phases if not one.memory.fits), plan.main)


def _with_plan(
    request: SolveRequest | EstimateRequest,
    status: str,
    phases: PhasesAnswer,
    main: PhaseEstimate,
    told: tuple[str, ...],
    search: SearchReport | None = None,
) -> Answer:
    """The answer, whose layout, step and memory are those of ``main``, and whose run is all of
    it."""
    job = replace(request.job, training=main.planned.job.training, gpus=main.planned.job.gpus)
    warnings = dict.fromkeys(
        warning for one in phases.plan.phases for warning in one.estimate.warnings
    )
    whole: Estimate = replace(main.estimate, run=phases.plan.run, warnings=tuple(warnings))
    return Answer(
        status=status,
        request=replace(request, job=job),
        plan=whole,
        search=search,
        explain=(*told, *read_estimate(whole)),
        phases=phases,
    )
