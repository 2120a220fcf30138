"""The inner part of a pipeline: how many layers stand on each stage, and how many recompute.

A small CP-SAT model for one outer choice. Every stage takes one row of its table (layers, layers
recomputed, seconds), a table may be another for each stage; the rows' layers add up to the model's,
and what is least is

    constant + factor * slowest stage + longest chain + largest tail + sum of the rows' costs

and what a later stage's traffic is late by (Late).
A chain is a sum over the stages, each with its own weight: a path through the schedule. Stages with
the same table and the same weights are one class, and the model counts how many of them take a row:
equal stages are not told apart. With the incumbent as cut-off, "no solution" is the proof that this
outer choice has nothing better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.costmodel.stages import even_split, recompute_alike
from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.solver import run
from layoutopt.optimizer.stagewise_labels import MOST_LABELS, least_rows
from layoutopt.optimizer.stagewise_start import good_rows

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
    """What the row adds to the objective beside its part in slowest stage, chains and tail."""
    forward_s: float = 0.0
    """Of ``seconds``: the forward pass of the layers."""
    again_s: float = 0.0
    """What its recompute takes."""
    tail_s: float = 0.0
    """What the stage does once all are done."""
    left_s: float = 0.0
    """Traffic once a step that its own passes do not hide."""


@dataclass(frozen=True)
class Chain:
    """``constant`` and, for each stage, so often a row's seconds, forward pass and recompute."""

    constant: float
    seconds: tuple[float, ...]
    forward: tuple[float, ...]
    again: tuple[float, ...]

    def of(self, stage: int, row: Row) -> float:
        """What one stage's row adds."""
        return (
            self.seconds[stage] * row.seconds
            + self.forward[stage] * row.forward_s
            + self.again[stage] * row.again_s
        )

    def value_s(self, rows: Sequence[Row]) -> float:
        """The chain of one choice of rows."""
        return self.constant + sum(self.of(stage, row) for stage, row in enumerate(rows))


@dataclass(frozen=True)
class Late:
    """How much earlier than the first stage another one is done (`once.held_once`)."""

    share: float
    """Of the seconds of the stages before it."""
    fixed_s: tuple[float, ...]
    """What rows' seconds hold beside work, stage by stage."""
    alike: bool = True
    """Whether the stages' machines are: then no stage of an even split is late."""

    def start_s(self, stage: int, row: Row) -> float:
        """How much earlier the stages after this one are done; recompute aside."""
        return self.share * (row.seconds - self.fixed_s[stage] - row.again_s)

    def value_s(self, rows: Sequence[Row], stage: int) -> float:
        """What ``stage`` has left of its traffic when the first one has done its own."""
        ahead = sum(self.start_s(place, row) for place, row in enumerate(rows[:stage]))
        return rows[stage].left_s - ahead - rows[0].left_s


@dataclass(frozen=True)
class Stagewise:
    """One outer choice: a table for each stage, in the order of the stages."""

    layers: int
    factor: float
    """What a second of the slowest stage costs."""
    tables: tuple[tuple[Row, ...], ...]
    constant: float = 0.0
    chains: tuple[Chain, ...] = ()
    bounds: tuple[tuple[float, float], ...] = ()
    """(factor, rest): constant, slowest stage and longest chain are this much of the slowest stage
    and the rest at least. None: what the factor says."""
    late: Late | None = None
    """Stages after the first one may be the last to have done their traffic. None: they are not."""

    def least_s(self) -> float:
        """No choice of rows costs less: the least slowest stage with room for all layers, and each
        stage's least cost. Infinite where no choice of rows holds the layers."""
        times = sorted({row.seconds for table in self.tables for row in table})
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            if self.room(times[middle]) >= self.layers:
                high = middle
            else:
                low = middle + 1
        if low == len(times):
            return float("inf")
        costs = sum(min(row.cost_s for row in table) for table in self.tables)
        tail = max(min(row.tail_s for row in table) for table in self.tables)
        bounds = self.bounds or ((self.factor, self.constant),)
        return max(factor * times[low] + rest for factor, rest in bounds) + costs + tail

    def room(self, slowest_s: float) -> int:
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
        return self.relaxed_s(rows) + self.late_s(rows)

    def late_s(self, rows: Sequence[Row]) -> float:
        """What stages after the first one add; nothing in an even split of stages alike."""
        layers, again = (tuple(getattr(row, n) for row in rows) for n in ("layers", "recomputed"))
        even = layers == even_split(self.layers, len(rows)) and recompute_alike(layers, again)
        if self.late is None or (even and self.late.alike):
            return 0.0
        return max(self.late.value_s(rows, stage) for stage in range(len(rows)))

    def relaxed_s(self, rows: Sequence[Row]) -> float:
        """The same where the first stage is the last to have done its traffic: never more."""
        longest = max((chain.value_s(rows) for chain in self.chains), default=0.0)
        tail = max(row.tail_s for row in rows)
        slowest = self.factor * max(row.seconds for row in rows)
        return self.constant + slowest + longest + tail + sum(row.cost_s for row in rows)


