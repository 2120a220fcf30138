"""Floors: what every layout of one shape (tp, cp, pp, micro_batch) takes and holds at least.

The constraints of objective.py and rules.py hold under literals, so the solver sees little of
them until it has chosen almost everything. A floor follows from them and holds at once: it
changes no answer and shortens the proof.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints, ints
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import STAGES, Table, Tables, held_layers, stage_shapes

AXES = ("tp", "cp", "pp", "micro_batch")
HUGE = 2**62
"""More than any entry; no shape is left with it, since every shape has rows in every table."""


@dataclass(frozen=True)
class Floors:
    """Column ``step`` of ``shape``: quanta. What a choice costs above its shape's floor."""

    shape: Table
    layer_above: Ints
    """For each row of the layer table: quanta above the least of its (tp, cp, micro_batch)."""
    shard_above: Ints
    """For each row of the shard table: quanta above the least of its (tp, pp)."""
    too_full: dict[tuple[str, int], Flags]
    """(axis, value) of recompute and zero_stage: shapes that do not fit with it, whatever else."""


def floors_of(space: Space, tables: Tables) -> Floors:
    """Floors of every legal shape."""
    rows, microbatches = _shapes(space)
    least = _least_layer(tables, rows)
    pipeline = _pipeline(space, tables, rows, microbatches, least)
    once, once_above = _once(space, tables, rows)
    shape = Table("shape", AXES, rows, {"step": pipeline + once})
    return Floors(
        shape=shape,
        layer_above=_layer_above(space, tables),
        shard_above=once_above,
        too_full=_too_full(space, tables, rows, microbatches),
    )


def _shapes(space: Space) -> tuple[Ints, Ints]:
    """Legal (tp, cp, pp, micro_batch), and the microbatches that each leads to."""
    by_dp = defaultdict(list)
    for dp, micro_batch, microbatches in space.batches:
        by_dp[dp].append((micro_batch, microbatches))
    found = [
        (tp, cp, pp, micro_batch, microbatches)
        for tp, cp, pp, dp in space.grids
        for micro_batch, microbatches in by_dp[dp]
    ]
    table = np.array(found, dtype=np.int64).reshape(-1, 5)
    return table[:, :4], table[:, 4]


