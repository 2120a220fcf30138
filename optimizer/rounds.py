"""Rounds of the solver until nothing is left that is faster, or within rounding as fast."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.results import Estimate
from layoutopt.errors import InternalError
from layoutopt.optimizer.cuts import narrowed, without_dominated, without_hopeless
from layoutopt.optimizer.floors import Floors, floors_of
from layoutopt.optimizer.lean import leanest
from layoutopt.optimizer.program import Program, Save, build, save_classes
from layoutopt.optimizer.question import AXES, Budget
from layoutopt.optimizer.score import step_quanta
from layoutopt.optimizer.solver import Solved, solve
from layoutopt.optimizer.space import Space, layout_of
from layoutopt.optimizer.tables import Tables, tables_of
from layoutopt.optimizer.wall import Clock
from layoutopt.optimizer.warmstart import start_from

MOST_TIES = 12
"""Layouts within rounding of the best that are priced one by one; where there are more, the first
in the order of AXES is taken: all of them are equal to a millionth."""
_NEAR = 1.3
"""A limit from outside this close to the lowest floor is as good as a first layout."""
TIE = 1e-9
"""Wall times closer than this, relatively, are equal."""


@dataclass(frozen=True)
class Found:
    """A layout with its exact integer step and its price in floats."""

    chosen: dict[str, int]
    quanta: int
    save: Save
    wall_s: float
    """By the integer step: what cut-offs are made from."""
    estimate: Estimate

    @property
    def order(self) -> tuple[int, ...]:
        """Place in the order of ties."""
        return tuple(self.chosen[axis] for axis in AXES)


@dataclass(frozen=True)
class Ended:
    """How the rounds ended."""

    best: Found | None
    proved: bool
    bound_s: float | None
    """No layout's run takes less wall time; None without a bound, or without any layout."""
    outer: int = 0
    """Outer choices of a pipeline that were looked into (pipelining.py)."""
    inner: int = 0
    """Inner problems that the solver was asked."""


