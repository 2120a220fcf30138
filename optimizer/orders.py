"""The order of the axes as a decision: the same space once for each order that has a price.

An order changes no rule of arithmetic and no memory, only the links that groups cross. So each
order is a space of its own, proved with the best of the others as its limit.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from layoutopt.costmodel.placement import PRICED, ordered
from layoutopt.optimizer.pipelining import least_in_a_moment_s, searched
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.rounds import Ended, Rounds
from layoutopt.optimizer.space import Space, space_of

RESOLUTION = 1e-6
"""Relative difference of wall times up to which two answers are equally good; another order has to
be faster by half of it."""


def orders_of(question: Question) -> tuple[str, ...]:
    """The orders to search, the usual one first.

    Those of the framework, or the fixed one. Mixtures of experts keep to the usual one: with the
    pipeline inside, their expert groups would have to fill tp * cp ranks (rules).
    """
    if "axis_order" in question.fix:
        return (str(question.fix["axis_order"]),)
    known = tuple(order for order in PRICED if order in question.job.software.axis_orders)
    return known if question.job.model.moe is None and known else PRICED[:1]


def first_space(question: Question) -> Space | None:
    """The space of the first order that allows any layout; None where no order does."""
    for order in orders_of(question):
        space = space_of(replace(question, job=ordered(question.job, order)))
        if space.candidates:
            return space
    return None


def candidates_of(space: Space) -> int:
    """Legal layouts of the space and of the same question in other orders."""
    return space.candidates + sum(other.candidates for other in other_orders(space))


def other_orders(space: Space) -> tuple[Space, ...]:
    """The same question's spaces in the orders that ``space`` does not have; none of them empty."""
    question = space.question
    jobs = (ordered(question.job, order) for order in orders_of(question))
    found = (
        space_of(replace(question, job=job), space.dropped)
        for job in jobs
        if job.axis_order != question.job.axis_order
    )
    return tuple(other for other in found if other.candidates)


def proved(
    space: Space, budget: Budget, began: float, most_wall_s: float = math.inf
) -> tuple[Rounds, Ended]:
    """The search of one question, over all its orders: see `search.proved`."""
    rounds = Rounds(space, budget, began, most_wall_s)
    ended = searched(rounds)
    if ended.proved and ended.best is None and not math.isfinite(most_wall_s):
        return rounds, ended  # Nothing fits: no order changes what a GPU holds.
    for other in other_orders(space):
        rounds, ended = _faster_of(rounds, ended, other, began, most_wall_s)
    return rounds, ended


def _faster_of(
    rounds: Rounds, ended: Ended, other: Space, began: float, most_wall_s: float
) -> tuple[Rounds, Ended]:
    """What is known, or what another order does better; the bound holds for both."""
    wall = ended.best.estimate.run.wall_time_s if ended.best else math.inf
    limit = min(most_wall_s, wall * (1 - RESOLUTION / 2))
    again = rounds
    known = ended.proved or ended.best is not None
    if known and time.monotonic() < rounds.ends_at:
        again = Rounds(other, rounds.budget, began, limit)
        found = searched(again)
    else:
        unproved = Rounds(other, rounds.budget, began, limit)
        found = Ended(None, False, least_in_a_moment_s(unproved, limit))
    walls = [one.bound_s for one in (ended, found)]
    bound = min((w for w in walls if w is not None), default=None)
    if any(one.bound_s is None and not one.proved for one in (ended, found)):
        bound = None
    sure = ended.proved and found.proved
    work = (ended.outer + found.outer, ended.inner + found.inner)
    if found.best is not None and found.best.estimate.run.wall_time_s <= limit:
        return again, Ended(found.best, sure, bound, *work)
    return rounds, Ended(ended.best, sure, bound, *work)
