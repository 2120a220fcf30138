"""Every legal layout of given shapes."""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints, ints
from layoutopt.optimizer.floors import Floors
from layoutopt.optimizer.pricing import complete
from layoutopt.optimizer.space import Space

REST = ("vpp", "sharding", "mode")
"""What a shape leaves open."""


def may_fit(floors: Floors) -> Flags:
    """Shapes that some mode and some sharding may let fit."""
    may = np.ones(len(floors.shape), dtype=bool)
    for axis in ("mode", "sharding"):
        full = [flags for (name, _), flags in floors.too_full.items() if name == axis]
        if full:
            may &= ~np.logical_and.reduce(full)
    return may


def completions(
    space: Space, floors: Floors, places: Ints, *, only_fitting: bool = False
) -> dict[str, Ints]:
    """Every legal layout of the shapes at ``places``; ``only_fitting``: but for those that are
    known not to fit."""
    rest = [ints(space.values[axis]) for axis in REST]
    grids = np.meshgrid(places, *rest, indexing="ij")
    place, *columns = (grid.ravel() for grid in grids)
    free = dict(zip(REST, columns, strict=True))
    if only_fitting:
        keep = np.ones(len(place), dtype=bool)
        for (axis, value), full in floors.too_full.items():
            keep &= ~((free[axis] == value) & full[place])
        place, free = place[keep], {axis: column[keep] for axis, column in free.items()}
    for number, axis in enumerate(floors.shape.axes):
        free[axis] = floors.shape.rows[place, number]
    return complete(space, free)