def least_by(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """For each row of ``wanted`` the least of ``values`` whose row of ``keys`` equals it.

    A very large number where there is none.
    """
    code, size = np.zeros(len(keys) + len(wanted), dtype=np.int64), 1
    for column in np.concatenate([keys, wanted]).T:
        domain, place = np.unique(column, return_inverse=True)
        code, size = code * len(domain) + place, size * len(domain)
    least = np.full(size, HUGE)
    np.minimum.at(least, code[: len(keys)], values)
    found: Ints = least[code[len(keys) :]]
    return found


_SHAPE_OF_LAYER = ("tp", "cp", "micro_batch")


def _layer_keys(table: Table) -> Ints:
    return np.stack([table.axis(axis) for axis in _SHAPE_OF_LAYER], axis=-1)


def _least_layer(tables: Tables, rows: Ints) -> dict[str, Ints]:
    """Least entries of the layer table with a shape's (tp, cp, micro_batch), column by column."""
    keys, wanted = _layer_keys(tables.layer), rows[:, [0, 1, 3]]
    return {
        name: least_by(keys, tables.layer.columns[name], wanted) for name in ("total", "m_total")
    }


def _ends(tables: Tables, rows: Ints) -> dict[str, Ints]:
    """The ends table's row of each shape."""
    place = least_by(tables.ends.rows, np.arange(len(tables.ends)), rows[:, [0, 1, 3]])
    return {name: column[place] for name, column in tables.ends.columns.items()}


def _pipeline(
    space: Space, tables: Tables, rows: Ints, microbatches: Ints, least: dict[str, Ints]
) -> Ints:
    """The pipeline's time with the least layer and the best number of chunks: the constraints of
    objective.pipeline_time, evaluated for each shape."""
    ends, layers = _ends(tables, rows), space.job.model.layers
    host = round(space.job.software.microbatch_overhead_s / tables.quantum_s)
    link_of = {pp: code for code, pps in enumerate(tables.links) for pp in pps}
    best = np.full(len(rows), HUGE)
    for pp, vpp in space.chunks:
        here = rows[:, 2] == pp
        if vpp > 1:
            here &= np.isin(microbatches, _legal(space, pp, vpp))
        if not here.any():
            continue
        link, many, once = link_of[pp], least["m_total"][here], least["total"][here]
        entry = {name: column[here] for name, column in ends.items()}
        always = vpp * (vpp * pp * entry[f"m_message{link}"] + (pp - 1) * entry[f"message{link}"])
        always = always + vpp * pp * entry["m_host"] + (pp - 1) * host
        slowest = np.zeros_like(many)
        for stage in stage_shapes(space.job, pp):
            work = vpp * pp * stage.layers * many + (layers - stage.layers) * once
            for name, stands in (("embedding", stage.first), ("head", stage.last)):
                work = work + (vpp * pp * entry[f"m_{name}"] if stands else entry[name])
            slowest = np.maximum(slowest, -(-(work + always) // vpp))
        best[here] = np.minimum(best[here], slowest)
    return np.where(best == HUGE, 0, best)


def _legal(space: Space, pp: int, vpp: int) -> Ints:
    return ints([m for m in space.values["microbatches"] if space.groups(pp, vpp, m)])


def _once(space: Space, tables: Tables, rows: Ints) -> tuple[Ints, Ints]:
    """Least traffic and optimizer of each shape's (tp, pp); what each shard row takes above it.

    ZeRO-2/3 traffic that nothing hides comes at least once for each layer of a stage; a quantum is
    taken off for its rounding.
    """
    columns = tables.shard.columns
    repeated = columns["forward_wire_least"] + columns["backward_wire_least"] - 2
    layers = space.job.model.layers // tables.shard.axis("pp")
    value = columns["once"] + columns["reduce_least"] + columns["gather_least"]
    value = value + layers * np.maximum(repeated, 0)
    pairs = tables.shard.rows[:, :2]
    above: Ints = value - least_by(pairs, value, pairs)
    return least_by(pairs, value, rows[:, [0, 2]]), above


def _layer_above(space: Space, tables: Tables) -> Ints:
    """A slower layer costs at least its difference times the layers of even the shortest stage."""
    layers = space.job.model.layers
    times = min(pp * (layers // pp) for pp in space.values["pp"])
    keys, value = _layer_keys(tables.layer), tables.layer.columns["m_total"]
    above: Ints = times * (value - least_by(keys, value, keys))
    return above


def _too_full(
    space: Space, tables: Tables, rows: Ints, microbatches: Ints
) -> dict[tuple[str, int], Flags]:
    """Shapes that cannot fit with a given recompute, or with a given ZeRO stage."""
    if not space.keeps("every_stage_fits"):
        return {}
    held, largest = _least_held(space, rows, microbatches), largest_allocation_kib(space.job)
    state = {z: _least_state(tables, rows, z) for z in (None, *space.values["zero_stage"])}
    found = {}
    for code in space.values["recompute"]:
        saved, working = _least_saved(tables, rows, code)
        found["recompute", code] = _over(held, saved, working, state[None], largest)
    saved, working = _least_saved(tables, rows, None)
    for z in space.values["zero_stage"]:
        found["zero_stage", z] = _over(held, saved, working, state[z], largest)
    return found


def _over(held: Ints, saved: Ints, working: Ints, state: Ints, largest: int) -> Flags:
    need = state + held * saved[:, None] + working[:, None]
    over: Flags = np.any(need > largest, axis=1)
    return over


def _least_held(space: Space, rows: Ints, microbatches: Ints) -> Ints:
    """Layers in flight on each of STAGES with the most frugal number of chunks."""
    least = np.full((len(rows), len(STAGES)), HUGE)
    for pp, vpp in space.chunks:
        here = rows[:, 2] == pp
        if vpp > 1:
            here &= np.isin(microbatches, _legal(space, pp, vpp))
        if here.any():
            least[here] = np.minimum(
                least[here], held_layers(space.job, pp, vpp, microbatches[here])
            )
    return np.where(least == HUGE, 0, least)


def _least_state(tables: Tables, rows: Ints, zero_stage: int | None) -> Ints:
    """Least model state of each shape's (tp, pp) on each of STAGES, over ZeRO stages and ep."""
    shard = tables.shard
    keep = np.ones(len(shard), dtype=bool)
    if zero_stage is not None:
        keep = shard.axis("zero_stage") == zero_stage
    pairs, wanted = shard.rows[keep, :2], rows[:, [0, 2]]
    columns = (shard.columns[f"state_{name}"][keep] for name in STAGES)
    return np.stack([least_by(pairs, column, wanted) for column in columns], axis=-1)


def _least_saved(tables: Tables, rows: Ints, recompute: int | None) -> tuple[Ints, Ints]:
    """Least saved and working memory of a layer with each shape's (tp, cp, micro_batch)."""
    table = tables.layer
    if recompute is not None:
        table = table.keep(table.axis("recompute") == recompute)
    keys, wanted = _layer_keys(table), rows[:, [0, 1, 3]]
    saved, working = (least_by(keys, table.columns[name], wanted) for name in ("saved", "working"))
    return saved, working
