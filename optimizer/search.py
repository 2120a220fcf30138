"""The search: a CP-SAT model over tables of the cost model, solved until it is proved.

1. Local search gives a first layout, which becomes a cut-off (warmstart).
2. The solver looks for any other layout that is faster, or within rounding as fast: each round
   finds the fastest one left or proves that there is none (rounds).
3. What is within rounding of the fastest is priced by ``estimate``; ties go by the order of AXES.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.reliability import never_finishes
from layoutopt.errors import InputError
from layoutopt.optimizer.outcome import Outcome, SearchReport, Status
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.rounds import Ended, Rounds
from layoutopt.optimizer.space import space_of

_JOULES_PER_KWH = 3.6e6


def search(question: Question, budget: Budget | None = None) -> Outcome:
    """The layout that is best for ``question``, and the proof.

    Raises InputError where arithmetic or a framework's rule excludes every layout, with the
    nearest GPU counts and batches that work. That nothing fits in memory, or meets the deadline
    or the budget, is an Outcome.
    """
    budget = budget or Budget()
    began = time.monotonic()
    space = space_of(question)
    candidates = space.candidates
    if not candidates:
        raise InputError("no layout")
    ended = Rounds(space, budget, began).run()
    plan = ended.best.estimate if ended.best else None
    status = Status.OPTIMAL if ended.proved else Status.FEASIBLE
    report = SearchReport(question.objective, ended.bound_s, None, time.monotonic()-began, candidates, budget.workers)
    return Outcome(status, plan, report)
