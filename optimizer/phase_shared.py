"""One layout for several phases: the best, with a bound that no layout of the space can beat.

Phases stand in blocks. Within a block nothing changes but the number of microbatches; from block to
block the skeleton of the layout stays (phase_sides.py). Every outer choice of each phase has a
bound; added up over the phases they bound what a skeleton can do. By rising bound, a skeleton that
may still win is solved inside, over all phases at once (joint_rows.py), and priced. The proof: no
bound is left below the best that is known.

A run's wall time is not quite linear in its step. The inner problem takes a line below it, so that
its optimum is a bound, and the gap to the priced layout is told.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from layoutopt.costmodel.axes import Array, Ints, ints
from layoutopt.costmodel.checkpoint import checkpoint_bytes, run_wall_s
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.phases import anew_s, phase_estimate
from layoutopt.optimizer.bounded import Bounded
from layoutopt.optimizer.inner import Part, layout_from, shared_problems
from layoutopt.optimizer.joint_rows import every_shared, scaled, shared_rows
from layoutopt.optimizer.phase_sides import Side, codes_of
from layoutopt.optimizer.pipelining import most_s
from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.stagewise import Row, Stagewise

RESOLUTION = 1e-6
"""Costs closer than this, relatively, are equal."""
_POINTS = 2**12
_TRIES = 3
_FEW = 300
"""Splits that are priced one by one where no line decides between them."""
_SLACK = 1e-9


@dataclass(frozen=True)
class Block:
    """Phases that follow one another without a restart."""

    sides: tuple[Side, ...]
    closing: bool
    """Whether a restart comes after its last phase, which is then a part of its cost."""


@dataclass(frozen=True)
class Best:
    """``layouts``: one for each phase; None where nothing is below the cut-off."""

    layouts: tuple[Layout, ...] | None
    cost_s: float
    """Phases and restarts, without pauses for evaluation; the cut-off without layouts."""
    bound_s: float
    """Nothing costs less."""
    looked: int
    inner: int

    @property
    def proved(self) -> bool:
        """Whether nothing costs less, to a millionth."""
        return self.bound_s >= self.cost_s * (1 - RESOLUTION)


@dataclass(frozen=True)
class _Line:
    """A line below the wall time of a phase: floor_s + weight * objective."""

    floor_s: float
    weight: float


class SharedLayout:
    """The search of one layout for all phases of ``blocks``."""

    def __init__(self, blocks: Sequence[Block], budget: Budget, ends_at: float) -> None:
        self.blocks, self.budget, self.ends_at = blocks, budget, ends_at
        self.sides = [side for block in blocks for side in block.sides]
        self._sizes = [len(block.sides) for block in blocks]
        self.looked = self.inner = 0
        self.codes, self.skeleton_of = codes_of(self.sides)
        size = len(self.skeleton_of)
        self._places = []
        for codes in self.codes:
            places = np.full(size, -1, dtype=np.int64)
            places[codes] = np.arange(len(codes))
            self._places.append(places)
        self._costs = self._block_costs(size)
        skeletons = int(self.skeleton_of.max(initial=-1)) + 1
        self._least = []
        for costs in self._costs:
            least = np.full(skeletons, np.inf)
            np.minimum.at(least, self.skeleton_of, costs)
            self._least.append(least)
        self.bounds: Array = np.sum(self._least, axis=0)

    def _block_costs(self, size: int) -> list[Array]:
        """What each setup costs each block at least; infinite where a phase does not have it."""
        found, number = [], 0
        for block in self.blocks:
            costs = np.zeros(size)
            for side in block.sides:
                walls = np.full(size, np.inf)
                walls[self.codes[number]] = side.walls_s
                costs = costs + walls
                number += 1
            if block.closing:
                last, writes = block.sides[-1], np.zeros(size)
                writes[self.codes[number - 1]] = last.writes_s
                costs = costs + writes + _anew_s(last)
            found.append(costs)
        return found

    @property
    def least_s(self) -> float:
        """Nothing costs less; infinite where no layout is legal in every phase."""
        return float(self.bounds.min(initial=np.inf))

    def run(self, cutoff_s: float) -> Best:
        """The best layout that costs less than ``cutoff_s``, and the proof."""
        best: tuple[Layout, ...] | None = None
        cost, bound = cutoff_s, math.inf
        for skeleton in np.argsort(self.bounds, kind="stable").tolist():
            least = float(self.bounds[skeleton])
            if least >= cost or math.isinf(least):
                break
            for setups, below in self._combinations(skeleton):
                if below >= cost:
                    break
                if time.monotonic() > self.ends_at:
                    return Best(best, cost, min(bound, least, cost), self.looked, self.inner)
                self.looked += 1
                layouts, mine, lower = self._inside(setups, below, cost)
                bound = min(bound, lower)
                if layouts is not None:
                    best, cost = layouts, mine
        return Best(best, cost, min(bound, cost), self.looked, self.inner)

    def _combinations(self, skeleton: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Setups of one skeleton, one for each block, with what they cost at least; rising."""
        mine = np.flatnonzero(self.skeleton_of == skeleton)
        options: list[list[tuple[float, int]]] = []
        for costs in self._costs:
            kept = mine[np.isfinite(costs[mine])]
            options.append(sorted(zip(costs[kept].tolist(), kept.tolist(), strict=True)))

        def entry(places: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
            return sum(o[at][0] for o, at in zip(options, places, strict=True)), places

        start = entry((0,) * len(options))
        heap, seen = [start], {start[1]}
        while heap:
            below, places = heapq.heappop(heap)
            yield tuple(o[at][1] for o, at in zip(options, places, strict=True)), below
            for number, at in enumerate(places):
                after = (*places[:number], at + 1, *places[number + 1 :])
                if at + 1 < len(options[number]) and after not in seen:
                    seen.add(after)
                    heapq.heappush(heap, entry(after))

    def _chosen(self, setups: tuple[int, ...]) -> list[tuple[Bounded, int]]:
        """For each phase its group and place."""
        found, number = [], 0
        for block, setup in zip(self.blocks, setups, strict=True):
            for side in block.sides:
                group, place = side.where[self._places[number][setup]].tolist()
                found.append((side.bounded[group], place))
                number += 1
        return found

    def _closing_s(self, chosen: Sequence[tuple[Bounded, int]]) -> float:
        """What the restarts after the blocks take."""
        total, number = 0.0, -1
        for block in self.blocks:
            number += len(block.sides)
            bounded, place = chosen[number]
            if block.closing:
                total += bounded.save(place)[0] + _anew_s(block.sides[-1])
        return total

    def _inside(
        self, setups: tuple[int, ...], below_s: float, cutoff_s: float
    ) -> tuple[tuple[Layout, ...] | None, float, float]:
        """The best of these setups within the cut-off, its cost, and a bound for all of them."""
        chosen = self._chosen(setups)
        most = self._most_layers(setups, chosen, below_s, cutoff_s)
        best, bound, number = None, math.inf, 0
        each = []
        for block in self.blocks:
            size = len(block.sides)
            parts = [
                Part(bounded.search.space, bounded.group, place)
                for bounded, place in chosen[number : number + size]
            ]
            each.append(list(shared_problems(parts, most)))
            number += size
        for problems in product(*each):
            told = [problem for block in problems for problem in block]
            layouts, cost, lower = self._split(chosen, told, cutoff_s)
            bound = min(bound, lower)
            if layouts is not None:
                best, cutoff_s = layouts, cost
        return best, cutoff_s, bound

    def _most_layers(
        self,
        setups: tuple[int, ...],
        chosen: Sequence[tuple[Bounded, int]],
        below_s: float,
        cutoff_s: float,
    ) -> Ints:
        """Layers that each stage has room for in every phase below the cut-off."""
        bounded, place = chosen[0]
        if bounded.group.columns["pp"][place] == 1:
            return ints([bounded.search.space.job.model.layers])
        limits = self._limits(setups, below_s, cutoff_s)
        rooms = [
            bounded.rooms(place, limit / side.planned.share)
            for (bounded, place), limit, side in zip(chosen, limits, self.sides, strict=True)
        ]
        least: Ints = np.minimum.reduce(rooms)
        return least

    def _limits(self, setups: tuple[int, ...], below_s: float, cutoff_s: float) -> list[float]:
        """What each phase may take where the others take their least."""
        found, number = [], 0
        for block, setup in zip(self.blocks, setups, strict=True):
            for side in block.sides:
                own = float(side.walls_s[self._places[number][setup]])
                found.append(cutoff_s - below_s + own)
                number += 1
        return found

    def _split(
        self,
        chosen: Sequence[tuple[Bounded, int]],
        problems: Sequence[Stagewise],
        cutoff_s: float,
    ) -> tuple[tuple[Layout, ...] | None, float, float]:
        """The best split of one choice; again with what it found as the limit, until the bound is
        as good as it."""
        best, bound = None, 0.0
        for _ in range(_TRIES):
            found, lower = self._once(chosen, problems, cutoff_s)
            bound = max(bound, lower)
            if found is None:
                break
            layouts, cost = found
            if cost < cutoff_s:
                best, cutoff_s = layouts, cost
            if bound >= cutoff_s * (1 - RESOLUTION / 10):
                return best, cutoff_s, bound
        if math.isfinite(bound):
            # Of a few splits the wall times themselves decide: in a short run the interval between
            # saves is a few steps, and a line is far from them.
            return self._one_by_one(chosen, problems, best, cutoff_s, bound)
        return best, cutoff_s, bound

    def _one_by_one(
        self,
        chosen: Sequence[tuple[Bounded, int]],
        problems: Sequence[Stagewise],
        best: tuple[Layout, ...] | None,
        cutoff_s: float,
        bound_s: float,
    ) -> tuple[tuple[Layout, ...] | None, float, float]:
        """Every split in its turn, if there are few; else what is known."""
        closing, least = self._closing_s(chosen), math.inf
        splits = every_shared(problems, self._sizes, _FEW)
        if splits is None:
            return best, cutoff_s, bound_s
        for rows in splits:
            layouts, cost = self._priced(chosen, problems, rows)
            least = min(least, cost + closing)
            if cost + closing < cutoff_s:
                best, cutoff_s = layouts, cost + closing
        return best, cutoff_s, max(bound_s, least * (1 - _SLACK))

    def _once(
        self,
        chosen: Sequence[tuple[Bounded, int]],
        problems: Sequence[Stagewise],
        cutoff_s: float,
    ) -> tuple[tuple[tuple[Layout, ...], float] | None, float]:
        """What the solver finds below the cut-off, priced, and a bound; infinite: nothing is."""
        closing = self._closing_s(chosen)
        lows = [one.least_s() for one in problems]
        if any(map(math.isinf, lows)):
            return None, math.inf
        leasts = [self._wall_s(n, chosen[n], low) for n, low in enumerate(lows)]
        spare = cutoff_s - closing - sum(leasts)
        if spare <= 0:
            return None, math.inf
        lines = [
            self._line(n, chosen[n], low, most_s(problem), least + spare)
            for n, (low, problem, least) in enumerate(zip(lows, problems, leasts, strict=True))
        ]
        fixed = closing + sum(line.floor_s for line in lines)
        self.inner += 1
        told = [scaled(one, line.weight) for one, line in zip(problems, lines, strict=True)]
        limit = min(cutoff_s - fixed, sum(map(most_s, told)) * (1 + _SLACK))
        if limit <= 0:
            return None, math.inf
        answer = shared_rows(told, self._sizes, limit, self.budget, self.ends_at - time.monotonic())
        if answer.rows is None:
            return None, math.inf if answer.proved else closing + sum(leasts)
        # Later stages' traffic is not in the model of several phases: a bound all the same.
        value = sum(one.relaxed_s(rows) for one, rows in zip(told, answer.rows, strict=True))
        layouts, cost = self._priced(chosen, problems, answer.rows)
        lower = (fixed + value) * (1 - _SLACK) if answer.proved else closing + sum(leasts)
        return (layouts, cost + closing), lower

    def _priced(
        self,
        chosen: Sequence[tuple[Bounded, int]],
        problems: Sequence[Stagewise],
        rows: Sequence[Sequence[Row]],
    ) -> tuple[tuple[Layout, ...], float]:
        """The layout of each phase with the layers and recompute of its rows, and what the phases
        take."""
        layouts, cost = [], 0.0
        for side, (bounded, place), problem, mine in zip(
            self.sides, chosen, problems, rows, strict=True
        ):
            split = tuple(
                next(o for o in table if (o.layers, o.recomputed) == (row.layers, row.recomputed))
                for table, row in zip(problem.tables, mine, strict=True)
            )
            layout = layout_from(bounded.search.space, bounded.group, place, split)
            priced = phase_estimate(side.planned, layout)
            bounded.search.agrees(priced.estimate, problem.value_s(split))
            layouts.append(layout)
            cost += priced.run.wall_time_s - side.planned.pauses_s
        return tuple(layouts), cost

    def _wall_s(self, number: int, chosen: tuple[Bounded, int], objective_s: float) -> float:
        """What a phase takes whose step has this objective."""
        return float(self._walls_s(number, chosen, np.array([objective_s]))[0])

    def _walls_s(self, number: int, chosen: tuple[Bounded, int], objective_s: Array) -> Array:
        bounded, place = chosen
        job, search = self.sides[number].planned.job, bounded.search
        write, stall = bounded.save(place)
        steps = search.clock.scale * (objective_s + job.software.step_overhead_s)
        share = self.sides[number].planned.share
        walls: Array = share * run_wall_s(job, steps, write, stall, search.clock.size)
        return walls

    def _line(
        self, number: int, chosen: tuple[Bounded, int], low: float, high: float, limit_s: float
    ) -> _Line:
        """A line that is below the wall time from ``low`` to ``high``, or to where it passes
        ``limit_s``. Wall times never fall, so that between two points the first is a floor."""
        if math.isfinite(limit_s):
            longest = chosen[0].search.objective_s(
                limit_s / self.sides[number].planned.share, chosen[0].save(chosen[1])
            )
            high = min(high, longest)
        high = max(high, low * (1 + _SLACK))
        points = np.linspace(low, high, _POINTS + 1)
        walls = self._walls_s(number, chosen, points)
        weight = float(walls[-1] - walls[0]) / (high - low)
        floor = float(np.min(walls[:-1] - weight * points[1:]))
        return _Line(floor, weight)


def _anew_s(side: Side) -> float:
    """What the restart after a phase takes beside its save."""
    job = side.planned.job
    return anew_s(job, checkpoint_bytes(job))
