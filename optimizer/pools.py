"""The search on a cluster of several pools: which pool each stage stands on, and its layers.

Each pool alone is searched as any cluster is (pool_alone); the best of them is what stages on
several pools, or on a part of one, have to beat:

1. Numpy gives every choice (all axes, the stages on each pool) a floor that no split of its layers
   can beat (pool_choices).
2. Choices are taken by rising floor; each becomes an inner problem of its layers per stage, with
   the best that is known as cut-off (pool_split). The proof: no floor is left below the best.
3. What comes back is priced by ``estimate``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from layoutopt.costmodel.checkpoint import checkpoint_cost, run_wall_s
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.mixed import pool_jobs, stages_on, whole_job
from layoutopt.costmodel.pipelines import pipelines_of
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.stages import even_split
from layoutopt.errors import InputError, InternalError
from layoutopt.optimizer.alternatives import why_it_loses
from layoutopt.optimizer.asked import asks_usual
from layoutopt.optimizer.domains import within
from layoutopt.optimizer.outcome import Alternative, Outcome, SearchReport, Status
from layoutopt.optimizer.pool_alone import Alone, pools_alone
from layoutopt.optimizer.pool_choices import Choice, Choices, rates_of
from layoutopt.optimizer.pool_split import Splitting, with_layers
from layoutopt.optimizer.question import Budget, Question

ROUNDING = 1e-7
"""A choice has to be better by more than this to take the best's place; the proof is about that."""
_LIKELY = 20_000
"""Rows that are looked at for a first answer."""
_HALVINGS = 50


class PoolSearch:
    """Plain pipelines on any stages of any pools."""

    def __init__(self, question: Question, budget: Budget, began: float) -> None:
        self.question, self.job = question, question.job
        self.budget, self.ends_at = budget, began + budget.seconds
        # What not every pool has a price or a power for is measured in time.
        jobs = list(pool_jobs(self.job).values())
        self.timed = rates_of(jobs, question.objective) is None
        self.even = pipelines_of(self.job.software.framework).splits != "any"
        self.best: Estimate | None = None
        self.priced: list[Estimate] = []
        self.looked_at, self.solved = 0, 0
        self.proved, self.floor = True, float("inf")
        self._seen: set[tuple[int, tuple[int, ...]]] = set()

    @cached_property
    def choices(self) -> Choices:
        """All of them but the layers."""
        return Choices(self.question)

    @property
    def count(self) -> int:
        """Choices in every order of their pools; none where such pipelines are not asked for."""
        return self.choices.count if _asks_plain(self.question) else 0

    def know(self, plan: Estimate) -> None:
        """Something to beat."""
        self.priced.append(plan)
        if self.best is None or self.value(plan) < self.most:
            self.best = plan

    def value(self, plan: Estimate) -> float:
        """The objective of a plan."""
        return self._value(whole_job(self.job, plan.layout), plan.run.wall_time_s)

    @property
    def most(self) -> float:
        """What a choice has to be below to be of interest."""
        return float("inf") if self.best is None else self.value(self.best) * (1 - ROUNDING)

    def run(self) -> None:
        """Looks at the likely choices until one fits, then at all whose floor is lower."""
        if not _asks_plain(self.question):
            return
        for choice in self.choices.likely(_LIKELY):
            if self.best is not None or time.monotonic() > self.ends_at:
                break
            self._look_at(choice)
        for choice in self.choices.below(self.most):
            if choice.floor >= self.most:
                break
            if time.monotonic() > self.ends_at:
                self.proved = False
            if not self.proved:
                self.floor = choice.floor
                break
            self._look_at(choice)

    def _look_at(self, choice: Choice) -> None:
        """Every order of the choice's pools: a floor with memory, then the solver."""
        if (choice.row, choice.stages) in self._seen:
            return
        self._seen.add((choice.row, choice.stages))
        for layout in self.choices.layouts(choice):
            if not _as_fixed(self.question, layout):
                continue
            self.looked_at += 1
            whole = whole_job(self.job, layout)
            if broken_rules(replace(whole, cluster=self.job.cluster), layout):
                continue
            splitting = Splitting(self.job, layout, even=self.even)
            least = splitting.floor_s()
            if (
                least == float("inf")
                or self._run(whole, layout, splitting.step_s(least)) >= self.most
            ):
                continue
            self._solve(whole, splitting)

    def _solve(self, whole: Job, splitting: Splitting) -> None:
        """The best layers of one choice, if they are better than the best that is known."""
        most_s = splitting.seconds_within(self._longest_step_s(whole, splitting.layout))
        split, proved = splitting.best(most_s, self.budget, self.ends_at - time.monotonic())
        self.solved += 1
        self.proved = self.proved and proved
        if split is None:
            return
        plan = estimate(self.job, with_layers(splitting.layout, split.layers))
        off = abs(plan.step.time_s - splitting.step_s(split.seconds))
        if off > 1e-9 * plan.step.time_s or not plan.memory.fits:
            raise InternalError(f"split and estimate differ by {off} s on {plan.layout}")
        self.know(plan)

    def _run(self, whole: Job, layout: Layout, step_s: float) -> float:
        """The objective of a run with such steps."""
        size, write, stall = checkpoint_cost(whole, layout.tp, layout.pp, layout.zero_stage)
        return self._value(whole, float(run_wall_s(whole, step_s, write, stall, size)[0]))

    def _value(self, whole: Job, wall_s: float) -> float:
        if self.timed:
            return wall_s
        rates = rates_of([whole], self.question.objective)
        return wall_s if rates is None else wall_s * float(rates[0]) * whole.gpus

    def _longest_step_s(self, whole: Job, layout: Layout) -> float:
        """A step whose run is no better than the best that is known; infinite without one."""
        if self.best is None:
            return float("inf")
        low, high = 0.0, self.best.run.wall_time_s / self.job.training.steps
        while self._run(whole, layout, high) < self.most:
            high *= 2
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            within = self._run(whole, layout, middle) < self.most
            low, high = (middle, high) if within else (low, middle)
        return high


