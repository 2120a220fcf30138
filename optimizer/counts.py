"""A range of GPU counts, of batches or of both: each case is searched as if it were the only one.

Counts are taken in the order of a floor (work.py). What is best so far is the longest run that is
of interest at the next count, so that most counts are excluded by their floors or by a first
look at the solver's tables; those that are left are proved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.critical import at_batch
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.fragments import Chunks, best_chunks, node_count, placed
from layoutopt.costmodel.results import Estimate, Run
from layoutopt.costmodel.rules import divisors
from layoutopt.errors import InternalError, RuleError
from layoutopt.optimizer import orders
from layoutopt.optimizer.misses import meets_limits, meets_power
from layoutopt.optimizer.pipelining import least_of_pipelines_s
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.rounds import TIE, Ended, Rounds
from layoutopt.optimizer.search import proved
from layoutopt.optimizer.space import Space, layout_of
from layoutopt.optimizer.warmstart import start_from
from layoutopt.optimizer.work import least_gpu_seconds, least_wall_s
from layoutopt.units import HOUR

SEEDS = 6
"""Counts, those with the most layouts, at which local search looks for a first run."""
_BUCKET = 1.1
"""Floors closer than this, relatively, are not put in order: counts with more layouts go first."""
_OUTSIDE = 200
_ODD = 15
"""Batches that are tried are an odd number up to this times a power of two: 13% apart at most."""

Key = tuple[int, ...]
"""GPU count, global batch and, on a fragment, the chunks in which its nodes stand."""


@dataclass(frozen=True)
class Case:
    """One GPU count and batch, and the least that any run there can take."""

    space: Space
    candidates: int
    """Legal layouts, in every order of the axes."""
    least_wall_s: float
    chunks: Chunks = ()

    @cached_property
    def closer_wall_s(self) -> float:
        """The same by the shapes that this count divides into."""
        return max(self.least_wall_s, least_of_pipelines_s(self.space))

    @property
    def question(self) -> Question:
        """The question at this count."""
        return self.space.question

    @property
    def gpus(self) -> int:
        """The GPU count."""
        return self.space.job.gpus

    @property
    def key(self) -> Key:
        """GPU count and batch."""
        return (self.gpus, self.space.job.training.global_batch, *self.chunks)

    @property
    def limit_s(self) -> float:
        """The longest run that may keep to deadline and budget; infinite without them.

        Rounded up, by more than what is lost between dollars and seconds.
        """
        question, limit = self.question, math.inf
        if question.deadline_s is not None:
            limit = question.deadline_s
        price = self.space.job.cluster.usd_per_gpu_hour
        if question.budget_usd is not None and price:
            limit = min(limit, question.budget_usd / (price * self.gpus) * HOUR)
        return limit * (1 + TIE)

    def value(self, wall_s: float) -> float:
        """What is to be least, for a run of ``wall_s``: seconds, GPU-seconds, or GPUs."""
        objective = self.question.objective
        if objective == "gpus":
            return float(self.gpus)
        return wall_s if objective == "time" else wall_s * self.gpus

    def longest_s(self, value: float) -> float:
        """The longest run that is worth ``value``, and keeps to the limits."""
        objective = self.question.objective
        if objective == "gpus":
            return self.limit_s if self.gpus <= value else 0.0
        return min(self.limit_s, value if objective == "time" else value / self.gpus)


def cases_of(question: Question) -> list[Case]:
    """Counts and batches of the ranges that have a legal layout, rising."""
    found: list[Case] = []
    for batch in batched(question):
        at = with_batch(question, batch)
        work = least_gpu_seconds(at.job)
        for gpus in _possible(at):
            job = replace(at.job, gpus=gpus)
            found += _cases_at(replace(at, job=job, counts=None), least_wall_s(job, work))
    return sorted(found, key=lambda case: case.key)


def _cases_at(question: Question, least: float) -> Iterator[Case]:
    """One count: a case, or on a fragment one for each way in which its nodes may stand."""
    job = question.job
    ways = best_chunks(job.cluster, node_count(job)) if job.cluster.switches else ((),)
    count = 0
    for chunks in ways:
        here = replace(question, job=placed(job, chunks) if job.cluster.switches else job)
        space = orders.first_space(here)
        if space is None:
            return
        count = count or orders.candidates_of(space)
        yield Case(space, count, least, chunks)


def with_batch(question: Question, batch: int) -> Question:
    """The same question with exactly ``batch`` sequences a step, and the tokens that it needs."""
    if question.batches is None:
        return question
    training = at_batch(question.job.training, batch, question.critical_tokens)
    return replace(question, job=replace(question.job, training=training), batches=None)


def batched(question: Question) -> tuple[int, ...]:
    """The batch, or those of the range that are an odd number up to 15 times a power of two."""
    if question.batches is None:
        return (question.job.training.global_batch,)
    least, most = question.batches
    powers = range(most.bit_length())
    found = {odd << k for k in powers for odd in range(1, _ODD + 1, 2)}
    return tuple(sorted(batch for batch in found if least <= batch <= most))


def counted(question: Question) -> Iterator[int]:
    """Multiples of a node's GPUs from the least to the most, and every count below one node."""
    least, most = question.range
    if question.counts is None:
        yield least
        return
    node = question.job.cluster.gpus_per_node
    yield from range(least, min(node, most + 1))
    yield from range(max(node, -(-least // node) * node), most + 1, node)


def _possible(question: Question) -> Iterable[int]:
    """Counts that are a product of degrees that each may have: no legal count is missing."""
    job, (least, most) = question.job, question.range
    products = ints([1])
    for degrees in (
        divisors(job.model.heads),
        divisors(job.training.seq_len),
        range(1, job.model.layers + 1),
        divisors(job.training.global_batch),
    ):
        products = np.unique(np.multiply.outer(products, ints(list(degrees))))
        products = products[products <= most]
    return sorted(set(products[products >= least].tolist()) & set(counted(question)))


@dataclass(frozen=True)
class Searched:
    """One count and how its search ended."""

    case: Case
    rounds: Rounds | None
    """What it was searched with; None where it found no run that keeps to the limits."""
    ended: Ended
    longest_s: float
    """The limit that it was searched with."""

    @property
    def best(self) -> Estimate | None:
        """Its best run; None where none keeps to the limits of the question."""
        found = self.ended.best.estimate if self.ended.best else None
        return found if found and meets_limits(self.case.question, found.run) else None

    @property
    def exact(self) -> bool:
        """Its best run is proved to be this count's best."""
        best = self.best
        return self.ended.proved and best is not None and best.run.wall_time_s <= self.longest_s

    @property
    def bound(self) -> float:
        """No run of this count that keeps to the limits is worth less."""
        least, best = self.case.closer_wall_s, self.best
        wall = max(least, self.ended.bound_s or 0.0)
        if best is not None:
            return self.case.value(min(wall, best.run.wall_time_s))
        # Nothing there keeps to the limits: it can have no better run.
        nothing = self.ended.proved and self.longest_s >= self.case.limit_s
        return math.inf if nothing else self.case.value(wall)


class Counts:
    """The search over the counts of one question."""

    def __init__(self, cases: list[Case], budget: Budget, began: float) -> None:
        self.cases = [case for case in cases if meets_power(case.question)]
        self.budget, self.ends_at = budget, began + budget.seconds
        self.searched: dict[Key, Searched] = {}
        self.best: Searched | None = None
        self._worth = math.inf
        self._out = False

    def run(self) -> None:
        """Every count that could be better than what is known; stops when time is up."""
        if self.cases and self.cases[0].question.objective in ("cost", "energy"):
            self._seed()
        for case in sorted(self.cases, key=_order):
            longest = self._longest_s(case)
            if case.least_wall_s > longest or case.closer_wall_s > longest:
                continue
            if time.monotonic() >= self.ends_at:
                self._out = True
                return
            self._note(self.look(case, longest))

    def _longest_s(self, case: Case) -> float:
        """The longest run of interest there. Of equally few GPUs the shortest run is best."""
        longest, best = case.longest_s(self._worth * (1 + TIE)), self.best
        if case.question.objective == "gpus" and best and best.best and case.gpus == best.case.gpus:
            longest = min(longest, best.best.run.wall_time_s)
        return longest

    def look(self, case: Case, longest_s: float) -> Searched:
        """Searches one count for a run of at most ``longest_s``."""
        began = time.monotonic()
        budget = replace(self.budget, seconds=max(self.ends_at - began, 0.01))
        rounds, ended = proved(case.space, budget, began, longest_s)
        if ended.best and ended.best.estimate.run.wall_time_s < case.closer_wall_s * (1 - TIE):
            raise InternalError(f"{ended.best.estimate.layout} is below the floor of its count")
        found = Searched(case, rounds, ended, longest_s)
        found = found if found.exact or found.best else replace(found, rounds=None)
        self.searched[case.key] = found
        return found

    @property
    def proved(self) -> bool:
        """The best count is proved."""
        return not self._out and all(one.ended.proved for one in self.searched.values())

    @property
    def bound(self) -> float:
        """No run of any count that keeps to the limits is worth less; infinite without any."""
        left = [case for case in self.cases if case.key not in self.searched]
        open_ = [case.value(case.least_wall_s) for case in left if self._out]
        bounds = [one.bound for one in self.searched.values()]
        mine = self._value(self.best) if self.best else math.inf
        return min([*open_, *bounds, mine])

    def _seed(self) -> None:
        """Something to beat, from the counts with the most layouts."""
        for case in sorted(self.cases, key=lambda one: -one.candidates)[:SEEDS]:
            if time.monotonic() >= self.ends_at:
                return
            start = start_from(case.space)
            if start is None:
                continue
            run = estimate(case.space.job, layout_of(case.space.question, start)).run
            if meets_limits(case.question, run):
                self._worth = min(self._worth, case.value(run.wall_time_s))

    def _note(self, found: Searched) -> None:
        if found.best is None:
            return
        value = self._value(found)
        if self.best is not None:
            now = self._value(self.best)
            tied = abs(value - now) <= TIE * now
            if _place(found) >= _place(self.best) if tied else value > now:
                return
        self.best, self._worth = found, min(value, self._worth)

    @staticmethod
    def _value(found: Searched) -> float:
        best = found.best
        return found.case.value(best.run.wall_time_s) if best else math.inf


def _place(found: Searched) -> tuple[float, ...]:
    """Of equal worth: the fewest GPUs, of these the shortest run, of these the smallest batch."""
    wall = found.best.run.wall_time_s if found.best else math.inf
    # For time all are equally long: to a billionth, which is no reason to take a larger batch.
    shown = 0.0 if found.case.question.objective != "gpus" else wall
    return (found.case.gpus, shown, found.case.key[1])


def _order(case: Case) -> tuple[float, ...]:
    """By the floor, roughly; then those with the most layouts. For ``gpus``: fewest first."""
    if case.question.objective == "gpus":
        return (case.gpus, case.least_wall_s)
    floor = math.log(case.value(case.least_wall_s)) / math.log(_BUCKET)
    return (math.floor(floor), -case.candidates, *case.key)


def no_count(question: Question) -> RuleError:
    """The error to raise where no count of the range has a legal layout."""
    least, most = question.range
    node = question.job.cluster.gpus_per_node
    if not batched(question):
        return _no_batch(question)
    wider = replace(question, counts=(max(1, least - _OUTSIDE * node), most + _OUTSIDE * node))
    near = [case.gpus for case in cases_of(wider)]
    below = [gpus for gpus in near if gpus < least][-1:]
    above = [gpus for gpus in near if gpus > most][:1]
    named = f"; nearest: {', '.join(f'{gpus:,}' for gpus in below + above)}" if near else ""
    return RuleError(
        f"no count from {least:,} to {most:,} GPUs (multiples of the {node} of a node, or fewer "
        f"than {node}) divides into a layout with a global batch of "
        f"{' or '.join(f'{batch:,}' for batch in batched(question)[-2:])} sequences{named}",
        field="gpus",
        value=f"{least}..{most}",
        nearest=tuple(below + above),
    )


def _no_batch(question: Question) -> RuleError:
    least, most = question.batches or (1, 1)
    near = batched(replace(question, batches=(max(1, least // 2), most * 2)))
    beside = [batch for batch in near if batch < least][-1:] + [b for b in near if b > most][:1]
    return RuleError(
        f"no batch from {least:,} to {most:,} is an odd number up to {_ODD} times a power of two, "
        f"which are the ones that a range tries; nearest: {', '.join(f'{b:,}' for b in beside)}",
        field="global_batch",
        value=f"{least}..{most}",
        nearest=tuple(beside),
    )


def run_value(question: Question, run: Run, gpus: int) -> float:
    """The objective of a run in its own unit: seconds, dollars, kilowatt-hours or GPUs.

    Without a price or a power, GPU-hours.
    """
    if question.objective == "gpus":
        return gpus
    if question.objective == "time":
        return run.wall_time_s
    found = run.cost_usd if question.objective == "cost" else run.energy_kwh
    return run.wall_time_s * gpus / HOUR if found is None else found
