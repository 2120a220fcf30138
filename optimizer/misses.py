"""When nothing fits: the layout that came nearest, by how much, and what would help."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory import CONTEXT_BYTES
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import sharding_fits
from layoutopt.costmodel.software import software
from layoutopt.hardware_profiles.cluster import with_nodes
from layoutopt.optimizer.outcome import Change, Miss
from layoutopt.optimizer.program import build
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.rounds import Rounds
from layoutopt.optimizer.solver import solve
from layoutopt.optimizer.space import Space, layout_of, space_of
from layoutopt.optimizer.tables import Tables
from layoutopt.units import GIB, HOUR, format_bytes

MOST_SEARCHES = 10
"""Changed questions that are solved to price the ways out."""
SECONDS = 6.0
"""How long to look for ways out, all together."""
_SHARDING_FRAMEWORK = "torchtitan"
"""A framework that shards weights, to suggest where the given one does not."""


def memory_misses(
    space: Space, tables: Tables, budget: Budget, left_s: float
) -> tuple[Miss, ...]:
    """The layout that needs the least memory beyond the device's, and the ways out."""
    program = build(space, tables, soft_memory=True)
    solved = solve(program.model, program.degrees, budget, max(left_s, 1.0))
    if solved.chosen is None:
        return ()
    question = space.question
    nearest = estimate(space.job, layout_of(space.job, solved.chosen))
    worst = nearest.memory.worst
    changes = _Ways(question, budget).out_of_memory(nearest)
    return (
        Miss(
            limit="memory",
            stage=worst.stage,
            over_bytes=worst.reserved - nearest.memory.usable_bytes,
            over_s=None,
            over_usd=None,
            layout=nearest.layout,
            changes=changes,
        ),
    )


def limit_misses(question: Question, best: Estimate, budget: Budget) -> tuple[Miss, ...]:
    """The best layout there is misses the deadline or the budget: by how much."""
    found, run = [], best.run
    ways = _Ways(question, budget)
    if question.deadline_s is not None and run.wall_time_s > question.deadline_s:
        over = run.wall_time_s - question.deadline_s
        changes = ways.out_of_time(best)
        found.append(Miss("deadline", None, None, over, None, best.layout, changes))
    cost = run.cost_usd
    if question.budget_usd is not None and (cost is None or cost > question.budget_usd):
        dollars = None if cost is None else cost - question.budget_usd
        changes = ways.out_of_budget(best)
        found.append(Miss("budget", None, None, None, dollars, best.layout, changes))
    return tuple(found)


class _Ways:
    """Changes of a question that let something through, each solved for its step time."""

    def __init__(self, question: Question, budget: Budget) -> None:
        self.question, self.budget = question, budget
        self.until = time.monotonic() + min(SECONDS, budget.seconds)
        self.searches = 0

    def out_of_memory(self, nearest: Estimate) -> tuple[Change, ...]:
        """Free what was fixed, more GPUs, more memory each, a framework that shards more."""
        found = [*self._freed(), *self._framework(), self._memory(nearest)]
        ratio = nearest.memory.worst.reserved / max(nearest.memory.usable_bytes, 1)
        found += self._more_gpus(ratio, lambda best: True)
        return tuple(sorted(found, key=lambda change: change.step_time_s or math.inf))

    def out_of_time(self, best: Estimate) -> tuple[Change, ...]:
        """More GPUs, or a later deadline."""
        deadline = self.question.deadline_s or 0.0
        ratio = best.run.wall_time_s / max(deadline, 1.0)
        found = [Change("deadline", f"{best.run.wall_time_s / HOUR:.1f}h", best.step.time_s)]
        found += self._freed()
        found += self._more_gpus(ratio, lambda other: other.run.wall_time_s <= deadline)
        return tuple(found)

    def out_of_budget(self, best: Estimate) -> tuple[Change, ...]:
        """More money, or what was fixed set free."""
        cost = best.run.cost_usd
        found = [] if cost is None else [Change("budget", f"{cost:.0f}", best.step.time_s)]
        return (*found, *self._freed())

    def _best(self, question: Question) -> Estimate | None:
        """The best layout of a changed question, if there is time to find it."""
        left = self.until - time.monotonic()
        if self.searches >= MOST_SEARCHES or left <= 0:
            return None
        self.searches += 1
        space = space_of(question)
        if not space.candidates:
            return None
        ended = Rounds(space, replace(self.budget, seconds=left), time.monotonic()).run()
        return ended.best.estimate if ended.best else None

    def _freed(self) -> Iterator[Change]:
        """One fixed or limited axis left to the search."""
        question = self.question
        for axis in {**question.fix, **{limit.axis: 0 for limit in question.limits}}:
            fix = {other: value for other, value in question.fix.items() if other != axis}
            limits = tuple(limit for limit in question.limits if limit.axis != axis)
            best = self._best(self._unlimited(replace(question, fix=fix, limits=limits)))
            if best is not None and self._meets(best):
                yield Change(axis, str(getattr(best.layout, axis)), best.step.time_s)

    def _framework(self) -> Iterator[Change]:
        job = self.question.job
        if sharding_fits(job, 3, 1):
            return
        profile = software(_SHARDING_FRAMEWORK)
        best = self._best(replace(self.question, job=replace(job, software=profile)))
        if best is not None:
            yield Change("framework", profile.name, best.step.time_s)

    def _memory(self, nearest: Estimate) -> Change:
        """Memory that a device needs for the nearest layout."""
        needed = nearest.memory.worst.reserved + CONTEXT_BYTES
        whole = math.ceil(needed / GIB) * GIB
        return Change("gpu memory", f"{format_bytes(whole)} or more", nearest.step.time_s)

    def _more_gpus(
        self, ratio: float, enough: Callable[[Estimate], bool]
    ) -> Iterator[Change]:
        """The smallest multiple of the GPUs, among a few, that is enough."""
        for factor in _factors(ratio):
            gpus = self.question.job.gpus * factor
            job = _on_more_gpus(self.question.job, gpus)
            question = self._unlimited(replace(self.question, job=job))
            best = self._best(question)
            if best is not None and enough(best):
                yield Change("gpus", str(gpus), best.step.time_s)
                return

    def _unlimited(self, question: Question) -> Question:
        return replace(question, deadline_s=None, budget_usd=None)

    def _meets(self, best: Estimate) -> bool:
        deadline, money = self.question.deadline_s, self.question.budget_usd
        late = deadline is not None and best.run.wall_time_s > deadline
        cost = best.run.cost_usd
        return not late and (money is None or (cost is not None and cost <= money))


def _on_more_gpus(job: Job, gpus: int) -> Job:
    """The same job on more GPUs, on more nodes of the same kind where the cluster has too few."""
    cluster = job.cluster
    nodes = -(-gpus // cluster.gpus_per_node)
    if cluster.nodes is not None and nodes > cluster.nodes:
        cluster = with_nodes(cluster, nodes)
    return replace(job, gpus=gpus, cluster=cluster)


def _factors(ratio: float) -> tuple[int, ...]:
    """Multiples of the GPU count to try, from the least that could do."""
    first = max(2, math.floor(ratio))
    start = 1 << max(1, (first - 1).bit_length() - 1)
    return tuple(start * step for step in (1, 2, 3, 4, 8, 16))
