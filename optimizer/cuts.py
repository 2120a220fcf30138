"""Rows that cannot be part of a better layout than the one in hand, with the proof of each cut.

They make the model smaller; without them the solver comes to the same answer, later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints
from layoutopt.optimizer.floors import LAYER_SHARES, SHARD_SHARES, Floors
from layoutopt.optimizer.keyed import Keyed
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Table, Tables


def without_hopeless(tables: Tables, floors: Floors, most: int) -> tuple[Tables, Floors]:
    """Tables and floors without rows that no layout of at most ``most`` quanta can have.

    A layout takes at least its shape's floor, plus what its layer and its shard row take above it
    (floors). So a shape goes whose floor is over ``most``, and a row of another table whose own
    part, on top of the lowest floor of the shapes that it goes with, is.
    """
    kept = floors.shape.columns["tight"] <= most
    shape, full = floors.shape.keep(kept), {k: flags[kept] for k, flags in floors.too_full.items()}
    layer = _reachable(tables.layer, shape, full, LAYER_SHARES, floors.layer_above, most)
    shard = _reachable(tables.shard, shape, full, SHARD_SHARES, floors.shard_above, most)
    nothing = np.zeros(len(tables.ends), np.int64)
    ends = _reachable(tables.ends, shape, full, tables.ends.axes, nothing, most)
    return (
        replace(
            tables,
            layer=tables.layer.keep(layer),
            ends=tables.ends.keep(ends),
            shard=tables.shard.keep(shard),
        ),
        Floors(
            shape=shape,
            layer_above=floors.layer_above[layer],
            shard_above=floors.shard_above[shard],
            too_full=full,
        ),
    )


def narrowed(space: Space, tables: Tables, floors: Floors) -> Space:
    """The space with only those values of the axes that the shapes and rows that are left have: a
    smaller model, of the same layouts."""
    shape = floors.shape
    left = {axis: set(shape.axis(axis).tolist()) for axis in shape.axes}
    left |= {"sharding": set(tables.shard.axis("sharding").tolist())}
    left |= {"mode": set(tables.layer.axis("mode").tolist())}
    some = _with_values(space, left)
    left["dp"] = {dp for _, _, _, dp in some.grids}
    some = _with_values(some, left)
    left["microbatches"] = {microbatches for _, _, microbatches in some.batches}
    left["vpp"] = {vpp for _, vpp in some.chunks}
    return _with_values(some, left)


def _with_values(space: Space, left: Mapping[str, set[int]]) -> Space:
    values = {
        axis: tuple(value for value in domain if axis not in left or value in left[axis])
        for axis, domain in space.values.items()
    }
    return replace(space, values=values)


def without_dominated(tables: Tables, floors: Floors) -> tuple[Tables, Floors]:
    """Tables and floors without ways to run a layer that are worse in all than another (see
    dominance.py); the floors stay what they are, the better way being at or below them."""
    kept = tables.layer.columns["dominated"] == 0
    return (
        replace(tables, layer=tables.layer.keep(kept)),
        replace(floors, layer_above=floors.layer_above[kept]),
    )


def _reachable(
    table: Table,
    shape: Table,
    too_full: Mapping[tuple[str, int], Flags],
    axes: tuple[str, ...],
    above: Ints,
    most: int,
) -> Flags:
    """Rows that, with the lowest floor of the shapes that share their ``axes`` and that are not
    too full with what the row says, stay within."""
    keyed = Keyed(shape, axes, table)
    floors = {name: keyed.least(column) for name, column in shape.columns.items()}
    for (axis, value), over in too_full.items():
        if axis in table.axes and over.any():
            here = table.axis(axis) == value
            for name, column in shape.columns.items():
                floors[name][here] = keyed.by_number(column, ~over)[keyed.of_wanted[here]]
    # Subtracted, not added: a row whose shapes are all gone has a floor near the largest integer.
    within: Flags = (floors["step"] <= most - above) & (floors["tight"] <= most)
    return within
