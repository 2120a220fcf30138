"""A run in phases: which layout each phase has, and where it pays to change.

1. Every phase alone: its own best layout, by the search of one job, proved.
2. One layout for all phases (phase_shared.py), proved.
3. The best of all: phases are cut into stretches, each with one layout, and a restart is paid
   between stretches. A stretch holds phases that differ in batch alone: a new sequence length or
   GPU count takes a restart whatever the layout, which is then free to change. The best cut is a
   dynamic program over where stretches end, and a stretch of several phases is a question to 2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from layoutopt.costmodel.checkpoint import checkpoint_cost
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.phases import (
    Phase,
    PhasedRun,
    PhaseJob,
    anew_s,
    phase_jobs,
    phased_run,
)
from layoutopt.errors import InternalError
from layoutopt.optimizer import orders
from layoutopt.optimizer.nearest import nearest_legal
from layoutopt.optimizer.outcome import Outcome, Status
from layoutopt.optimizer.phase_shared import RESOLUTION, Best, Block, SharedLayout
from layoutopt.optimizer.phase_sides import Side, side_of
from layoutopt.optimizer.question import Budget, PhaseLayouts, Question
from layoutopt.optimizer.rounds import Ended
from layoutopt.optimizer.search import search
from layoutopt.optimizer.space import Space

_MORE = (0.03, 0.3, math.inf)
"""What one layout for all may take beyond each phase's own best, in the order of trying."""


@dataclass(frozen=True)
class PhasedQuestion:
    """A question whose job runs in phases; ``question.job`` holds what they have in common."""

    question: Question
    phases: tuple[Phase, ...]
    layouts: PhaseLayouts = "auto"
    """one: the same for all. each: every phase its own best. auto: what makes the shortest run."""


@dataclass(frozen=True)
class Way:
    """PhaseLayouts for all phases, chosen one way. ``plan`` is None where ``why_not`` says why."""

    plan: PhasedRun | None
    bound_s: float | None
    """No layouts chosen this way make a shorter run; None without a bound."""
    proved: bool
    why_not: str = ""

    @property
    def wall_s(self) -> float:
        """Wall time of the whole run; infinite without a plan."""
        return self.plan.run.wall_time_s if self.plan else math.inf


@dataclass(frozen=True)
class PhasedOutcome:
    """The answer to a PhasedQuestion."""

    status: Status
    ways: dict[PhaseLayouts, Way]
    """auto, one and each; empty where a phase has no layout."""
    candidates: int
    """Legal layouts of all phases, memory ignored."""
    looked: int
    """Choices for several phases at once that were looked into, best bound first."""
    inner: int
    wall_s: float
    failed: tuple[int, Outcome] | None = None
    """Number of a phase that has no layout, and its answer."""


@dataclass(frozen=True)
class _Unit:
    """Adjacent phases that are alike: they take one layout, as two halves of one phase do."""

    planned: PhaseJob
    numbers: tuple[int, ...]


def search_phases(asked: PhasedQuestion, budget: Budget | None = None) -> PhasedOutcome:
    """The layouts of all phases that make the shortest run, and the proof.

    Raises InputError where arithmetic or a framework's rule leaves a phase no layout.
    """
    return _Search(asked, budget or Budget()).run()


