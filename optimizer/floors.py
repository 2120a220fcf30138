"""Floors: what every layout of one shape takes and holds at least.

A shape is (tp, cp, pp, micro_batch) and how experts are spread.

The constraints of objective.py and rules.py hold under literals, so the solver sees little of
them until it has chosen almost everything. A floor follows from them and holds at once: it
changes no answer and shortens the proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints, ints
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.optimizer.keyed import HUGE, Keyed
from layoutopt.optimizer.paths import STAGES, late_hops, paths_of
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Table, Tables, held_layers

AXES = ("tp", "cp", "pp", "micro_batch", "experts")
LAYER_SHARES = ("tp", "cp", "micro_batch", "experts")
SHARD_SHARES = ("tp", "pp", "experts")
"""The axes of a shape that the tables have."""


@dataclass(frozen=True)
class Floors:
    """Columns of ``shape``: ``step`` in quanta; ``tight`` with only what may fit in memory. What a
    choice costs above the first of the two."""

    shape: Table
    layer_above: Ints
    """For each row of the layer table: quanta above the least of its LAYER_SHARES."""
    shard_above: Ints
    """For each row of the shard table: quanta above the least of its SHARD_SHARES."""
    too_full: dict[tuple[str, int], Flags]
    """(axis, value) of mode and sharding: shapes that do not fit with it, whatever else."""


def floors_of(space: Space, tables: Tables) -> Floors:
    """Floors of every legal shape."""
    rows, microbatches, layer, shard = _shapes(space, tables)
    once = _once(space, tables)
    too_full = _too_full(space, layer, shard, rows, microbatches)
    any_layer = {name: layer.least(tables.layer.columns[name]) for name in ("total", "m_total")}
    pipeline = _pipeline(space, tables, rows, microbatches, any_layer)
    step = pipeline + shard.least(once)
    tight = np.maximum(step, _tight(space, tables, (rows, microbatches), layer, shard, too_full))
    return Floors(
        shape=Table("shape", AXES, rows, {"step": step, "tight": tight}),
        layer_above=_layer_above(space, layer),
        shard_above=once - shard.least_alike(once),
        too_full=too_full,
    )


def _tight(
    space: Space,
    tables: Tables,
    shapes: tuple[Ints, Ints],
    layer: Keyed,
    shard: Keyed,
    too_full: Mapping[tuple[str, int], Flags],
) -> Ints:
    """The same floor, of the ways to run a layer and to shard that may fit; 0 where none does."""
    if not too_full:
        return np.zeros(len(shapes[0]), dtype=np.int64)

    def least(keyed: Keyed, axis: str, values: Ints) -> Ints:
        found, codes = np.full(len(shapes[0]), HUGE), space.values[axis]
        for code, here in zip(codes, keyed.least_each(values, axis, codes), strict=True):
            found = np.minimum(found, np.where(too_full[axis, code], HUGE, here))
        return found

    lean = {name: least(layer, "mode", tables.layer.columns[name]) for name in ("total", "m_total")}
    once = least(shard, "sharding", _once(space, tables))
    none = (lean["total"] == HUGE) | (once == HUGE)
    lean = {name: np.where(none, 0, column) for name, column in lean.items()}
    return np.where(none, 0, _pipeline(space, tables, *shapes, lean) + np.where(none, 0, once))


def _shapes(space: Space, tables: Tables) -> tuple[Ints, Ints, Keyed, Keyed]:
    """Legal (tp, cp, pp, micro_batch, experts), and the microbatches that each leads to; the layer
    and the shard table as shapes ask them."""
    by_dp = defaultdict(list)
    for dp, micro_batch, microbatches in space.batches:
        by_dp[dp].append((micro_batch, microbatches))
    found = [
        (tp, cp, pp, micro_batch, microbatches)
        for tp, cp, pp, dp in space.grids
        for micro_batch, microbatches in by_dp[dp]
    ]
    table = np.array(found, dtype=np.int64).reshape(-1, 5)
    experts = ints(space.values["experts"])
    place, spread = (
        grid.ravel() for grid in np.meshgrid(np.arange(len(table)), experts, indexing="ij")
    )
    rows = np.column_stack([table[place, :4], spread])
    layer = Keyed(tables.layer, LAYER_SHARES, _columns(rows, LAYER_SHARES))
    shard = Keyed(tables.shard, SHARD_SHARES, _columns(rows, SHARD_SHARES))
    kept = legal_experts(space, rows)
    # Each has rows in both tables, or no layout is of that shape.
    for keyed in (layer, shard):
        kept &= keyed.least(np.zeros(len(keyed.table), np.int64)) == 0
    return rows[kept], table[place, 4][kept], layer.asking(kept), shard.asking(kept)


def _columns(shapes: Ints, axes: tuple[str, ...]) -> list[Ints]:
    return [shapes[:, AXES.index(axis)] for axis in axes]


def legal_experts(space: Space, rows: Ints) -> Flags:
    """Shapes whose experts divide the GPUs of a stage."""
    pps, codes = space.values["pp"], space.values["experts"]
    good = np.array([[space.expert_groups(code, pp) for code in codes] for pp in pps], dtype=bool)
    good = good.reshape(len(pps), len(codes))
    return good[np.searchsorted(ints(pps), rows[:, 2]), np.searchsorted(ints(codes), rows[:, 4])]


def _ends(tables: Tables, rows: Ints) -> dict[str, Ints]:
    """The ends table's row of each shape."""
    ends = tables.ends
    place = Keyed(ends, ends.axes, _columns(rows, ends.axes)).least(np.arange(len(ends)))
    return {name: column[place] for name, column in tables.ends.columns.items()}


