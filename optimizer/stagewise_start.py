"""Good rows to start from: a cut-off for the inner problem, found without the solver.

It decides nothing. With stages as fast as the least room for all layers allows, what is over is
taken off where a layer saves most; then single steps are moved from one stage to another as long
as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.costmodel.axes import Array, Flags, ints

if TYPE_CHECKING:
    from layoutopt.optimizer.stagewise import Row, Stagewise

_TIMES = 3
"""Times of the slowest stage that are tried, from the least one up."""
_MOVES = 200
_MOST_STAGES = 64
"""With more stages nothing is moved: all pairs of them are tried at once."""


def good_rows(problem: Stagewise) -> tuple[Row, ...] | None:
    """Rows that hold all layers and cost little; None where none are found."""
    found = []
    for slowest in islice(_times(problem), _TIMES):
        rows = _filled(problem, slowest)
        if rows is not None:
            if len(rows) <= _MOST_STAGES:
                rows = _Moves(problem, rows).settled()
            found.append(rows)
    return min(found, key=problem.value_s, default=None)


def _times(problem: Stagewise) -> Iterator[float]:
    """Seconds of the slowest stage that leave room for all layers."""
    for seconds in sorted({row.seconds for table in problem.tables for row in table}):
        if problem.room(seconds) >= problem.layers:
            yield seconds


def _fastest(table: tuple[Row, ...], slowest_s: float) -> dict[int, Row]:
    """For each number of layers the fastest row within ``slowest_s``."""
    best: dict[int, Row] = {}
    for row in table:
        if row.seconds <= slowest_s and (
            row.layers not in best or row.seconds < best[row.layers].seconds
        ):
            best[row.layers] = row
    return best


def _filled(problem: Stagewise, slowest_s: float) -> tuple[Row, ...] | None:
    """As many layers as there are, taken off the fullest stages."""
    tables = [_fastest(table, slowest_s) for table in problem.tables]
    if not all(tables):
        return None
    taken = [max(table) for table in tables]
    over = sum(taken) - problem.layers
    while over > 0:
        steps = []
        for stage, table in enumerate(tables):
            held = taken[stage]
            less = max((n for n in table if held - over <= n < held), default=None)
            if less is not None:
                saved = (table[held].seconds - table[less].seconds) / (held - less)
                steps.append((saved, -stage, less))
        if not steps:
            return None
        _, stage, less = max(steps)
        over -= taken[-stage] - less
        taken[-stage] = less
    return tuple(table[n] for table, n in zip(tables, taken, strict=True)) if not over else None


class _Moves:
    """One choice of rows, and what moving a step of layers from a stage to another would make of
    it."""

    def __init__(self, problem: Stagewise, rows: tuple[Row, ...]) -> None:
        self.problem, self.rows = problem, rows
        every = [_fastest(table, np.inf) for table in problem.tables]
        self.tables = [[table[n] for n in sorted(table)] for table in every]

    def settled(self) -> tuple[Row, ...]:
        """The rows when no step helps any more."""
        value = self.problem.relaxed_s(self.rows)
        for _ in range(_MOVES):
            moved = self._best_step()
            if moved is None:
                break
            told = self.problem.relaxed_s(moved)
            if told >= value * (1 - 1e-12):
                break
            self.rows, value = moved, told
        return self.rows

    def _best_step(self) -> tuple[Row, ...] | None:
        """The rows after the step that is worth most."""
        fewer, gives = self._beside(-1)
        more, takes = self._beside(1)
        layers = [ints([row.layers for row in rows]) for rows in (self.rows, fewer, more)]
        alike = (layers[0] - layers[1])[:, None] == (layers[2] - layers[0])[None, :]
        legal = alike & gives[:, None] & takes[None, :] & ~np.eye(len(self.rows), dtype=bool)
        if not legal.any():
            return None
        values = np.where(legal, self._values_s(fewer, more), np.inf)
        giver, taker = divmod(int(np.argmin(values)), len(self.rows))
        moved = list(self.rows)
        moved[giver], moved[taker] = fewer[giver], more[taker]
        return tuple(moved)

    def _beside(self, step: int) -> tuple[list[Row], Flags]:
        """Each stage's row with a step fewer or more layers; the same row where there is none."""
        found, there = [], []
        for table, row in zip(self.tables, self.rows, strict=True):
            place = next(n for n, one in enumerate(table) if one.layers == row.layers) + step
            there.append(0 <= place < len(table))
            found.append(table[place] if there[-1] else row)
        return found, np.array(there)

    def _values_s(self, fewer: list[Row], more: list[Row]) -> Array:
        """The objective after every pair of a giver (row) and a taker (column)."""
        problem, count = self.problem, len(self.rows)
        longest: Array | float = 0.0
        if problem.chains:
            now, less, plus = (self._chains_s(rows) for rows in (self.rows, fewer, more))
            constant = np.array([chain.constant for chain in problem.chains])
            total = (constant + now.sum(axis=1))[:, None, None]
            total = total + (less - now)[:, :, None] + (plus - now)[:, None, :]
            longest = np.maximum(total.max(axis=0), 0.0)

        def worst(name: str) -> Array:
            now, less, plus = (
                np.array([getattr(row, name) for row in rows]) for rows in (self.rows, fewer, more)
            )
            after, all_ = np.tile(now, (count, count, 1)), np.arange(count)
            after[all_, :, all_] = less[:, None]
            after[:, all_, all_] = plus[None, :]
            most: Array = after.max(axis=2)
            return most

        now, less, plus = (np.array([r.cost_s for r in rows]) for rows in (self.rows, fewer, more))
        costs = (less - now)[:, None] + (plus - now)[None, :]
        values: Array = problem.factor * worst("seconds") + longest + worst("tail_s") + costs
        return values

    def _chains_s(self, rows: tuple[Row, ...] | list[Row]) -> Array:
        """What each stage adds to each chain."""
        return np.array(
            [[chain.of(s, row) for s, row in enumerate(rows)] for chain in self.problem.chains]
        )