class _Search:
    def __init__(self, asked: PhasedQuestion, budget: Budget) -> None:
        self.asked, self.budget, self.began = asked, budget, time.monotonic()
        self.ends_at = self.began + budget.seconds
        self.planned = phase_jobs(asked.question.job, asked.phases)
        self.units = _units(asked)
        self.looked = self.inner = 0
        self.spaces: list[Space] = []
        self.singles: list[Ended] = []
        self.blocks = _blocks(self.units)

    def run(self) -> PhasedOutcome:
        for unit in self.units:
            space = orders.first_space(self._question(unit))
            if space is None:
                raise nearest_legal(self._question(unit))
            self.spaces.append(space)
        for unit, space in zip(self.units, self.spaces, strict=True):
            _, ended = orders.proved(space, self.budget, self.began)
            if ended.best is None:
                return self._failed(unit, ended)
            self.singles.append(ended)
        # What was asked for comes first, while there is time.
        one = self._one() if self.asked.layouts == "one" else None
        each, auto = self._each(), self._auto()
        one = one or self._one()
        ways: dict[PhaseLayouts, Way] = {"auto": _least(auto, each, one), "one": one, "each": each}
        return self._outcome(_status(ways[self.asked.layouts]), ways)

    def _outcome(self, status: Status, ways: dict[PhaseLayouts, Way]) -> PhasedOutcome:
        return PhasedOutcome(
            status=status,
            ways=ways,
            candidates=sum(map(orders.candidates_of, self.spaces)),
            looked=self.looked,
            inner=self.inner,
            wall_s=time.monotonic() - self.began,
        )

    def _question(self, unit: _Unit) -> Question:
        """The question of one phase alone; a restart follows it, but after the last."""
        planned = unit.planned
        job, training = planned.job, planned.job.training
        if unit is not self.units[-1]:
            # Its save comes once, and the job is the phase's share of a longer run.
            training = training.model_copy(update={"closing_saves": 1 / planned.share})
        return replace(self.asked.question, job=replace(job, training=training))

    def _failed(self, unit: _Unit, ended: Ended) -> PhasedOutcome:
        number = unit.numbers[0]
        if not ended.proved:
            return self._outcome(Status.UNKNOWN, {})
        left = replace(self.budget, seconds=max(self.ends_at - time.monotonic(), 1.0))
        found = search(replace(self._question(unit), top=0), left)
        return replace(self._outcome(found.status, {}), failed=(number, found))

    def _expanded(self, layouts: Sequence[Layout]) -> PhasedRun:
        """The run under one layout for each unit."""
        told = {
            number: layout
            for unit, layout in zip(self.units, layouts, strict=True)
            for number in unit.numbers
        }
        return phased_run(self.planned, [told[one.number] for one in self.planned])

    def _each(self) -> Way:
        layouts = [ended.best.estimate.layout for ended in self.singles if ended.best]
        plan = self._expanded(layouts)
        slack, known = 0.0, True
        for unit, ended in zip(self.units, self.singles, strict=True):
            known &= ended.bound_s is not None
            if ended.best is not None and ended.bound_s is not None:
                slack += unit.planned.share * (ended.best.estimate.run.wall_time_s - ended.bound_s)
        bound = plan.run.wall_time_s - max(slack, 0.0) if known else None
        return Way(plan, bound, all(ended.proved for ended in self.singles))

    def _sides(self, units: Sequence[int], cutoff_s: float) -> list[Side]:
        """All that these phases can have in layouts that cost less than ``cutoff_s`` together."""
        least = {n: self._least_s(n) for n in units}
        found: dict[int, Side] = {}
        beside: Side | None = None
        # The longest phase first: the others need not look at what it does not have.
        for n in sorted(units, key=lambda n: -least[n]):
            limit = cutoff_s - sum(least.values()) + least[n]
            unit, space = self.units[n], self._plain(n)
            found[n] = side_of(unit.planned, space, self.budget, self.ends_at, limit, beside)
            beside = found[n] if beside is None or len(found[n].setups) else beside
        return [found[n] for n in units]

    def _least_s(self, number: int) -> float:
        """No layout runs the phase in less, the save after it aside."""
        planned, bound = self.units[number].planned, self.singles[number].bound_s
        if bound is None:
            return 0.0
        # What was bounded has the save of its layout in it; of all saves one node's is the slowest.
        _, slowest, _ = checkpoint_cost(planned.job, 1, 1, 0)
        return max(planned.share * bound - float(slowest[0]), 0.0)

    def _plain(self, number: int) -> Space:
        """A phase's space without the save after it, which is counted apart."""
        space, job = self.spaces[number], self.units[number].planned.job
        plain = replace(job, axis_order=space.job.axis_order)
        return replace(space, question=replace(space.question, job=plain))

    def _one(self) -> Way:
        """One layout for all phases."""
        if len(self.units) == 1:
            return self._each()
        if len({unit.planned.phase.gpus for unit in self.units}) > 1:
            return Way(None, None, True, "the phases run on different GPU counts")
        best = self._shared_by_all()
        if best.layouts is None:
            known = math.isinf(best.bound_s)
            why = "no layout is legal and fits in every phase" if known else "none found in time"
            return Way(None, None, known, why)
        plan = self._expanded(best.layouts)
        pauses = plan.run.wall_time_s - best.cost_s
        return Way(plan, min(best.bound_s + pauses, plan.run.wall_time_s), best.proved)

    def _shared_by_all(self) -> Best:
        """The best layout for all phases: first with little more than each phase's own best takes,
        then with more, until there is one."""
        units = range(len(self.units))
        alone = sum(self._alone(n)[1] for n in units)
        best = Best(None, 0.0, 0.0, 0, 0)
        for more in _MORE:
            cutoff = alone * (1 + more)
            sides = self._sides(units, cutoff)
            blocks, number = [], 0
            for block in self.blocks:
                mine = tuple(sides[number : number + len(block)])
                number += len(block)
                blocks.append(Block(mine, number < len(sides)))
            best = self._ran(blocks, units, cutoff)
            if best.layouts is not None or time.monotonic() > self.ends_at:
                break
        return best

    def _ran(self, blocks: Sequence[Block], units: Sequence[int], cutoff_s: float) -> Best:
        """One layout for all of ``units``."""
        best = SharedLayout(blocks, self.budget, self.ends_at).run(cutoff_s)
        sides = [side for block in blocks for side in block.sides]
        self.looked += best.looked
        self.inner += best.inner
        if not all(side.complete for side in sides):
            least = sum(self._least_s(unit) for unit in units)
            return replace(best, bound_s=min(best.bound_s, least))
        return best

    def _auto(self) -> Way:
        """The best cut into stretches; each block of equal sequence length and GPUs by itself."""
        layouts: list[Layout] = []
        bound, number = 0.0, 0
        for block in self.blocks:
            mine, lower = self._cut(list(range(number, number + len(block))))
            layouts += mine
            bound += lower
            number += len(block)
        plan = self._expanded(layouts)
        pauses = sum(one.pauses_s for one in self.planned)
        wall = plan.run.wall_time_s
        bound = min(bound + pauses, wall)
        return Way(plan, bound, bound >= wall * (1 - 3 * RESOLUTION))

    def _cut(self, units: list[int]) -> tuple[list[Layout], float]:
        """The best cut of one block, and what it costs at least."""
        alone = [self._alone(n) for n in units]
        cutoff = sum(cost for _, cost, _ in alone)
        sides = self._sides(units, cutoff) if len(units) > 1 else []
        costs, lower = [0.0], [0.0]
        ways: list[list[Layout]] = [[]]
        for end in range(1, len(units) + 1):
            layout, cost, low = alone[end - 1]
            best, best_low = costs[end - 1] + cost, lower[end - 1] + low
            way = [*ways[end - 1], layout]
            for start in range(end - 2, -1, -1):
                closing = units[end - 1] < len(self.units) - 1
                block = Block(tuple(sides[start:end]), closing)
                found = self._ran([block], units[start:end], best - costs[start])
                best_low = min(best_low, lower[start] + found.bound_s)
                if found.layouts is not None:
                    best, way = costs[start] + found.cost_s, [*ways[start], *found.layouts]
            costs.append(best)
            lower.append(min(best_low, best))
            ways.append(way)
        return ways[-1], lower[-1]

    def _alone(self, number: int) -> tuple[Layout, float, float]:
        """The best layout of one phase, its cost with the restart after it, and the bound."""
        unit, ended = self.units[number], self.singles[number]
        if ended.best is None:
            raise InternalError(f"phase {unit.numbers[0]} has no layout")
        job, share = unit.planned.job, unit.planned.share
        anew = anew_s(job, ended.best.estimate.checkpoint.bytes)
        after = anew if number < len(self.units) - 1 else 0.0
        cost = share * ended.best.estimate.run.wall_time_s + after
        bound = 0.0 if ended.bound_s is None else share * ended.bound_s + after
        return ended.best.estimate.layout, cost, bound


