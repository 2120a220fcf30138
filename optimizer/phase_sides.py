"""One phase as it stands beside others: all its outer choices with their bounds, under codes that
phases have in common.

A *setup* is all of an outer choice that a running job cannot change: everything but the number of
microbatches. A *skeleton* is what "one layout" means where a restart is due anyway: the same but
for micro-batch, recompute, the kind of context parallelism, activation offload and whether gathered
weights are kept, none of which moves a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel.axes import SCHEDULES, Array, Ints, ints
from layoutopt.costmodel.phases import PhaseJob
from layoutopt.optimizer.bounded import Bounded
from layoutopt.optimizer.orders import other_orders
from layoutopt.optimizer.pipelining import Pipelines
from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import tables_of
from layoutopt.optimizer.wall import Clock

SETUP = ("tp", "cp", "pp", "dp", "experts", "vpp", "sharding", "micro_batch", "mode")
_FREE = ("micro_batch", "mode")
_KEEP_BIT = 2
"""Of a sharding code: gathered weights are kept (choices.sharding_code)."""
_COUNTS = ("all", "each", "same")


@dataclass(frozen=True)
class Side:
    """The outer choices of one phase; arrays have an entry for each that may be legal and fit."""

    planned: PhaseJob
    bounded: tuple[Bounded, ...]
    setups: Ints
    """Rows of numbers: order, schedule, way to recompute, then SETUP."""
    walls_s: Array
    """What the phase takes at least."""
    writes_s: Array
    """What a save takes."""
    where: Ints
    """Number of the group, and place in it."""
    complete: bool
    """False: time was up before every choice had its bound."""


def side_of(
    planned: PhaseJob,
    space: Space,
    budget: Budget,
    ends_at: float,
    limit_s: float,
    beside: Side | None = None,
) -> Side:
    """The phase's side; ``space`` is the one of its first order. Choices whose phase takes more
    than ``limit_s``, or whose skeleton ``beside`` does not have, may be left out."""
    setups, walls, writes, where = [], [], [], []
    bounded: list[Bounded] = []
    complete = True
    for order, whole in enumerate((space, *other_orders(space))):
        one = whole if beside is None else _like(whole, beside)
        if not one.candidates:
            continue
        tables = tables_of(one)
        pipelines = Pipelines(one, tables, Clock(one.job, tables), budget, ends_at)
        for group in pipelines.bounded(limit_s / planned.share):
            kept = np.flatnonzero(np.isfinite(group.walls))
            setups.append(_setups(group, kept, order))
            walls.append(group.walls[kept] * planned.share)
            writes.append(group.writes[kept])
            where.append(np.stack([np.full_like(kept, len(bounded)), kept], axis=1))
            bounded.append(group)
        complete &= not pipelines.cut_short
    width = len(SETUP) + 3
    return Side(
        planned=planned,
        bounded=tuple(bounded),
        setups=np.concatenate([np.zeros((0, width), dtype=np.int64), *setups]),
        walls_s=np.concatenate([np.zeros(0), *walls]),
        writes_s=np.concatenate([np.zeros(0), *writes]),
        where=np.concatenate([np.zeros((0, 2), dtype=np.int64), *where]),
        complete=complete,
    )


def _like(space: Space, side: Side) -> Space:
    """The space with those values of the axes of a skeleton that ``side`` has somewhere; the first
    of an axis where it has none of them."""
    values = dict(space.values)
    for number, axis in enumerate(SETUP, 3):
        if axis not in (*_FREE, "vpp"):
            known = set(side.setups[:, number].tolist())
            if axis == "sharding":
                known |= {code ^ _KEEP_BIT for code in known}
            values[axis] = tuple(v for v in values[axis] if v in known) or values[axis][:1]
    return replace(space, values=values)


def _setups(bounded: Bounded, kept: Ints, order: int) -> Ints:
    group = bounded.group
    said = (order, SCHEDULES[group.schedule], _COUNTS.index(group.variant.counts))
    columns = [np.full(len(kept), value) for value in said]
    columns += [group.columns[axis][kept] for axis in SETUP]
    return np.stack(columns, axis=1).astype(np.int64)


def codes_of(sides: Sequence[Side]) -> tuple[list[Ints], Ints]:
    """For each side the number of each of its setups, and for each setup that of its skeleton."""
    rows = np.concatenate([side.setups for side in sides])
    setup = _numbered(rows)
    skeletons = rows.copy()
    skeletons[:, 2] = 0
    for number, axis in enumerate(SETUP, 3):
        if axis in _FREE:
            skeletons[:, number] = 0
        elif axis == "sharding":
            skeletons[:, number] &= ~_KEEP_BIT
    skeleton_of = np.zeros(int(setup.max(initial=-1)) + 1, dtype=np.int64)
    skeleton_of[setup] = _numbered(skeletons)
    ends = np.cumsum([len(side.setups) for side in sides])[:-1]
    return np.split(setup, ends), skeleton_of


def _numbered(rows: Ints) -> Ints:
    """One number for each different row, 0 and up."""
    code = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        values, places = np.unique(column, return_inverse=True)
        # Numbered anew each time, so that no product of counts grows without bound.
        _, code = np.unique(code * len(values) + places.ravel(), return_inverse=True)
        code = ints(code.ravel())
    return code
