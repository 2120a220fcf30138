"""Rows that cannot be part of a better layout than the one in hand, with the proof of each cut.

They make the model smaller; without them the solver comes to the same answer, later.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Table, Tables


def without_hopeless(space: Space, tables: Tables, most_quanta: int | None) -> Tables:
    """Tables without rows that no layout of at most ``most_quanta`` can have.

    Slow: a pipeline takes at least as long as its mean stage, m S / pp = M S, and S holds all
    layers, the embedding and the head; traffic once a step and the optimizer take at least the
    least of all rows with this tp. Full: some stage holds a layer's saved activations and its
    working memory beside the least state of all rows with this tp.
    """
    keep = np.ones(len(tables.layer), dtype=bool)
    if most_quanta is not None:
        ends, once = _matching_ends(tables), _least_by_tp(tables, "once")
        work = space.job.model.layers * tables.layer.columns["m_total"] + ends + once
        keep &= work <= most_quanta
    if space.keeps("every_stage_fits"):
        held = tables.layer.columns["saved"] + tables.layer.columns["working"]
        least_state = np.minimum(_least_by_tp(tables, "state_first"), _least_by_tp(tables, "state_last"))
        least_state = np.minimum(least_state, _least_by_tp(tables, "state_long"))
        keep &= held + least_state <= largest_allocation_kib(space.job)
    layer = tables.layer.keep(keep)
    return replace(tables, layer=layer, ends=tables.ends.keep(_used(tables.ends, layer)))


def _matching_ends(tables: Tables) -> Ints:
    """M times embedding and head, for each row of the layer table."""
    ends = tables.ends
    entry = ends.columns["m_embedding"] + ends.columns["m_head"] + ends.columns["m_host"]
    known = dict(zip(map(tuple, ends.rows.tolist()), entry.tolist(), strict=True))
    keys = np.stack([tables.layer.axis(axis) for axis in ends.axes], axis=-1)
    return np.array([known[tuple(key)] for key in keys.tolist()], dtype=np.int64)


def _least_by_tp(tables: Tables, name: str) -> Ints:
    """The least entry of a column of the shard table with the tp of each row of the layer table."""
    tps, values = tables.shard.axis("tp"), tables.shard.columns[name]
    least = {tp: int(values[tps == tp].min()) for tp in np.unique(tps).tolist()}
    return np.array([least[tp] for tp in tables.layer.axis("tp").tolist()], dtype=np.int64)


def _used(ends: Table, layer: Table) -> Flags:
    kept = {tuple(key) for key in np.stack([layer.axis(a) for a in ends.axes], axis=-1).tolist()}
    return np.array([tuple(row) in kept for row in ends.rows.tolist()], dtype=bool)