def _units(asked: PhasedQuestion) -> list[_Unit]:
    """Phases, with neighbours that are alike joined."""
    joined: list[tuple[Phase, list[int]]] = []
    for number, phase in enumerate(asked.phases, 1):
        last = joined[-1][0] if joined else None
        if last and replace(last, tokens=phase.tokens) == phase:
            tokens = last.tokens + phase.tokens
            joined[-1] = (replace(last, tokens=tokens), [*joined[-1][1], number])
        else:
            joined.append((phase, [number]))
    planned = phase_jobs(asked.question.job, [phase for phase, _ in joined])
    return [_Unit(one, tuple(numbers)) for one, (_, numbers) in zip(planned, joined, strict=True)]


def _blocks(units: Sequence[_Unit]) -> list[list[int]]:
    """Units that follow one another with the same sequence length and GPUs."""
    blocks: list[list[int]] = []
    for number, unit in enumerate(units):
        phase = unit.planned.phase
        last = units[number - 1].planned.phase if number else None
        if last and (last.seq_len, last.gpus) == (phase.seq_len, phase.gpus):
            blocks[-1].append(number)
        else:
            blocks.append([number])
    return blocks


def _least(auto: Way, *others: Way) -> Way:
    """The best of all: exact to a millionth, so that what another way does better by less, or after
    time was up, is taken."""
    best = min((auto, *others), key=lambda way: way.wall_s)
    if best is auto or best.plan is None or auto.bound_s is None:
        return auto
    wall = best.wall_s
    bound = min(auto.bound_s, wall)
    return Way(best.plan, bound, bound >= wall * (1 - 3 * RESOLUTION))


def _status(way: Way) -> Status:
    if way.plan is None:
        return Status.INFEASIBLE if way.proved else Status.UNKNOWN
    return Status.OPTIMAL if way.proved else Status.FEASIBLE
