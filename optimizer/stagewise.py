"""The inner part of a pipeline: how many layers stand on each stage, and how many recompute.

A small CP-SAT model for one outer choice. Every stage takes one row of its table (layers, layers
recomputed, seconds), a table may be another for each stage; the rows' layers add up to the model's,
and what is least is

    factor * slowest stage + sum of the rows' costs

Stages with the same table are one class, and the model counts how many of them take a row: equal
stages are not told apart. With the incumbent as cut-off, "no solution" is the proof that this outer
choice has nothing better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.solver import run

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

PARTS = 2**40
"""Quanta in the cut-off: a sum of rounded rows is off by less than a billionth of it."""


@dataclass(frozen=True, order=True)
class Row:
    """What one stage may be."""

    layers: int
    recomputed: int
    seconds: float
    """One microbatch on the stage."""
    cost_s: float
    """What the row adds to the objective beside its part in the slowest stage."""


@dataclass(frozen=True)
class Stagewise:
    """One outer choice: a table for each stage, in the order of the stages."""

    layers: int
    factor: float
    """What a second of the slowest stage costs."""
    tables: tuple[tuple[Row, ...], ...]

    def least_s(self) -> float:
        """No choice of rows costs less: the least slowest stage with room for all layers, and each
        stage's least cost. Infinite where no choice of rows holds the layers."""
        times = sorted({row.seconds for table in self.tables for row in table})
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            if self._room(times[middle]) >= self.layers:
                high = middle
            else:
                low = middle + 1
        if low == len(times):
            return float("inf")
        costs = sum(min(row.cost_s for row in table) for table in self.tables)
        return self.factor * times[low] + costs

    def _room(self, slowest_s: float) -> int:
        """Layers that all stages hold within ``slowest_s``; -1 where a stage has no such row."""
        room = 0
        for table in self.tables:
            held = [row.layers for row in table if row.seconds <= slowest_s]
            if not held:
                return -1
            room += max(held)
        return room

    def value_s(self, rows: Sequence[Row]) -> float:
        """The objective of one choice of rows."""
        return self.factor * max(row.seconds for row in rows) + sum(row.cost_s for row in rows)


@dataclass(frozen=True)
class Chosen:
    """``rows`` is None where nothing is below the cut-off; ``proved`` says whether that, or that
    nothing is better, is certain."""

    rows: tuple[Row, ...] | None
    proved: bool


def best_rows(problem: Stagewise, cutoff_s: float, budget: Budget, seconds: float) -> Chosen:
    """The rows that cost least, at most ``cutoff_s`` but for rounding (a billionth of it)."""
    from ortools.sat.python import cp_model

    quantum = cutoff_s / PARTS
    model = cp_model.CpModel()
    slowest = model.new_int_var(0, 2 * PARTS, "slowest")
    cost: list[tuple[IntVar, int]] = []
    layers: list[tuple[IntVar, int]] = []
    classes = _classes(problem.tables)
    counts: list[dict[Row, IntVar]] = []
    for table, stages in classes:
        taken: dict[Row, IntVar] = {}
        for row in table:
            weight, own = (
                round(value / quantum) for value in (problem.factor * row.seconds, row.cost_s)
            )
            if weight + own > PARTS + len(problem.tables):
                continue
            count = _count(model, len(stages), slowest, weight)
            taken[row] = count
            cost.append((count, own))
            layers.append((count, row.layers))
        model.add(sum(taken.values()) == len(stages))
        counts.append(taken)
    model.add(sum(number * count for count, number in layers) == problem.layers)
    total = slowest + sum(own * count for count, own in cost)
    # Each of the rows and the slowest stage may be half a quantum off.
    model.add(total <= PARTS + len(problem.tables))
    model.minimize(total)
    every = [count for taken in counts for count in taken.values()]
    model.add_decision_strategy(every, cp_model.CHOOSE_FIRST, cp_model.SELECT_MAX_VALUE)
    model.add_decision_strategy([slowest], cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE)
    solver, status = run(model, budget, seconds)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Chosen(None, status == cp_model.INFEASIBLE)
    rows: dict[int, Row] = {}
    for (_, stages), taken in zip(classes, counts, strict=True):
        picked = [row for row, count in sorted(taken.items()) for _ in range(solver.value(count))]
        rows |= dict(zip(stages, picked, strict=True))
    chosen = tuple(rows[stage] for stage in range(len(problem.tables)))
    return Chosen(chosen, status == cp_model.OPTIMAL)


def _classes(
    tables: Sequence[tuple[Row, ...]],
) -> list[tuple[tuple[Row, ...], list[int]]]:
    """Equal tables, and the stages that have them. Of a class the later stages get more layers, as
    an even split has it: they hold fewer microbatches."""
    found: dict[tuple[Row, ...], list[int]] = {}
    for stage, table in enumerate(tables):
        found.setdefault(table, []).append(stage)
    return list(found.items())


def _count(model: CpModel, stages: int, slowest: IntVar, weight: int) -> IntVar:
    """How many of a class's stages take a row; one of them makes the slowest at least as slow."""
    if stages == 1:
        count = model.new_bool_var("")
        model.add(slowest >= weight * count)
        return count
    count = model.new_int_var(0, stages, "")
    used = model.new_bool_var("")
    model.add(count <= stages * used)
    model.add(slowest >= weight * used)
    return count
