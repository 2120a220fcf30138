"""Splits that several jobs share: how many layers stand on each stage, with recompute of their own.

Each problem is an inner problem of one job (stagewise.py), its seconds scaled to their worth.
A stage takes one row of every problem, all with as many layers, and within a block of problems with
as much recompute; what is least is the sum of the problems' objectives. Stages that have the same
tables and weights in all problems are one class of which rows are counted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.solver import run
from layoutopt.optimizer.stagewise import PARTS, Chain, Row, Stagewise

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

Rows = tuple[Row, ...]
"""One of each problem."""
MOST_ROWS = 20_000
"""Rows of a class; beyond it the split is left unproved."""


@dataclass(frozen=True)
class Shared:
    """``rows``: for each problem one row a stage; None where nothing is below the cut-off.
    ``proved`` says whether that, or that nothing is better, is certain."""

    rows: tuple[Rows, ...] | None
    proved: bool


def scaled(problem: Stagewise, weight: float) -> Stagewise:
    """The problem whose objective is ``weight`` times as much; a row's own seconds stay."""

    def chain(one: Chain) -> Chain:
        parts = ((weight * v for v in values) for values in (one.seconds, one.forward, one.again))
        seconds, forward, again = map(tuple, parts)
        return Chain(weight * one.constant, seconds, forward, again)

    return Stagewise(
        layers=problem.layers,
        factor=weight * problem.factor,
        tables=tuple(
            tuple(
                replace(
                    row,
                    cost_s=weight * row.cost_s,
                    tail_s=weight * row.tail_s,
                    left_s=weight * row.left_s,
                )
                for row in table
            )
            for table in problem.tables
        ),
        constant=weight * problem.constant,
        chains=tuple(map(chain, problem.chains)),
        bounds=tuple((weight * factor, weight * rest) for factor, rest in problem.bounds),
        late=problem.late and replace(problem.late, share=weight * problem.late.share),
    )


def shared_rows(
    problems: Sequence[Stagewise],
    blocks: Sequence[int],
    cutoff_s: float,
    budget: Budget,
    seconds: float,
) -> Shared:
    """The rows that cost least together, at most ``cutoff_s`` but for rounding. ``blocks``: how
    many of the problems, one after another, recompute alike."""
    from layoutopt.optimizer.cp_sat import cp_model

    classes = _classes(problems)
    options = [list(_together(_tables(problems, stages[0]), blocks)) for stages in classes]
    if any(len(rows) > MOST_ROWS for rows in options):
        return Shared(None, False)
    model = cp_model.CpModel()
    inner = _Joint(model, problems, cutoff_s / PARTS)
    for stages, rows in zip(classes, options, strict=True):
        inner.take(stages, rows)
    inner.minimize()
    solver, status = run(model, budget, seconds)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Shared(None, status == cp_model.INFEASIBLE)
    chosen: dict[int, Rows] = {}
    for stages, taken in inner.counts:
        picked = [rows for rows, count in taken for _ in range(solver.value(count))]
        chosen |= dict(zip(stages, picked, strict=True))
    stagewise = [chosen[stage] for stage in range(len(problems[0].tables))]
    return Shared(tuple(zip(*stagewise, strict=True)), status == cp_model.OPTIMAL)


def every_shared(
    problems: Sequence[Stagewise], blocks: Sequence[int], most: int
) -> list[tuple[Rows, ...]] | None:
    """Every choice of rows; None where there are more than ``most`` ways to combine them."""
    tables = [
        list(_together(_tables(problems, stage), blocks))
        for stage in range(len(problems[0].tables))
    ]
    if math.prod(map(len, tables)) > most:
        return None
    return [
        tuple(zip(*stages, strict=True))
        for stages in product(*tables)
        if sum(rows[0].layers for rows in stages) == problems[0].layers
    ]


def _tables(problems: Sequence[Stagewise], stage: int) -> list[tuple[Row, ...]]:
    return [problem.tables[stage] for problem in problems]


def _classes(problems: Sequence[Stagewise]) -> list[list[int]]:
    """Stages with equal tables and equal weights in all problems."""
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for stage in range(len(problems[0].tables)):
        weights = [
            (one.seconds[stage], one.forward[stage], one.again[stage])
            for problem in problems
            for one in problem.chains
        ]
        found[*_tables(problems, stage), *weights].append(stage)
    return list(found.values())


