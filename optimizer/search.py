"""The search: a CP-SAT model over tables of the cost model, solved until it is proved.

1. Local search gives a first layout, which becomes a cut-off (warmstart).
2. The solver looks for any other layout that is faster, or within rounding as fast: each round
   finds the fastest one left or proves that there is none (rounds).
3. What is within rounding of the fastest is priced by ``estimate``; ties go by the order of AXES.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from layoutopt.costmodel.results import Estimate, Run
from layoutopt.errors import InternalError
from layoutopt.optimizer import orders
from layoutopt.optimizer.alternatives import alternatives, seen_of
from layoutopt.optimizer.asked import asks_usual, is_wider
from layoutopt.optimizer.explain import NOTABLE, Around, explain, least_lacking
from layoutopt.optimizer.kinds import best_of_kinds, lacks_kib, roomier, with_what_it_lacks
from layoutopt.optimizer.misses import limit_misses, meets_limits, memory_misses
from layoutopt.optimizer.nearest import nearest_legal
from layoutopt.optimizer.orders import RESOLUTION
from layoutopt.optimizer.outcome import Outcome, SearchReport, Status
from layoutopt.optimizer.pools import search_pools
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.rounds import Ended, Rounds
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.survey import Found, Seen, Survey


def search(question: Question, budget: Budget | None = None) -> Outcome:
    """The layout that is best for ``question``, and the proof.

    Raises InputError where arithmetic or a framework's rule excludes every layout, with the
    nearest GPU counts and batches that work. That nothing fits in memory, or meets the deadline
    or the budget, is an Outcome.
    """
    budget = budget or Budget()
    if question.job.cluster.pools:
        return search_pools(question, budget)
    began = time.monotonic()
    space = orders.first_space(question)
    if space is None:
        raise nearest_legal(question)
    rounds, ended = proved(space, budget, began)
    return concluded(budget, rounds, ended, began)


def proved(
    space: Space, budget: Budget, began: float, most_wall_s: float = math.inf
) -> tuple[Rounds, Ended]:
    """The search of one question, in every order of the axes.

    The best layout whose run takes at most ``most_wall_s``. Loops over GPU counts and batches call
    it with the best that they know as the limit; a layout that is returned may be over the limit,
    and is then only one that was met on the way.
    """
    return orders.proved(space, budget, began, most_wall_s)


def concluded(budget: Budget, rounds: Rounds, ended: Ended, began: float) -> Outcome:
    """The outcome of a search that has ended, with what comes next and why."""
    space, question = rounds.space, rounds.space.question
    best = ended.best.estimate if ended.best else None
    report = _report(space, budget, ended, began)
    if best is None or not meets_limits(question, best.run):
        return _without_plan(space, ended, best, report, budget)
    if budget.brief:
        return _brief(rounds, ended, best, report)
    if not ended.proved:
        # Out of time: what comes next is not known, and looking for it would take more.
        return Outcome(Status.FEASIBLE, best, report, explain=explain(question, best))
    if not asks_usual(question.pipeline):
        # The survey knows 1F1B and its interleaving alone.
        return Outcome(Status.OPTIMAL, best, report, explain=explain(question, best))
    survey, mine = Survey(space, rounds.floors, rounds.clock), seen_of(best)
    others, misfits = survey.fitting(question.top, mine), survey.faster_misfits(mine.wall_s)
    found = (others.layouts, misfits.layouts)
    next_best = best_of_kinds(rounds, mine, question.top, *found) if question.top else ()
    _refute([(one.run.wall_time_s, one.layout) for one in next_best], best)
    near = _near_misses(rounds, mine, misfits) if question.top else ()
    around = Around(others, misfits, near, wider=is_wider(question) and bool(next_best))
    return Outcome(
        status=Status.OPTIMAL,
        plan=best,
        search=report,
        alternatives=alternatives(next_best, best),
        explain=explain(question, best, around),
    )


def _near_misses(rounds: Rounds, mine: Seen, misfits: Found) -> tuple[Estimate, ...]:
    """What little more memory would let through: of the plan's kind, and of the kind of the even
    layout that lacks least of those that are faster."""
    most_s = mine.wall_s * (1 - NOTABLE)
    own, even = roomier(rounds, mine, most_s), least_lacking(misfits, mine.wall_s)
    found = [own]
    if even is not None and (own is None or lacks_kib(rounds.space.job, own) > even.over_kib):
        found.append(with_what_it_lacks(rounds, even, most_s))
    return tuple(one for one in found if one is not None)


def _brief(rounds: Rounds, ended: Ended, best: Estimate, report: SearchReport) -> Outcome:
    """The plan alone, held against the next best layouts."""
    if ended.proved and asks_usual(rounds.space.question.pipeline):
        survey, mine = Survey(rounds.space, rounds.floors, rounds.clock), seen_of(best)
        _refute([(one.wall_s, one.chosen) for one in survey.faster(mine.wall_s).layouts], best)
    return Outcome(Status.OPTIMAL if ended.proved else Status.FEASIBLE, best, report)


def _refute(others: Sequence[tuple[float, object]], best: Estimate) -> None:
    """Raises InternalError where a pass over the next best finds one that beats the proved best.

    Two independent ways to the same answer: a solver that proves too much has been seen.
    """
    if others and others[0][0] < best.run.wall_time_s * (1 - RESOLUTION):
        wall, layout = others[0]
        raise InternalError(
            f"{layout} takes {wall} s, less than the layout that was proved best, {best.layout} "
            f"with {best.run.wall_time_s} s"
        )


def _without_plan(
    space: Space, ended: Ended, best: Estimate | None, report: SearchReport, budget: Budget
) -> Outcome:
    """Nothing fits, or the best run there is misses a limit; or time is up."""
    if not ended.proved:
        return Outcome(Status.UNKNOWN, None, report)
    brief = budget.brief
    if best is not None:
        misses = limit_misses(space.question, best, brief=brief)
    else:
        misses = memory_misses(space, brief=brief)
    if any(miss.over_bytes is not None and miss.over_bytes <= 0 for miss in misses):
        raise InternalError(f"{misses[0].layout} fits, but no layout was said to")
    return Outcome(Status.INFEASIBLE, None, report, misses=misses)


def _report(space: Space, budget: Budget, ended: Ended, began: float) -> SearchReport:
    """Bound and gap in the objective's own unit.

    At a given GPU count dollars and kilowatt-hours are the wall time times a constant.
    """
    question, bound, gap = space.question, ended.bound_s, None
    if bound is not None and ended.best is not None:
        run = ended.best.estimate.run
        gap = max(0.0, 1 - bound / run.wall_time_s)
        bound *= objective_of(question, run) / run.wall_time_s
    return SearchReport(
        objective=question.objective,
        bound=bound,
        gap=gap,
        wall_s=time.monotonic() - began,
        candidates=orders.candidates_of(space),
        workers=budget.workers,
        outer_choices=ended.outer,
        inner_problems=ended.inner,
    )


def objective_of(question: Question, run: Run) -> float:
    """What is to be least: seconds of wall time, dollars, kilowatt-hours, or GPUs.

    Without a price or a power, time: it decides all the same.
    """
    value = {"time": run.wall_time_s, "cost": run.cost_usd, "energy": run.energy_kwh}
    if question.objective == "gpus":
        return question.job.gpus
    found = value[question.objective]
    return run.wall_time_s if found is None else found