class Rounds:
    """One search: what is known so far, and the model that shrinks with it."""

    def __init__(
        self, space: Space, budget: Budget, began: float, most_wall_s: float = math.inf
    ) -> None:
        """``most_wall_s``: only runs of at most this wall time are looked for.

        A proof then says that nothing but what is known is both within it and better.
        """
        self.space, self.budget, self.most_wall_s = space, budget, most_wall_s
        self.ends_at = self.stops_at = began + budget.seconds
        """When time is up, and when the rounds stop: sooner where others need what is left."""
        self.tables = tables_of(space)
        self.floors = floors_of(space, self.tables)
        self.clock = Clock(space.job, self.tables)
        self.known: list[Found] = []
        self.saves = tuple(save_classes(space, self.tables))
        self._excluded = 0
        self._cached: dict[float, dict[Save, int]] = {}

    def run(self) -> Ended:
        """Rounds until the proof, or until time is up."""
        if self.budget.use_hints:
            # The limit from outside first: where it leaves nothing there is no need of a start.
            if self.least_wall_s() > self.most_wall_s:
                return self._proved()
            self._start()
            if time.monotonic() >= self.stops_at:
                return Ended(self._pick() if self.known else None, False, self.least_wall_s())
            if not self.known and not self._limited() and not self._something_fits():
                return self._proved()
        program = self._program()
        if program is None:
            return self._proved()
        while True:
            self._narrow(program)
            left = self.stops_at - time.monotonic()
            solved = solve(program.model, program.degrees, self.budget, left)
            if solved.none:
                return self._proved()
            if solved.chosen is not None:
                self.known.append(self._found(solved.chosen))
            if not solved.proved:
                return self._out_of_time(solved)
            if len(self._tied()) > MOST_TIES:
                self._first_in_order(program)
                return self._proved()

    def _something_fits(self) -> bool:
        """Of even layouts, those that can be the leanest are few: all of them are looked at."""
        seen = leanest(self.space)
        return seen is not None and (seen.over_kib == 0 or not self.space.keeps("every_stage_fits"))

    def _start(self) -> None:
        """A first layout, which becomes a cut-off."""
        near = self.most_wall_s < _NEAR * self.least_wall_s()
        start = start_from(self.space, self.floors, near=near)
        if start is not None:
            self.known.append(self._found(start))

    def _program(self) -> Program | None:
        """The model with the cuts of what is known; None where they leave nothing."""
        if not self.budget.use_hints:
            return build(self.space, *without_dominated(self.tables, self.floors))
        tables, floors = without_dominated(self.tables, self.floors)
        if not self._limited():
            return build(self.space, tables, floors)
        tables, floors = self._cut(tables, floors)
        if not all(map(len, (floors.shape, tables.layer, tables.ends, tables.shard))):
            return None
        return build(narrowed(self.space, tables, floors), tables, floors)

    def _cut(self, tables: Tables, floors: Floors) -> tuple[Tables, Floors]:
        """Tables and floors without what no layout within the cut-offs can have."""
        return without_hopeless(tables, floors, max(self._most().values()))

    def _found(self, chosen: dict[str, int]) -> Found:
        quanta = step_quanta(self.space, self.tables, chosen)
        save = self.clock.save_of(chosen)
        priced = estimate(self.space.job, layout_of(self.space.question, chosen))
        self._agrees(quanta, priced)
        wall = self.clock.wall_s(self.clock.step_s(quanta), save)
        return Found(chosen, quanta, save, wall, priced)

    def _agrees(self, quanta: int, priced: Estimate) -> None:
        """The integer model and the cost model tell the same story of one layout."""
        off = abs(self.clock.step_s(quanta) - priced.step.time_s)
        allowed = self.clock.scale * self.tables.seconds(self.tables.delta)
        if off > allowed + 1e-9 * priced.step.time_s:
            raise InternalError(
                f"step of {priced.layout}: {self.clock.step_s(quanta)} s by the solver's tables, "
                f"{priced.step.time_s} s by the cost model"
            )
        if self.space.keeps("every_stage_fits") and not priced.memory.fits:
            raise InternalError(f"the solver took {priced.layout}, which does not fit in memory")

    def _most(self) -> dict[Save, int]:
        """For each save, quanta up to which a layout is better or within rounding as good."""
        return {save: most + 2 * self.tables.delta for save, most in self._quanta().items()}

    def _quanta(self) -> dict[Save, int]:
        """For each save, quanta of a step that makes the best run that is known."""
        wall = min((found.wall_s for found in self.known), default=math.inf)
        wall = min(wall, self.most_wall_s)
        if wall not in self._cached:
            longest = self.clock.longest_steps_s(wall, self.saves)
            steps = map(self.clock.quanta, longest)
            self._cached[wall] = dict(zip(self.saves, steps, strict=True))
        return self._cached[wall]

    def _limited(self) -> bool:
        """There is a cut-off: from a layout that is known, or from outside."""
        return bool(self.known) or math.isfinite(self.most_wall_s)

    def _tied(self) -> list[Found]:
        """What is known and within rounding of the best."""
        most = self._most()
        return [found for found in self.known if found.quanta <= most[found.save]]

    def _narrow(self, program: Program) -> None:
        """Only what is not known yet, and only what could be better or as good."""
        if not self._limited() or program.step is None:
            return
        most = self._most()
        for save, literal in program.saves.items():
            program.model.add(program.step <= most[save]).only_enforce_if(literal)
        for found in self.known[self._excluded :]:
            program.degrees.exclude(found.chosen)
        self._excluded = len(self.known)

    def _proved(self) -> Ended:
        """Nothing else is within the cut-offs: the best that is known is the best there is."""
        if not self.known:
            limited = self._limited()
            return Ended(
                None, True, max(self.most_wall_s, self.least_wall_s()) if limited else None
            )
        best = self._pick()
        # Where wall times are astronomical their floats are coarse: never above the answer itself.
        return Ended(best, True, min(self._bound_s(), best.estimate.run.wall_time_s))

    def _bound_s(self) -> float:
        """No integer step of any layout makes a shorter run; its rounding is taken off.

        With a save so slow that only an impossible step could make up for it, the lowest floor
        counts instead.
        """
        slack, floor = self.tables.delta + 1, self._floor()
        return min(
            self.clock.wall_s(self.clock.step_s(max(quanta, floor) - slack), save)
            for save, quanta in self._quanta().items()
        )

    def _floor(self) -> int:
        """No layout's step has fewer quanta."""
        return int(self.floors.shape.columns["tight"].min())

    def least_wall_s(self) -> float:
        """No layout's run is shorter: the lowest floor, with saves that cost nothing."""
        quanta = self._floor() - self.tables.delta - 1
        return self.clock.wall_s(self.clock.step_s(quanta), (0.0, 0.0))

    def _first_in_order(self, program: Program) -> None:
        """More ties than are worth pricing: only the first in the order of AXES is kept."""
        program.model.minimize(program.degrees.place_in_order(AXES))
        left = self.ends_at - time.monotonic()
        solved = solve(program.model, program.degrees, self.budget, left)
        if solved.chosen is not None:
            self.known.append(self._found(solved.chosen))
        self.known = [min(self._tied(), key=lambda found: found.order)]

    def _out_of_time(self, solved: Solved) -> Ended:
        best = self._pick() if self.known else None
        if solved.bound is None:
            return Ended(best, False, None)
        # The solver may not have got as far as the floors that its model starts from.
        quanta = max(solved.bound, self._floor()) - self.tables.delta - 1
        left = min(self.clock.wall_s(self.clock.step_s(quanta), save) for save in self.saves)
        return Ended(best, False, min(left, self._bound_s()) if self._limited() else left)

    def _pick(self) -> Found:
        """The least wall time in floats; ties go to the first in the order of AXES."""
        least = min(found.estimate.run.wall_time_s for found in self.known)
        ties = [f for f in self.known if f.estimate.run.wall_time_s <= least * (1 + TIE)]
        return min(ties, key=lambda found: found.order)