@dataclass(frozen=True)
class Chosen:
    """``rows`` is None where nothing is below the cut-off; ``proved`` says whether that, or that
    nothing is better, is certain."""

    rows: tuple[Row, ...] | None
    proved: bool


def best_rows(problem: Stagewise, cutoff_s: float, budget: Budget, seconds: float) -> Chosen:
    """The rows that cost least, at most ``cutoff_s`` but for rounding (a billionth of it).

    Paths through a schedule are searched by labels (stagewise_labels), as long as there are few;
    all else, and many of them, by CP-SAT. Its answer holds unless a later stage's traffic comes on
    top of it, which labels alone know.
    """
    ends_at = time.monotonic() + seconds
    start = good_rows(problem)
    if start is not None and 0 < problem.value_s(start) < cutoff_s:
        # No tighter than the start itself, which so is among what is within.
        cutoff_s = problem.value_s(start)
    else:
        start = None
    if problem.chains:
        found = _with_late(problem, cutoff_s, None, ends_at, MOST_LABELS)
        if found.proved:
            return found
    found = _best(problem, cutoff_s, budget, ends_at - time.monotonic())
    if found.proved and found.rows is not None and problem.late_s(found.rows) > 0:
        found = _with_late(problem, min(cutoff_s, problem.value_s(found.rows)), found.rows, ends_at)
    if start is not None and not found.proved:
        # Out of time: what is known is better than nothing.
        known = [rows for rows in (found.rows, start) if rows is not None]
        return Chosen(min(known, key=problem.value_s), False)
    return found


def _with_late(
    problem: Stagewise,
    cutoff_s: float,
    known: tuple[Row, ...] | None,
    ends_at: float,
    most_labels: float = math.inf,
) -> Chosen:
    """The best rows with every stage's lateness, of which an even split has none; ``known`` is
    what there is where labels come to no end."""
    rows, proved = least_rows(problem, cutoff_s, ends_at, most_labels)
    if not proved:
        return Chosen(known if known and problem.value_s(known) <= cutoff_s else None, False)
    even = _even_rows(problem, cutoff_s)
    if even is None or (rows and problem.value_s(rows) <= problem.value_s(even)):
        return Chosen(rows, True)
    return Chosen(even, True)


def _even_rows(problem: Stagewise, cutoff_s: float) -> tuple[Row, ...] | None:
    """The best of the even splits with as much recompute everywhere that are within the limit."""
    split = even_split(problem.layers, len(problem.tables))
    found = []
    for number in sorted({row.recomputed for table in problem.tables for row in table}):
        wanted = [(n, min(number, n)) for n in split]
        rows = [
            next((row for row in table if (row.layers, row.recomputed) == told), None)
            for table, told in zip(problem.tables, wanted, strict=True)
        ]
        if all(row is not None for row in rows):
            found.append(tuple(row for row in rows if row is not None))
    best = min(found, key=problem.value_s, default=None)
    return best if best is not None and problem.value_s(best) <= cutoff_s else None


def _best(problem: Stagewise, cutoff_s: float, budget: Budget, seconds: float) -> Chosen:
    """The best rows where no stage is late."""
    from layoutopt.optimizer.cp_sat import cp_model

    model = cp_model.CpModel()
    inner = _Inner(model, problem, cutoff_s / PARTS)
    for stages in _classes(problem):
        inner.take(stages)
    inner.minimize(problem.layers)
    # Learning where to branch: on 67 stages a proof takes 0.3 s, by the model's order over 13 s.
    solver, status = run(model, budget, max(0.0, seconds), in_order=False)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Chosen(None, status == cp_model.INFEASIBLE)
    rows: dict[int, Row] = {}
    for stages, taken in inner.counts:
        picked = [row for row, count in sorted(taken.items()) for _ in range(solver.value(count))]
        rows |= dict(zip(stages, picked, strict=True))
    chosen = tuple(rows[stage] for stage in range(len(problem.tables)))
    return Chosen(chosen, status == cp_model.OPTIMAL)


