"""The inner part of a pipeline by label setting: for paths through a schedule, and late stages.

CP-SAT's relaxation is weak on the longest of many chains, and on lateness, which depends on all
rows before a stage (125 stages took it 24 s, 23 late ones were unproved after a minute). Stages in
their order make a shortest path with several costs (Desrochers and Soumis 1988, INFOR 26(3)): a
label is a choice of rows for the first stages, and one that holds as many layers as another and is
nowhere behind it replaces it. What the remaining stages add to each chain at least leaves out
labels that cannot come below the cut-off.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.costmodel.axes import Array, Flags, Ints, ints

if TYPE_CHECKING:
    from layoutopt.optimizer.stagewise import Row, Stagewise

_ROUNDING = 1e-9
"""Share of the cut-off that floats may be off."""
MOST_LABELS = 20_000
"""Of one stage: with more, as where many amounts of recompute are open, CP-SAT is tried."""


@dataclass(frozen=True)
class _Labels:
    """Choices of rows for the stages so far that hold equally many layers, one a line."""

    chains: Array
    """[labels, chains]: constant, rows, and the rows' costs."""
    rest: Array
    """[labels, 4]: the slowest stage; the largest tail; what is hidden of the next stage's traffic,
    less than zero; how late a stage is."""
    path: Ints
    """[labels, stages so far]: which row of its table each stage takes."""

    def of(self, kept: Ints | Flags) -> _Labels:
        return _Labels(self.chains[kept], self.rest[kept], self.path[kept])


def least_rows(
    problem: Stagewise, cutoff_s: float, ends_at: float, most_labels: float = math.inf
) -> tuple[tuple[Row, ...] | None, bool]:
    """The rows that cost least, no stage's lateness forgiven; None where all are over the cut-off.
    And whether that is certain: it is not where ``time.monotonic()`` went past ``ends_at``, or a
    stage has more than ``most_labels``."""
    search = _Search(problem, cutoff_s * (1 + _ROUNDING))
    labels = {0: search.start()}
    for stage in range(len(problem.tables)):
        grown = search.grow(labels, stage)
        alike = search.alike(stage + 1)
        labels = {}
        for layers, parts in grown.items():
            if time.monotonic() > ends_at:
                return None, False
            labels[layers] = search.undominated(_joined(parts), alike)
        if sum(len(some.path) for some in labels.values()) > most_labels:
            return None, False
    last = labels.get(problem.layers)
    if last is None:
        return None, True
    totals = search.totals_s(last)
    path = last.path[int(np.argmin(totals))]
    return tuple(table[n] for table, n in zip(problem.tables, path, strict=True)), True


