"""Rows that cannot be part of a better layout than the one in hand, with the proof of each cut.

They make the model smaller; without them the solver comes to the same answer, later.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints
from layoutopt.optimizer.floors import Floors, least_by
from layoutopt.optimizer.tables import Table, Tables


def without_hopeless(tables: Tables, floors: Floors, most: int) -> tuple[Tables, Floors]:
    """Tables and floors without rows that no layout of at most ``most`` quanta can have.

    A layout takes at least its shape's floor, plus what its layer and its shard row take above it
    (floors). So a shape goes whose floor is over ``most``, and a row of another table whose own
    part, on top of the lowest floor of the shapes that it goes with, is.
    """
    shape = floors.shape.keep(floors.shape.columns["step"] <= most)
    layer = _reachable(tables.layer, shape, ("tp", "cp", "micro_batch"), floors.layer_above, most)
    shard = _reachable(tables.shard, shape, ("tp", "pp"), floors.shard_above, most)
    ends = _reachable(
        tables.ends, shape, tables.ends.axes, np.zeros(len(tables.ends), np.int64), most
    )
    kept = floors.shape.columns["step"] <= most
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
            too_full={key: full[kept] for key, full in floors.too_full.items()},
        ),
    )


def _reachable(table: Table, shape: Table, axes: tuple[str, ...], above: Ints, most: int) -> Flags:
    """Rows that, with the lowest floor of the shapes that share their ``axes``, stay within."""
    floors = least_by(_keys(shape, axes), shape.columns["step"], _keys(table, axes))
    # Subtracted, not added: a row whose shapes are all gone has a floor near the largest integer.
    within: Flags = floors <= most - above
    return within


def _keys(table: Table, axes: tuple[str, ...]) -> Ints:
    return np.stack([table.axis(axis) for axis in axes], axis=-1)