def _pipeline(
    space: Space, tables: Tables, rows: Ints, microbatches: Ints, least: dict[str, Ints]
) -> Ints:
    """The pipeline's time with the least layer and the best number of chunks: the constraints of
    objective.pipeline_time, evaluated for each shape; paths that take a forward pass off are left
    out, so that the rest rises with every layer."""
    ends = _ends(tables, rows)
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
        always = vpp * vpp * pp * entry[f"m_message{link}"] + vpp * pp * entry["m_host"]
        always = always + vpp * late_hops(pp, vpp) * entry[f"travel{link}"]
        longest = np.zeros_like(many)
        for path in paths_of(space.job, pp, vpp):
            if path.forward or path.m_forward:
                continue
            work = path.many * many + path.once * once
            work = work + path.fixed * (vpp * entry[f"message{link}"] + host)
            for name, (often, single) in (("embedding", path.embedding), ("head", path.head)):
                work = work + often * entry[f"m_{name}"] + single * entry[name]
            exists = microbatches[here] >= int(path.rounds * pp)
            longest = np.maximum(longest, np.where(exists, -(-(work + always) // vpp), 0))
        best[here] = np.minimum(best[here], longest)
    return np.where(best == HUGE, 0, best)


def _legal(space: Space, pp: int, vpp: int) -> Ints:
    return ints([m for m in space.values["microbatches"] if space.groups(pp, vpp, m)])


def _once(space: Space, tables: Tables) -> Ints:
    """Least traffic and optimizer of each row of the shard table.

    ZeRO-2/3 traffic that nothing hides comes at least once for each layer of a stage; a quantum is
    taken off for its rounding.
    """
    columns = tables.shard.columns
    repeated = columns["forward_wire_least"] + columns["backward_wire_least"] - 2
    layers = space.job.model.layers // tables.shard.axis("pp")
    value = columns["once"] + columns["reduce_least"] + columns["gather_least"]
    least: Ints = value + layers * np.maximum(repeated, 0)
    return least


def _layer_above(space: Space, layer: Keyed) -> Ints:
    """A slower layer costs at least its difference times the layers of even the shortest stage."""
    layers = space.job.model.layers
    times = min(pp * (layers // pp) for pp in space.values["pp"])
    value = layer.table.columns["m_total"]
    above: Ints = times * (value - layer.least_alike(value))
    return above


def _too_full(
    space: Space, layer: Keyed, shard: Keyed, rows: Ints, microbatches: Ints
) -> dict[tuple[str, int], Flags]:
    """Shapes that cannot fit with a given mode or sharding."""
    if not space.keeps("every_stage_fits"):
        return {}
    # Stage by stage: long rows of memory instead of triples.
    held = np.ascontiguousarray(_least_held(space, rows, microbatches).T)
    largest = largest_allocation_kib(space.job)
    modes, shardings = space.values["mode"], space.values["sharding"]
    columns = layer.table.columns
    once = columns["working"] + columns["parked"]
    saved, working = (layer.least_each(one, "mode", modes) for one in (columns["saved"], once))
    states = (shard.table.columns[f"state_{name}"] for name in STAGES)
    state = np.stack([shard.least_each(one, "sharding", shardings) for one in states], axis=1)
    any_saved, any_state = (_least(saved), _least(working)), _least(state)
    found = {}
    for place, code in enumerate(modes):
        found["mode", code] = _over(held, (saved[place], working[place]), any_state, largest)
    for place, code in enumerate(shardings):
        found["sharding", code] = _over(held, any_saved, state[place], largest)
    return found


def _least(each: Ints) -> Ints:
    """Over the values of an axis; HUGE where it has none."""
    least: Ints = np.min(each, axis=0, initial=HUGE)
    return least


def _over(held: Ints, layer: tuple[Ints, Ints], state: Ints, largest: int) -> Flags:
    """More than may be allocated, or nothing of that kind goes with the shape at all."""
    saved, working = layer
    over: Flags = (saved == HUGE) | (state[0] == HUGE)
    saved, working = np.where(over, 0, saved), np.where(over, 0, working)
    for in_flight, always in zip(held, state, strict=True):
        over = over | (in_flight * saved + working + always > largest)
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
