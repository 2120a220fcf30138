"""Uneven stages, recompute of a part of them, other schedules: what beats the best even layout.

The search of even layouts gives the incumbent. Every outer choice (outer.py) whose bound is below
it is then solved inside (inner.py, stagewise.py), best bound first, with the incumbent as cut-off.
The proof: no bound is left below the incumbent, and nothing was found below it where one was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import RECOMPUTE
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import broken_rules
from layoutopt.errors import InternalError, RuleError
from layoutopt.optimizer import choices
from layoutopt.optimizer.asked import asks_usual, is_wider, recompute_of, schedules_of
from layoutopt.optimizer.bounded import Bounded, bounds_of
from layoutopt.optimizer.inner import layout_from, problems_of, replaced
from layoutopt.optimizer.lean_pipelines import some_pipeline_fits
from layoutopt.optimizer.outer import SLACK, Group, groups_of
from layoutopt.optimizer.program import Save
from layoutopt.optimizer.question import Budget, Limit
from layoutopt.optimizer.rounds import Ended, Found, Rounds
from layoutopt.optimizer.shapes import shapes_of, with_every_chunk
from layoutopt.optimizer.space import Space, layout_of, space_of
from layoutopt.optimizer.stagewise import Row, Stagewise, best_rows
from layoutopt.optimizer.tables import Tables
from layoutopt.optimizer.unsharded import worth_sharding
from layoutopt.optimizer.wall import Clock
from layoutopt.optimizer.warmstart import start_from
from layoutopt.optimizer.work import least_wall_of_shapes_s

MARGIN = 1e-6
"""What a pipeline has to be faster by, relatively: an even one of equal time is preferred."""
_AGREES = 1e-9
_SHARE, _MOST_S = 0.25, 3.0
"""Of the time there is the search of even pipelines leaves so much, at most, to what follows: their
bounds hold for even ones too."""
_MOMENT_S = 1.5
"""What bounds may take beyond the limit of time: without them an answer would say little."""


@dataclass(frozen=True)
class Wider:
    """How the search of pipelines ended. ``plan`` is None where nothing beats the incumbent."""

    plan: Estimate | None
    chosen: dict[str, int] | None
    """The plan's axes; recompute by its code."""
    proved: bool
    bound_s: float
    """No run of any pipeline that was looked for takes less; infinite where there is none."""
    outer: int = 0
    """Outer choices that were bounded one by one."""
    inner: int = 0
    """Inner problems that the solver was asked."""


def searched(rounds: Rounds) -> Ended:
    """The best of one space: of the even pipelines, and of the others that are looked at."""
    space, clock = rounds.space, rounds.clock
    usual, wider = asks_usual(space.question.pipeline), is_wider(space.question)
    if wider:
        rounds.stops_at -= min(rounds.budget.seconds * _SHARE, _MOST_S)
    ended = rounds.run() if usual else Ended(_start(rounds), True, None)
    if not wider:
        return ended
    best = ended.best
    known_s = best.estimate.run.wall_time_s if best else math.inf
    limit_s = min(known_s, rounds.most_wall_s)
    if not ended.proved and (math.isinf(limit_s) or time.monotonic() >= rounds.ends_at):
        return Ended(best, False, least_in_a_moment_s(rounds, limit_s))
    if usual and math.isinf(limit_s) and not some_pipeline_fits(space):
        return Ended(None, True, None)
    pipelines = Pipelines(space, rounds.tables, clock, rounds.budget, rounds.ends_at)
    found = pipelines.run(limit_s)
    if found.plan is not None and found.chosen is not None:
        best = Found(
            chosen=found.chosen,
            quanta=clock.quanta(found.plan.step.time_s),
            save=clock.save_of(found.chosen),
            wall_s=found.plan.run.wall_time_s,
            estimate=found.plan,
        )
    # What was bounded there holds the even pipelines too.
    bound = found.bound_s if math.isfinite(found.bound_s) else None
    return Ended(best, ended.proved and found.proved, bound, found.outer, found.inner)


def least_in_a_moment_s(rounds: Rounds, limit_s: float) -> float:
    """No run of any pipeline is shorter than this, or than ``limit_s``: for where time is up. What
    memory leaves counts, if there is a limit and a moment is enough to see it."""
    if math.isinf(limit_s):
        return least_of_pipelines_s(rounds.space)
    moment = time.monotonic() + _MOMENT_S
    space, clock, budget = rounds.space, rounds.clock, rounds.budget
    pipelines = Pipelines(space, rounds.tables, clock, budget, moment, most_outer=0)
    return pipelines.run(limit_s).bound_s