def _together(tables: Sequence[tuple[Row, ...]], blocks: Sequence[int]) -> Iterator[Rows]:
    """One row of each table, all with as many layers, of a block with as much recompute."""
    by_layers: list[dict[int, list[Rows]]] = []
    first = 0
    for size in blocks:
        mine: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for table in tables[first : first + size]:
            for row in table:
                mine[row.layers, row.recomputed].append(row)
        first += size
        alike: dict[int, list[Rows]] = defaultdict(list)
        for (layers, _), rows in mine.items():
            if len(rows) == size:
                alike[layers].append(tuple(rows))
        by_layers.append(alike)
    for layers in sorted(by_layers[0]):
        for parts in product(*(alike.get(layers, []) for alike in by_layers)):
            yield tuple(row for part in parts for row in part)


class _Joint:
    """The CP-SAT model: how many stages of each class take each choice of rows."""

    def __init__(self, model: CpModel, problems: Sequence[Stagewise], quantum: float) -> None:
        self.model, self.problems, self.quantum = model, problems, quantum
        self.most = PARTS + (2 * len(problems[0].tables) + 4) * len(problems)
        self.slowest, self.tails, self.longest = (
            [model.new_int_var(0, 2 * PARTS, "") for _ in problems] for _ in range(3)
        )
        self.counts: list[tuple[list[int], list[tuple[Rows, IntVar]]]] = []
        self._cost: list[tuple[IntVar, int]] = []
        self._layers: list[tuple[IntVar, int]] = []
        self._chains: list[list[list[tuple[IntVar, int]]]] = [
            [[] for _ in problem.chains] for problem in problems
        ]

    def take(self, stages: list[int], options: Sequence[Rows]) -> None:
        """Every stage of a class takes one of the choices; not one over the cut-off alone."""
        taken: list[tuple[Rows, IntVar]] = []
        for rows in options:
            pairs = list(zip(self.problems, rows, strict=True))
            slowest = [self._quanta(one.factor * row.seconds) for one, row in pairs]
            tails = [self._quanta(row.tail_s) for row in rows]
            own = sum(self._quanta(row.cost_s) for row in rows)
            if sum(slowest) + sum(tails) + own > self.most:
                continue
            count = self._count(len(stages), slowest, tails)
            taken.append((rows, count))
            self._cost.append((count, own))
            self._layers.append((count, rows[0].layers))
            for (problem, row), chains in zip(pairs, self._chains, strict=True):
                for chain, told in zip(problem.chains, chains, strict=True):
                    told.append((count, self._quanta(chain.of(stages[0], row))))
        self.model.add(sum(count for _, count in taken) == len(stages))
        self.counts.append((stages, taken))

    def minimize(self) -> None:
        """All layers stand somewhere, and the objectives together are within the cut-off."""
        from layoutopt.optimizer.cp_sat import cp_model

        model, problems = self.model, self.problems
        model.add(sum(number * count for count, number in self._layers) == problems[0].layers)
        for problem, chains, longest in zip(problems, self._chains, self.longest, strict=True):
            for chain, parts in zip(problem.chains, chains, strict=True):
                told = sum(part * count for count, part in parts)
                model.add(longest >= told + self._quanta(chain.constant))
        least = [*self.slowest, *self.tails, *self.longest]
        total = sum(least) + sum(own * count for count, own in self._cost)
        total += sum(self._quanta(problem.constant) for problem in problems)
        model.add(total <= self.most)
        model.minimize(total)
        every = [count for _, taken in self.counts for _, count in taken]
        model.add_decision_strategy(every, cp_model.CHOOSE_FIRST, cp_model.SELECT_MAX_VALUE)
        model.add_decision_strategy(least, cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE)

    def _count(self, stages: int, slowest: Sequence[int], tails: Sequence[int]) -> IntVar:
        """How many of a class's stages take these rows; one of them makes each problem's slowest
        and tail at least as large."""
        count = self.model.new_int_var(0, stages, "")
        used = self.model.new_bool_var("")
        self.model.add(count <= stages * used)
        for variables, weights in ((self.slowest, slowest), (self.tails, tails)):
            for one, weight in zip(variables, weights, strict=True):
                if weight:
                    self.model.add(one >= weight * used)
        return count

    def _quanta(self, seconds: float) -> int:
        return round(seconds / self.quantum)