class _Search:
    """What all labels are measured by."""

    def __init__(self, problem: Stagewise, most_s: float) -> None:
        self.problem, self.most_s = problem, most_s
        stages = len(problem.tables)
        weights = [(chain.seconds, chain.forward, chain.again) for chain in problem.chains]
        self.weights = np.array(weights or [((0.0,) * stages,) * 3])
        self.constants = np.array([chain.constant for chain in problem.chains] or [0.0])
        self.after = self._least_after()
        tails = [min(row.tail_s for row in table) for table in problem.tables]
        self.tail_after = [max(tails[stage:], default=0.0) for stage in range(stages + 1)]

    def start(self) -> _Labels:
        """No stage yet."""
        return _Labels(self.constants[None], np.zeros((1, 4)), np.zeros((1, 0), dtype=np.int64))

    def _added(self, stage: int, row: Row) -> Array:
        """What a row adds to each chain, its cost with it."""
        seconds, forward, again = self.weights[:, :, stage].T
        told: Array = seconds * row.seconds + forward * row.forward_s + again * row.again_s
        return told + row.cost_s

    def _least_after(self) -> list[Array]:
        """[chains, layers left] for each number of stages: what the others add to a chain at least,
        infinite where they do not hold so many layers."""
        problem, chains = self.problem, len(self.constants)
        least = np.full((chains, problem.layers + 1), np.inf)
        least[:, 0] = 0.0
        found = [least]
        for stage in reversed(range(len(problem.tables))):
            before = np.full_like(least, np.inf)
            for row in problem.tables[stage]:
                rest = found[-1][:, : max(0, problem.layers + 1 - row.layers)]
                told = self._added(stage, row)[:, None] + rest
                before[:, row.layers :] = np.minimum(before[:, row.layers :], told)
            found.append(before)
        return found[::-1]

    def grow(self, labels: dict[int, _Labels], stage: int) -> dict[int, list[_Labels]]:
        """Every label with every row of the stage, by layers held, that may come below the
        cut-off."""
        grown: dict[int, list[_Labels]] = defaultdict(list)
        for held, some in labels.items():
            for place, row in enumerate(self.problem.tables[stage]):
                layers = held + row.layers
                if layers <= self.problem.layers:
                    more = self._with(some, stage, place, row)
                    ahead = self.after[stage + 1][:, self.problem.layers - layers]
                    within = self._least_s(more, ahead, stage + 1) <= self.most_s
                    if within.any():
                        grown[layers].append(more.of(within))
        return grown

    def _with(self, labels: _Labels, stage: int, place: int, row: Row) -> _Labels:
        """The labels after the stage's row (Late.value_s, from the first stage on)."""
        late = self.problem.late
        slowest, tail, hidden, latest = labels.rest.T
        if stage == 0:
            hidden = hidden - row.left_s
        if late is not None:
            latest = np.maximum(latest, row.left_s + hidden)
            hidden = hidden - late.start_s(stage, row)
        rest = np.column_stack(
            (np.maximum(slowest, row.seconds), np.maximum(tail, row.tail_s), hidden, latest)
        )
        path = np.column_stack((labels.path, np.full(len(labels.path), place)))
        return _Labels(labels.chains + self._added(stage, row), rest, path)

    def _least_s(self, labels: _Labels, ahead: Array | float, stages: int) -> Array:
        """No choice of the remaining rows costs less."""
        slowest, tail, _, latest = labels.rest.T
        longest = (labels.chains + ahead).max(axis=1)
        tail = np.maximum(tail, self.tail_after[stages])
        told: Array = (
            self.problem.constant + self.problem.factor * slowest + longest + tail + latest
        )
        return told

    def totals_s(self, labels: _Labels) -> Array:
        """The objective, all stages taken."""
        return self._least_s(labels, 0.0, len(self.problem.tables))

    def undominated(self, labels: _Labels, alike: list[list[int]]) -> _Labels:
        """One of equal labels, and none that another one is nowhere behind."""
        columns = [labels.chains[:, chains].max(axis=1) for chains in alike]
        rest = labels.rest if self.problem.factor else labels.rest[:, 1:]
        keys = np.column_stack((*columns, rest))
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        alive, kept = np.ones(len(keys), dtype=bool), []
        for place in range(len(keys)):
            if alive[place]:
                kept.append(place)
                alive[place + 1 :] &= (keys[place + 1 :] < keys[place]).any(axis=1)
        return labels.of(ints(order[kept]))

    def alike(self, stages: int) -> list[list[int]]:
        """Chains that go on alike after so many stages count by the longest of them; of such groups
        with equal pasts one is enough."""
        ahead: dict[bytes, list[int]] = defaultdict(list)
        for chain, weights in enumerate(self.weights):
            ahead[weights[:, stages:].tobytes()].append(chain)
        pasts = [
            (constant, weights[:, :stages].tobytes())
            for constant, weights in zip(self.constants, self.weights, strict=True)
        ]
        groups = {frozenset(pasts[chain] for chain in chains): chains for chains in ahead.values()}
        return list(groups.values())


def _joined(parts: list[_Labels]) -> _Labels:
    return _Labels(
        np.concatenate([part.chains for part in parts]),
        np.concatenate([part.rest for part in parts]),
        np.concatenate([part.path for part in parts]),
    )