def least_of_pipelines_s(space: Space) -> float:
    """No run of any pipeline of the space is shorter: a floor without tables and memory."""
    plain = schedules_of(space.question) == ("1f1b",)
    return least_wall_of_shapes_s(space, plain=plain)


def _start(rounds: Rounds) -> Found | None:
    """A layout to start from where another schedule is fixed: a good one of 1F1B, if it fits."""
    space, clock = one_chunk(rounds.space), rounds.clock
    chosen = start_from(space)
    if chosen is None:
        return None
    layout = replaced(
        layout_of(space.question, chosen), {"schedule": schedules_of(space.question)[0]}
    )
    priced = estimate(space.job, layout)
    if broken_rules(space.job, layout) or not priced.memory.fits:
        return None
    quanta, save = clock.quanta(priced.step.time_s), clock.save_of(chosen)
    return Found(chosen, quanta, save, priced.run.wall_time_s, priced)


def one_chunk(space: Space) -> Space:
    """The space of schedules that have more than one stage and do not interleave."""
    limits = (*space.question.limits, Limit("pp", ">", 1), Limit("vpp", "==", 1))
    return space_of(replace(space.question, limits=limits), space.dropped)


class Pipelines:
    """The search of one space's pipelines, given the run that they have to beat."""

    def __init__(
        self,
        space: Space,
        tables: Tables,
        clock: Clock,
        budget: Budget,
        ends_at: float,
        most_outer: float = math.inf,
    ) -> None:
        """``most_outer``: outer choices to look into, where not all of them are worth it."""
        self.most_outer = most_outer
        self.space, self.tables, self.clock, self.budget = space, tables, clock, budget
        self.ends_at = ends_at
        self.outer = self.inner = 0
        self.cut_short = False
        self._saves: dict[Save, None] = {}
        self._longest: dict[float, dict[Save, float]] = {}

    def run(self, best_s: float) -> Wider:
        """The best pipeline whose run takes less than ``best_s``, and the proof."""
        limit = best_s * (1 - MARGIN)
        plan: Estimate | None = None
        chosen: dict[str, int] | None = None
        bounded = self.bounded(limit)
        if self.cut_short:
            # Not all choices have a bound of their own.
            return Wider(None, None, False, least_of_pipelines_s(self.space))
        if not any(len(one.group) for one in bounded) and self._is_refused():
            raise self._none_legal()
        order = sorted(
            (float(one.walls[place]), number, place)
            for number, one in enumerate(bounded)
            for place in np.flatnonzero(np.isfinite(one.walls)).tolist()
        )
        for wall, number, place in order:
            if wall >= limit:
                break
            if time.monotonic() > self.ends_at or self.outer >= self.most_outer:
                return Wider(plan, chosen, False, min(wall, limit), self.outer, self.inner)
            self.outer += 1
            found, proved = self._inside(bounded[number], place, limit)
            if found is not None:
                plan, chosen = found, bounded[number].group.chosen(place)
                limit = found.run.wall_time_s * (1 - MARGIN)
                recompute = RECOMPUTE.index(found.layout.recompute)
                chosen["mode"] = choices.with_recompute(chosen["mode"], recompute)
            if not proved:
                return Wider(plan, chosen, False, min(wall, limit), self.outer, self.inner)
        return Wider(plan, chosen, True, limit, self.outer, self.inner)

    def bounded(self, limit: float) -> list[Bounded]:
        """All outer choices with their bounds; infinite for what cannot be within ``limit``."""
        found: list[Bounded] = []
        for group in self._groups(limit):
            found.append(bounds_of(self, group, limit))
            if time.monotonic() > self.ends_at:
                self.cut_short = True
                break
        return found

    def _is_refused(self) -> bool:
        """No layout runs the schedules that are asked for, memory ignored."""
        if asks_usual(self.space.question.pipeline):
            return False
        return all(not len(group) for group in self._groups(math.inf, every=True))

    def _none_legal(self) -> RuleError:
        words = " or ".join(schedules_of(self.space.question))
        return RuleError(
            f"no layout runs schedule {words}: it takes pp > 1 without interleaving, and zbv two "
            "layers or more on each stage",
            field="fix",
            value=f"schedule={words}",
            nearest=("schedule=1f1b",),
        )

    def _inside(self, bounded: Bounded, place: int, limit: float) -> tuple[Estimate | None, bool]:
        """The best pipeline of one outer choice that is within ``limit``, and whether that is
        certain."""
        group, best, proved = bounded.group, None, True
        save = bounded.save(place)
        most = self.objective_s(limit, save) - float(bounded.once_s[place])
        rooms = bounded.rooms(place, limit)
        for problem in problems_of(self.space, group, place, rooms, most):
            cutoff = self.objective_s(limit, save)
            if problem.least_s() * (1 - SLACK) > cutoff or cutoff <= 0:
                continue
            self.inner += 1
            if math.isinf(cutoff):
                cutoff = most_s(problem)
            left = self.ends_at - time.monotonic()
            answer = best_rows(problem, cutoff, self.budget, left)
            proved &= answer.proved
            if answer.rows is None:
                continue
            priced = estimate(self.space.job, layout_from(self.space, group, place, answer.rows))
            self.agrees(priced, problem.value_s(answer.rows))
            if priced.run.wall_time_s < limit:
                best, limit = priced, priced.run.wall_time_s
        return best, proved

    def agrees(self, priced: Estimate, objective_s: float) -> None:
        """The inner problem and the cost model tell the same story."""
        told = self.step_s(objective_s)
        if priced.layout.recompute == "full" and priced.layout.recompute_layers is None:
            # Where all recompute, passes are longer and hide more than a stage alone can know; such
            # splits are also searched as what they are.
            told = min(told, priced.step.time_s)
        if abs(told - priced.step.time_s) > _AGREES * priced.step.time_s:
            raise InternalError(
                f"step of {priced.layout}: {told} s by its stages, {priced.step.time_s} s by the "
                "cost model"
            )
        if self.space.keeps("every_stage_fits") and not priced.memory.fits:
            raise InternalError(f"the solver took {priced.layout}, which does not fit in memory")

    def step_s(self, objective_s: float) -> float:
        """The step's seconds, with what all layouts have in common."""
        overhead = self.space.job.software.step_overhead_s
        return self.clock.scale * (objective_s + overhead)

    def objective_s(self, wall_s: float, save: Save) -> float:
        """The longest objective whose run is within ``wall_s``, rounded outwards."""
        return self.objectives_s(wall_s, (save,))[save]

    def objectives_s(self, wall_s: float, saves: tuple[Save, ...]) -> dict[Save, float]:
        """The same for each of ``saves``, and for all that were asked for before."""
        for save in saves:
            self._saves[save] = None
        known = self._longest.setdefault(wall_s, {})
        new = tuple(save for save in self._saves if save not in known)
        if new and math.isinf(wall_s):
            known |= dict.fromkeys(new, math.inf)
        elif new:
            overhead = self.space.job.software.step_overhead_s
            steps = self.clock.longest_steps_s(wall_s, new)
            seconds = [s * (1 + SLACK) / self.clock.scale - overhead for s in steps]
            known |= dict(zip(new, seconds, strict=True))
        return known

    def _groups(self, limit: float, *, every: bool = False) -> Iterator[Group]:
        """Groups of outer choices within ``limit``, one for each schedule and variant;
        ``every``: those that cannot fit too."""
        wide = with_every_chunk(self.space)
        schedules = schedules_of(self.space.question)
        most = self.objective_s(limit, (0.0, 0.0))
        shapes = shapes_of(wide, self.tables, most, plain=schedules == ("1f1b",))
        worth = None if every else partial(worth_sharding, wide, most_s=most)
        able = recompute_of(self.space.question)
        return groups_of(wide, shapes, schedules, able, worth)


def most_s(problem: Stagewise) -> float:
    """More than any choice of rows takes."""
    most = [
        Row(
            max(row.layers for row in table),
            max(row.recomputed for row in table),
            max(row.seconds for row in table),
            max(row.cost_s for row in table),
            forward_s=0.0,
            again_s=max(row.again_s for row in table),
            tail_s=max(row.tail_s for row in table),
        )
        for table in problem.tables
    ]
    late = max(row.left_s for table in problem.tables for row in table) if problem.late else 0.0
    return problem.relaxed_s(most) + late
