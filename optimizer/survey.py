"""The best few layouts of a space, in order, without the solver: best first by floors.

Shapes (tp, cp, pp, micro_batch) are priced in the order of what they take at least (floors) until
no floor is below what has been found, so that what is listed is exact. It says what comes after
the solver's plan, and prices changed questions; the plan itself and its proof are the solver's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import Array, Ints, ints
from layoutopt.costmodel.checkpoint import checkpoint_cost, run_wall_s
from layoutopt.costmodel.estimate import over_kib, step_seconds
from layoutopt.optimizer import choices
from layoutopt.optimizer.completions import completions, may_fit
from layoutopt.optimizer.floors import Floors
from layoutopt.optimizer.pricing import axes_from, row
from layoutopt.optimizer.question import AXES
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.wall import Clock

KIND = ("tp", "cp", "pp", "experts")
"""Layouts that differ here differ in kind."""
VARIANT = (*KIND, "vpp", "sharding", "mode")
"""Layouts that differ here differ at least in more than how the batch is cut."""
TIE = 1e-9
"""Wall times closer than this, relatively, are equal."""
MOST_ROWS = 100_000
"""Layouts priced in one pass, 0.3 s of one core. Beyond it what was found is still told, with
``complete`` False."""
_SHAPES_AT_ONCE = 48


@dataclass(frozen=True)
class Seen:
    """A layout and its price, axis by axis."""

    chosen: dict[str, int]
    wall_s: float
    over_kib: int
    """KiB beyond what the worst stage may allocate; 0: it fits."""


@dataclass(frozen=True)
class Found:
    """What a pass found. ``complete``: nothing that belongs in it is missing."""

    layouts: tuple[Seen, ...]
    complete: bool
    ties: int = 0
    """Other layouts that take exactly as long as the given one."""


@dataclass(frozen=True)
class _Batch:
    columns: dict[str, Ints]
    walls: Array
    over: Ints

    def seen(self, place: int) -> Seen:
        chosen = row(self.columns, place)
        return Seen(chosen, float(self.walls[place]), int(self.over[place]))


class Survey:
    """Prices layouts of one space, those first that may be fast."""

    def __init__(self, space: Space, floors: Floors, clock: Clock) -> None:
        self.space, self.floors, self.clock = space, floors, clock
        self._order = np.argsort(floors.shape.columns["tight"], kind="stable")

    def fitting(self, wanted: int, beside: Seen | None = None) -> Found:
        """The ``wanted`` best that fit, best first, of different kinds; kinds other than
        ``beside``'s, which is the best there is.

        Where there are too few kinds, the best of other variants fill up.
        """
        order = self._order[may_fit(self.floors)[self._order]]
        mine = None if beside is None else self._codes(_one(beside.chosen), KIND)[0]
        kinds: dict[int, float] = {}
        batches, complete_ = [], True
        for places, rows in self._shapes(order):
            others = sorted(wall for kind, wall in kinds.items() if kind != mine)
            enough = others[wanted - 1] if 0 < wanted <= len(others) else np.inf
            if beside is not None and wanted <= 0:
                enough = beside.wall_s * (1 + TIE)
            if enough < self._floor_s(places):
                break
            if rows > MOST_ROWS:
                complete_ = False
                break
            batch = self._priced(
                completions(self.space, self.floors, places, only_fitting=True), only_fitting=True
            )
            batches.append(batch)
            self._note_kinds(batch, kinds)
        everything = _joined(batches)
        return Found(
            layouts=tuple(self._pick(everything, wanted, beside)),
            complete=complete_,
            ties=0 if beside is None else _ties(everything, beside),
        )

    def faster(self, wall_s: float) -> Found:
        """The shortest run that fits, if it is shorter than ``wall_s``."""
        order = self._order[may_fit(self.floors)[self._order]]
        batches, complete_ = self._below(order, wall_s, only_fitting=True)
        everything = _joined(batches)
        place = int(np.argmin(everything.walls)) if len(everything.walls) else 0
        found = [everything.seen(place)] if np.any(everything.walls < wall_s) else []
        return Found(tuple(found), complete_)

    def faster_misfits(self, wall_s: float) -> Found:
        """Layouts whose run would be shorter than ``wall_s`` but that do not fit, fastest first."""
        batches, complete_ = self._below(self._order, wall_s, only_fitting=False)
        everything = _joined(batches)
        mask = (everything.walls < wall_s) & (everything.over > 0)
        places = _sorted(everything)
        return Found(tuple(everything.seen(p) for p in places[mask[places]].tolist()), complete_)

    def _below(
        self, order: Ints, wall_s: float, *, only_fitting: bool
    ) -> tuple[list[_Batch], bool]:
        """Layouts of the shapes in ``order`` whose floors are below ``wall_s``, and whether that
        is all of them."""
        batches: list[_Batch] = []
        for places, rows in self._shapes(order):
            if self._floor_s(places) >= wall_s:
                break
            if rows > MOST_ROWS:
                return batches, False
            columns = completions(self.space, self.floors, places, only_fitting=only_fitting)
            batches.append(self._priced(columns, only_fitting=only_fitting))
        return batches, True

    def _shapes(self, order: Ints) -> Iterator[tuple[Ints, int]]:
        """Places of the next few shapes, and how many rows will have been priced with them."""
        rest = ("vpp", "sharding", "mode")
        each = int(np.prod([len(self.space.values[axis]) for axis in rest]))
        at_once = max(1, min(_SHAPES_AT_ONCE, MOST_ROWS // each))
        for first in range(0, len(order), at_once):
            places = order[first : first + at_once]
            # At least the first few, however many rows a shape has.
            yield places, (first + len(places)) * each if first else 0

    def _floor_s(self, places: Ints) -> float:
        """No run of these shapes, or of any after them, is shorter."""
        quanta = int(self.floors.shape.columns["tight"][places[0]])
        return self.clock.wall_s(max(self.clock.step_s(quanta), 1e-12), (0.0, 0.0))

    def _priced(self, columns: dict[str, Ints], *, only_fitting: bool = False) -> _Batch:
        over = np.zeros(len(columns["tp"]), dtype=np.int64)
        if self.space.keeps("every_stage_fits") and len(over):
            over = over_kib(self.space.job, axes_from(self.space, columns))
        if only_fitting:
            fits = over == 0
            columns, over = {axis: column[fits] for axis, column in columns.items()}, over[fits]
        return _Batch(columns, self._walls_s(columns), over)

    def _walls_s(self, columns: dict[str, Ints]) -> Array:
        """Wall times of whole runs."""
        job = self.space.job
        if not len(columns["tp"]):
            return np.zeros(0)
        seconds = step_seconds(job, axes_from(self.space, columns))
        zero_stage = choices.sharding(columns["sharding"]).zero_stage
        cost = checkpoint_cost(job, columns["tp"], columns["pp"], zero_stage)
        return run_wall_s(job, seconds, cost[1], cost[2], self.clock.size)

    def _codes(self, columns: dict[str, Ints], axes: tuple[str, ...]) -> Ints:
        """One number for each combination of values of ``axes``."""
        codes = np.zeros(len(columns["tp"]), dtype=np.int64)
        for axis in axes:
            values = ints(self.space.values[axis])
            codes = codes * len(values) + np.searchsorted(values, columns[axis])
        return codes

    def _note_kinds(self, batch: _Batch, kinds: dict[int, float]) -> None:
        order = np.argsort(batch.walls, kind="stable")
        codes, first = np.unique(self._codes(batch.columns, KIND)[order], return_index=True)
        walls = batch.walls[order[first]]
        for kind, wall in zip(codes.tolist(), walls.tolist(), strict=True):
            kinds[kind] = min(wall, kinds.get(kind, np.inf))

    def _pick(self, batch: _Batch, wanted: int, beside: Seen | None) -> Iterator[Seen]:
        """Best of each kind, then of each variant, until there are ``wanted``."""
        order = _sorted(batch)
        taken: list[int] = []
        for axes in (KIND, VARIANT):
            codes = self._codes(batch.columns, axes)[order]
            firsts = order[np.sort(np.unique(codes, return_index=True)[1])]
            known = {int(code) for code in self._codes(_at(batch, taken), axes)}
            if beside is not None:
                known.add(int(self._codes(_one(beside.chosen), axes)[0]))
            all_codes = self._codes(batch.columns, axes)
            new = [place for place in firsts.tolist() if int(all_codes[place]) not in known]
            taken += new[: max(wanted - len(taken), 0)]
        for place in taken:
            yield batch.seen(place)


def _one(chosen: dict[str, int]) -> dict[str, Ints]:
    return {axis: ints([value]) for axis, value in chosen.items()}


def _at(batch: _Batch, places: list[int]) -> dict[str, Ints]:
    return {axis: column[places] for axis, column in batch.columns.items()}


def _joined(batches: list[_Batch]) -> _Batch:
    empty = np.zeros(0, dtype=np.int64)
    return _Batch(
        {axis: np.concatenate([empty, *(b.columns[axis] for b in batches)]) for axis in AXES},
        np.concatenate([np.zeros(0), *(batch.walls for batch in batches)]),
        np.concatenate([empty, *(batch.over for batch in batches)]),
    )


def _sorted(batch: _Batch) -> Ints:
    """Places by wall time, ties in the order of AXES."""
    keys = [batch.columns[axis] for axis in reversed(AXES)]
    order: Ints = np.lexsort([*keys, batch.walls])
    return order


def _ties(batch: _Batch, beside: Seen) -> int:
    """Layouts other than ``beside`` that take exactly as long."""
    equal = batch.walls <= beside.wall_s * (1 + TIE)
    same = np.ones(len(batch.walls), dtype=bool)
    for axis in AXES:
        same &= batch.columns[axis] == beside.chosen[axis]
    return int(np.sum(equal & ~same))