class _Inner:
    """The CP-SAT model: how many stages of each class take each row."""

    def __init__(self, model: CpModel, problem: Stagewise, quantum: float) -> None:
        self.model, self.problem, self.quantum = model, problem, quantum
        # Each row may be half a quantum off in its cost and in the longest chain.
        self.most = PARTS + 2 * len(problem.tables) + 4
        self.slowest = model.new_int_var(0, 2 * PARTS, "slowest")
        self.tail = model.new_int_var(0, 2 * PARTS, "tail")
        self.counts: list[tuple[list[int], dict[Row, IntVar]]] = []
        self._cost: list[tuple[IntVar, int]] = []
        self._layers: list[tuple[IntVar, int]] = []
        self._chains: list[list[tuple[IntVar, int]]] = [[] for _ in problem.chains]

    def take(self, stages: list[int]) -> None:
        """Every stage of a class takes one of its rows; not one that is over the cut-off alone."""
        taken: dict[Row, IntVar] = {}
        problem = self.problem
        for row in problem.tables[stages[0]]:
            values = (problem.factor * row.seconds, row.tail_s, row.cost_s)
            slowest, tail, own = (self._quanta(value) for value in values)
            parts = [self._quanta(chain.of(stages[0], row)) for chain in problem.chains]
            if slowest + tail + own + max(parts, default=0) > self.most:
                continue
            count = _count(self.model, len(stages), ((self.slowest, slowest), (self.tail, tail)))
            taken[row] = count
            self._cost.append((count, own))
            self._layers.append((count, row.layers))
            for chain, part in zip(self._chains, parts, strict=True):
                chain.append((count, part))
        self.model.add(sum(taken.values()) == len(stages))
        self.counts.append((stages, taken))

    def minimize(self, layers: int) -> None:
        """All layers stand somewhere, and the objective is within the cut-off."""
        from layoutopt.optimizer.cp_sat import cp_model

        model = self.model
        model.add(sum(number * count for count, number in self._layers) == layers)
        longest = model.new_int_var(0, 2 * PARTS, "longest chain")
        for chain, parts in zip(self.problem.chains, self._chains, strict=True):
            told = sum(part * count for count, part in parts) + self._quanta(chain.constant)
            model.add(longest >= told)
        total = self.slowest + self.tail + longest + self._quanta(self.problem.constant)
        total += sum(own * count for count, own in self._cost)
        model.add(total <= self.most)
        model.minimize(total)
        every = [count for _, taken in self.counts for count in taken.values()]
        model.add_decision_strategy(every, cp_model.CHOOSE_FIRST, cp_model.SELECT_MAX_VALUE)
        least = [self.slowest, self.tail, longest]
        model.add_decision_strategy(least, cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE)

    def _quanta(self, seconds: float) -> int:
        return round(seconds / self.quantum)


def _classes(problem: Stagewise) -> list[list[int]]:
    """Stages with equal tables and equal weights in all chains. Of a class the later stages get
    more layers, as an even split has it: they hold fewer microbatches."""
    found: dict[tuple[object, ...], list[int]] = {}
    for stage, table in enumerate(problem.tables):
        weights = [(c.seconds[stage], c.forward[stage], c.again[stage]) for c in problem.chains]
        found.setdefault((table, *weights), []).append(stage)
    return list(found.values())


def _count(model: CpModel, stages: int, costs: Sequence[tuple[IntVar, int]]) -> IntVar:
    """How many of a class's stages take a row; one of them makes each cost at least so large."""
    count = model.new_int_var(0, stages, "") if stages > 1 else model.new_bool_var("")
    used = count
    if stages > 1:
        used = model.new_bool_var("")
        model.add(count <= stages * used)
    for cost, weight in costs:
        if weight:
            model.add(cost >= weight * used)
    return count
