"""The Python door: the same questions, options and answers as the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from layoutopt.errors import InputError, InternalError, RuleError
from layoutopt.report.errors import with_nearest

if TYPE_CHECKING:
    from typing import Unpack

    from layoutopt.calibration import Site
    from layoutopt.costmodel.elastic import Degraded
    from layoutopt.costmodel.job import Job
    from layoutopt.costmodel.layout import Layout
    from layoutopt.costmodel.results import Estimate
    from layoutopt.inputs.options import EstimateOptions, SimulateOptions, SolveOptions
    from layoutopt.inputs.request import SolveRequest
    from layoutopt.optimizer.outcome import Outcome
    from layoutopt.optimizer.sensitivity import Worth
    from layoutopt.report.answer import Answer, Best, WhyNot
    from layoutopt.report.simulation import SimulatedStep
    from layoutopt.report.simulation_run import SimulatedRun
    from layoutopt.validation import Validation


_WITH_PLAN = ("optimal", "feasible")
"""Statuses of a search that come with a layout; the others come without."""


def solve(**options: Unpack[SolveOptions]) -> Answer:
    """The best layout for a model on a cluster, with the solver's proof.

    Options are those of ``layoutopt solve`` in snake_case, as numbers or as text
    (``solve(model="1T", gpus=16384)``). Raises InputError where the command exits with 2; that
    nothing fits is an answer (status ``infeasible``), not an error.
    """
    return answer_solve(options, None)


def estimate(**options: Unpack[EstimateOptions]) -> Answer:
    """What one given layout needs and takes.

    Options are those of ``layoutopt estimate``; ``layout`` is a mapping, a Layout or text.
    Raises InputError for a layout that breaks a rule; one that does not fit is an answer whose
    ``memory.fits`` is False.
    """
    return answer_estimate(options, None)


def validate(
    paths: Sequence[str | Path] | str | Path, calibration: str | Path | Site | None = None
) -> Validation:
    """Predictions against the measured runs of JSON-lines files.

    ``calibration`` is a site's own figures: they are used for runs on its GPU with its framework.
    """
    from layoutopt.inputs.calibration import read_site
    from layoutopt.validation import validate as compare

    site = read_site({"calibration": calibration})
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    return compare(files, site.apply if site else None)


def simulate(**options: Unpack[SimulateOptions]) -> SimulatedStep | SimulatedRun:
    """One optimizer step of a layout, event by event, or with ``run=True`` whole runs, failure by
    failure, beside what ``estimate`` says.

    Options are those of ``layoutopt simulate``; ``straggler`` and ``tier`` are text, a mapping, or
    several.
    Raises InputError where the command exits with 2.
    """
    return answer_simulate(options, None)


def answer_solve(
    options: Mapping[str, Any], stdin: TextIO | None, *, brief: bool = False
) -> Answer:
    """``solve`` for options from anywhere; ``-`` reads ``stdin``.

    ``brief``: the plan and its proof alone, as a sweep's row shows them: no alternatives, no
    explanation, no ways out of what does not fit.
    """
    from layoutopt.inputs.request import read_solve
    from layoutopt.report.answer import Answer
    from layoutopt.report.reading import read_estimate
    from layoutopt.report.sensitivity import batch_sentence
    from layoutopt.report.trials import trial_sentences

    request = read_solve(options, stdin)
    if brief:
        request = replace(request, budget=replace(request.budget, brief=True))
    if request.phases:
        from layoutopt.phased import solved

        return solved(request)
    outcome = _search(request)
    plan = outcome.plan
    if (plan is not None) != (outcome.status in _WITH_PLAN):
        has = "a" if plan else "no"
        raise InternalError(f"the search ended {outcome.status.value} with {has} layout")
    explain = outcome.explain
    request = request.at(outcome.job)
    if request.rejected is not None:
        from layoutopt.report.rejected import write_rejected

        write_rejected(request.question, request.rejected)
    if plan and not brief:
        others = [one.estimate for one in outcome.alternatives]
        explain = (
            *read_estimate(plan),
            *explain,
            batch_sentence(request.job, plan),
            *trial_sentences(request.job, plan, others),
        )
    return Answer(
        status=outcome.status.value,
        request=request,
        plan=plan,
        search=outcome.search,
        alternatives=outcome.alternatives,
        misses=outcome.misses,
        placement=outcome.placement,
        explain=explain,
        why_not=_why_not(request, plan),
        pareto=outcome.pareto if request.question.pareto else None,
        sensitivity=_sensitivity(request, plan),
        degraded=_degraded(options, request.job, plan),
    )


def _degraded(options: Mapping[str, Any], job: Job, plan: Estimate | None) -> Degraded | None:
    """What to restart with on fewer nodes, where that was asked for and there is a plan."""
    from layoutopt.costmodel.elastic import degraded
    from layoutopt.inputs.failures import read_degraded

    lost = read_degraded(options, job)
    return degraded(job, plan, lost) if lost and plan else None


def _sensitivity(request: SolveRequest, plan: Estimate | None) -> tuple[Worth, ...] | None:
    """What a better machine would be worth, where that was asked for and there is a plan."""
    if plan is None or not request.question.sensitivity:
        return None
    from layoutopt.optimizer.sensitivity import sensitivity

    return sensitivity(request.question, plan, request.budget)


def _search(request: SolveRequest) -> Outcome:
    # Late: a bad request is answered without the solver.
    question = request.question
    ranged = question.counts is not None or question.batches is not None
    if ranged or question.job.cluster.switches:
        from layoutopt.optimizer.choose import search_counts

        return search_counts(request.question, request.budget)
    from layoutopt.optimizer.search import search

    return search(request.question, request.budget)


def answer_estimate(options: Mapping[str, Any], stdin: TextIO | None) -> Answer:
    """``estimate`` for options from anywhere; ``-`` reads ``stdin``."""
    from layoutopt.costmodel.estimate import estimate as price
    from layoutopt.costmodel.fragments import best_place
    from layoutopt.inputs.request import read_estimate as read_request
    from layoutopt.launchers.reading.asked import options_of_launch
    from layoutopt.optimizer.node_map import placement_of
    from layoutopt.report.answer import Answer
    from layoutopt.report.reading import read_estimate
    from layoutopt.report.sensitivity import batch_sentence

    launched = options.get("from_launch") is not None
    options, read = options_of_launch(options, stdin) if launched else (options, "")
    request = read_request(options, stdin)
    if request.phases:
        from layoutopt.phased import given

        return given(request)
    refuse_broken(request.job, request.layout)
    job = best_place(request.job, request.layout)
    request = replace(request, job=job)
    plan = price(job, request.layout)
    sentences = (*read_estimate(plan), batch_sentence(job, plan))
    return Answer(
        status="given",
        request=request,
        plan=plan,
        placement=placement_of(job, request.layout) if job.cluster.switches else None,
        explain=(read, *sentences) if launched else sentences,
        best=_best_beside(request.job, plan) if launched else None,
        degraded=_degraded(options, request.job, plan),
    )


def answer_simulate(
    options: Mapping[str, Any], stdin: TextIO | None
) -> SimulatedStep | SimulatedRun:
    """``simulate`` for options from anywhere; ``-`` reads ``stdin``. Writes the files asked for."""
    return _simulated_run(options, stdin) if options.get("run") else _simulated_step(options, stdin)


def _simulated_run(options: Mapping[str, Any], stdin: TextIO | None) -> SimulatedRun:
    from layoutopt.inputs.simulate_run import read_run
    from layoutopt.report.simulation_run import SimulatedRun
    from layoutopt.simulation.runs import simulate_runs

    asked = read_run(options, stdin)
    refuse_broken(asked.request.job, asked.request.layout)
    return SimulatedRun(asked, simulate_runs(asked.plan, asked.runs, asked.seed))


def _refuse_pools(job: Job) -> None:
    """The simulator knows one GPU type."""
    if job.cluster.pools:
        raise InputError(
            f"simulate plays one GPU type, and the cluster {job.cluster.name} has several pools; "
            "estimate prices the layout",
            field="cluster",
            value=job.cluster.name,
        )


def _simulated_step(options: Mapping[str, Any], stdin: TextIO | None) -> SimulatedStep:
    from layoutopt.costmodel.estimate import estimate as price
    from layoutopt.costmodel.fragments import best_place
    from layoutopt.inputs.simulate import read_step
    from layoutopt.report.plan_json import layout_line
    from layoutopt.report.simulation import SimulatedStep
    from layoutopt.simulation.disturbance import Disturbance
    from layoutopt.simulation.picture import write_picture
    from layoutopt.simulation.step import simulate_step
    from layoutopt.simulation.trace import write_trace

    asked = read_step(options, stdin)
    layout = asked.request.layout
    refuse_broken(asked.request.job, layout)
    _refuse_pools(asked.request.job)
    job = best_place(asked.request.job, layout)
    unrest = Disturbance(slow=asked.stragglers, jitter=asked.jitter, seed=asked.seed)
    step = simulate_step(job, layout, None if asked.calm else unrest)
    if asked.trace:
        write_trace(step, asked.trace)
    if asked.plot:
        write_picture(step, asked.plot, f"{job.model.name}: {layout_line(layout)}")
    return SimulatedStep(asked, step, price(job, layout))


def _best_beside(job: Job, given: Estimate) -> Best | None:
    """The best layout of the same job, and what the given one loses on it, by part."""
    from layoutopt.optimizer.question import Question
    from layoutopt.optimizer.search import search
    from layoutopt.report.answer import Best, by_part
    from layoutopt.report.reading import compare

    outcome = search(Question(job=job, top=0))
    best = outcome.plan
    if best is None:
        return None
    sentence = "It is the best." if best.layout == given.layout else compare(given, best)
    return Best(best, outcome.status.value, by_part(given, best), sentence)


def refuse_broken(job: Job, layout: Layout) -> None:
    """Raises RuleError for the first rule that ``layout`` breaks; the message holds them all."""
    from layoutopt.costmodel.rules import broken_rules

    broken = broken_rules(job, layout)
    if broken:
        first = broken[0]
        value = first.value if isinstance(first.value, str | int) else str(first.value)
        raise RuleError(
            "; ".join(with_nearest(rule.message, rule.nearest) for rule in broken),
            field=first.field,
            value=value,
            nearest=first.nearest,
        )


def _why_not(request: SolveRequest, best: Estimate | None) -> WhyNot | None:
    """The layout of ``--why-not`` beside the best one."""
    from layoutopt.costmodel.estimate import estimate as price
    from layoutopt.inputs.limits import outside
    from layoutopt.report.answer import WhyNot, by_part
    from layoutopt.report.reading import compare

    layout = request.why_not
    if layout is None:
        return None
    if isinstance(layout, str):
        return WhyNot(None, layout, None, None, f"It is no layout of this job: {layout}.")
    try:
        refuse_broken(request.job, layout)
    except RuleError as error:
        return WhyNot(layout, error.message, None, None, f"It breaks a rule: {error.message}.")
    mine = price(request.job, layout)
    if best is None:
        return WhyNot(layout, None, mine, None, "There is no best layout to compare it with.")
    beyond = outside(layout, request.question.fix, request.question.limits)
    excluded = f"It is outside {' and '.join(beyond)}. " if beyond else ""
    return WhyNot(layout, None, mine, by_part(mine, best), excluded + compare(mine, best))
