"""Each pool alone, with all of its GPUs: searched as a cluster of one type, its whole space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.mixed import pool_jobs
from layoutopt.costmodel.results import Estimate
from layoutopt.errors import InternalError, RuleError
from layoutopt.optimizer import orders
from layoutopt.optimizer.question import Budget, Question

_AGREES = 1e-9


@dataclass(frozen=True)
class Alone:
    """How the search of one pool ended."""

    name: str
    plan: Estimate | None
    """The best of its layouts, as one on the whole cluster; None: nothing is legal or fits."""
    proved: bool
    bound_s: float | None
    """No run on it is shorter, as far as is known."""
    candidates: int


def pools_alone(question: Question, budget: Budget, began: float) -> Iterator[Alone]:
    """Every pool of the question's cluster, one after another."""
    for name in pool_jobs(question.job):
        yield _alone(question, name, budget, began)


def _alone(question: Question, name: str, budget: Budget, began: float) -> Alone:
    asked = replace(question, job=pool_jobs(question.job)[name])
    space = orders.first_space(asked)
    if space is None:
        return Alone(name, None, True, None, 0)
    candidates = orders.candidates_of(space)
    try:
        _, ended = orders.proved(space, budget, began)
    except RuleError:
        # No layout of this pool runs the schedules that are asked for.
        return Alone(name, None, True, None, candidates)
    if ended.best is None:
        return Alone(name, None, ended.proved, ended.bound_s, candidates)
    best = ended.best.estimate
    plan = estimate(question.job, replace(best.layout, pools_per_stage=(name,) * best.layout.pp))
    off = abs(plan.run.wall_time_s - best.run.wall_time_s)
    if off > _AGREES * best.run.wall_time_s:
        raise InternalError(f"{best.layout} takes {off} s more or less as one of several pools")
    return Alone(name, plan, ended.proved, ended.bound_s, candidates)