def search_pools(question: Question, budget: Budget) -> Outcome:
    """The best layout on the pools of the question's cluster, some of which may be left out."""
    began = time.monotonic()
    _refuse(question)
    alone = list(pools_alone(question, budget, began))
    found = PoolSearch(question, budget, began)
    for one in alone:
        if one.plan is not None:
            found.know(one.plan)
    found.run()
    best, report = found.best, _report(found, alone, began, budget)
    proved = found.proved and all(one.proved for one in alone)
    if best is None:
        return Outcome(Status.INFEASIBLE if proved else Status.UNKNOWN, None, report)
    return Outcome(
        status=Status.OPTIMAL if proved else Status.FEASIBLE,
        plan=best,
        search=report,
        alternatives=_alternatives(found, best),
        explain=tuple(_explained(found, best, alone)),
    )


def _asks_plain(question: Question) -> bool:
    """Whether plain 1F1B of a dense model, one chunk a stage, is within what is asked for."""
    one = all(within(question.limits, axis, 1) for axis in ("ep", "etp", "vpp"))
    return question.job.model.moe is None and asks_usual(question.pipeline) and one


def _as_fixed(question: Question, layout: Layout) -> bool:
    """Whether ``layout`` has what the question fixes, beside the axes of a row."""
    told = {**vars(layout), "shard_degree": layout.shard_degree or layout.dp * layout.cp}
    return all(told.get(key, value) == value for key, value in question.fix.items())


def _refuse(question: Question) -> None:
    """What a search on pools does not take."""
    for field, value in (("deadline", question.deadline_s), ("budget", question.budget_usd)):
        if value is not None:
            raise InputError(
                f"{field} is not taken with a cluster of several pools; leave it out, or give one "
                "pool as --cluster",
                field=field,
                value=value,
            )


def _report(found: PoolSearch, alone: list[Alone], began: float, budget: Budget) -> SearchReport:
    """``candidates``: rows times stage counts, each in every order of its pools, layers open, and
    the layouts of each pool alone."""
    value = None if found.best is None else found.value(found.best)
    bound = None if value is None else min(found.most, found.floor)
    for one in alone:
        if bound is not None and not one.proved:
            bound = _least(found, one, bound)
    unit = _unit(found.question, value, found.best)
    return SearchReport(
        objective=found.question.objective,
        bound=None if bound is None else bound * unit,
        gap=None if bound is None or value is None else max(0.0, 1 - bound / value),
        wall_s=time.monotonic() - began,
        candidates=found.count + sum(one.candidates for one in alone),
        workers=budget.workers,
    )


def _least(found: PoolSearch, alone: Alone, bound: float) -> float | None:
    """The bound with that of a pool whose search was cut short; None where it has none."""
    if alone.bound_s is None:
        return None
    if alone.plan is None:
        return bound if found.question.objective == "time" and alone.bound_s >= bound else None
    worth = found.value(alone.plan) / alone.plan.run.wall_time_s
    return min(bound, alone.bound_s * worth)


def _unit(question: Question, value: float | None, best: Estimate | None) -> float:
    """From the search's own unit to dollars or kilowatt-hours."""
    if best is None or not value:
        return 1.0
    told = {"cost": best.run.cost_usd, "energy": best.run.energy_kwh}.get(question.objective)
    return 1.0 if told is None else told / value


def _alternatives(found: PoolSearch, best: Estimate) -> tuple[Alternative, ...]:
    """The best of other kinds among the layouts that were priced on the way."""
    kinds: dict[object, Estimate] = {_kind(best.layout): best}
    for plan in sorted(found.priced, key=found.value):
        kinds.setdefault(_kind(plan.layout), plan)
    others = list(kinds.values())[1 : found.question.top + 1]
    return tuple(Alternative(one, why_it_loses(one, best)) for one in others)


def _kind(layout: Layout) -> object:
    return (layout.tp, layout.cp, layout.dp, tuple(stages_on(layout).items()))


def _explained(found: PoolSearch, best: Estimate, alone: list[Alone]) -> Iterator[str]:
    """Who holds what, what is left out and why, and what one pool alone would take."""
    layout, total = best.layout, found.job.model.layers
    layers = layout.layers_per_stage or even_split(total, layout.pp)
    a_stage = layout.gpus // layout.pp
    pools = {pool.name: pool for pool in found.job.cluster.pools}
    for name, count in stages_on(layout).items():
        held = sum(
            n for n, pool in zip(layers, layout.pools_per_stage or (), strict=True) if pool == name
        )
        yield (
            f"Pool {name}: {count} stages on {count * a_stage:,} of {pools[name].all_gpus:,} GPUs "
            f"hold {held} of {total} layers."
        )
    for name, pool in pools.items():
        if name not in stages_on(layout):
            why = "no layout with" if _asks_plain(found.question) else "none on"
            yield f"Pool {name} is left out: {why} its {pool.all_gpus:,} GPUs is better."
    for one in alone:
        if one.plan is not None and set(stages_on(layout)) != {one.name}:
            more = found.value(one.plan) / found.value(best) - 1
            yield f"Pool {one.name} alone would take {more:.1%} more {found.question.objective}."
    if not _asks_plain(found.question):
        yield "Each pool was searched alone: what is asked for has no price on several pools."
        return
    yield (
        f"Proof: each pool alone, as any cluster; of stages on several {found.looked_at:,} choices "
        f"had a floor below the answer, the solver split {found.solved:,} of them."
    )
