"""Floors: what every layout of one shape takes and holds at least.

A shape is (tp, cp, pp, micro_batch) and how experts are spread.

The constraints of objective.py and rules.py hold under literals, so the solver sees little of
them until it has chosen almost everything. A floor follows from them and holds at once: it
changes no answer and shortens the proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints, ints
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.optimizer.paths import STAGES, late_hops, paths_of
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Table, Tables, held_layers

AXES = ("tp", "cp", "pp", "micro_batch", "experts")
LAYER_SHARES = ("tp", "cp", "micro_batch", "experts")
SHARD_SHARES = ("tp", "pp", "experts")
"""The axes of a shape that the tables have."""
HUGE = 2**61
"""More than any entry."""


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
    rows, microbatches = _shapes(space, tables)
    layer = Keyed(tables.layer, LAYER_SHARES, rows)
    shard = Keyed(tables.shard, SHARD_SHARES, rows)
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
        found = np.full(len(shapes[0]), HUGE)
        for code in space.values[axis]:
            here = keyed.least(values, keyed.table.axis(axis) == code)
            found = np.minimum(found, np.where(too_full[axis, code], HUGE, here))
        return found

    lean = {name: least(layer, "mode", tables.layer.columns[name]) for name in ("total", "m_total")}
    once = least(shard, "sharding", _once(space, tables))
    none = (lean["total"] == HUGE) | (once == HUGE)
    lean = {name: np.where(none, 0, column) for name, column in lean.items()}
    return np.where(none, 0, _pipeline(space, tables, *shapes, lean) + np.where(none, 0, once))


def _shapes(space: Space, tables: Tables) -> tuple[Ints, Ints]:
    """Legal (tp, cp, pp, micro_batch, experts), and the microbatches that each leads to."""
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
    # Each has rows in both tables, or no layout is of that shape.
    whole = Keyed(tables.layer, LAYER_SHARES, rows).least(np.zeros(len(tables.layer), np.int64))
    whole = whole + Keyed(tables.shard, SHARD_SHARES, rows).least(
        np.zeros(len(tables.shard), np.int64)
    )
    kept = (whole == 0) & legal_experts(space, rows)
    return rows[kept], table[place, 4][kept]


def legal_experts(space: Space, rows: Ints) -> Flags:
    """Shapes whose experts divide the GPUs of a stage."""
    good = np.zeros(len(rows), dtype=bool)
    for pp in space.values["pp"]:
        held = [code for code in space.values["experts"] if space.expert_groups(code, pp)]
        good |= (rows[:, 2] == pp) & np.isin(rows[:, 4], ints(held))
    return good


class Keyed:
    """A table's rows by the axes that they share with shapes, numbered once."""

    def __init__(self, table: Table, axes: tuple[str, ...], wanted: Ints) -> None:
        self.table = table
        places = [AXES.index(axis) for axis in axes]
        keys = [table.axis(axis) for axis in axes]
        self.of_rows, self.of_shapes, self._size = _numbered(keys, list(wanted[:, places].T))

    def least(self, values: Ints, keep: Flags | None = None) -> Ints:
        """For each shape the least of ``values``, one a row of the table, over the rows that go
        with it (and that ``keep`` says); HUGE where there is none."""
        return self._least(values, keep)[self.of_shapes]

    def least_alike(self, values: Ints) -> Ints:
        """For each row of the table the least among the rows that share its axes."""
        return self._least(values, None)[self.of_rows]

    def _least(self, values: Ints, keep: Flags | None) -> Ints:
        least = np.full(self._size + 1, HUGE)
        if keep is None:
            np.minimum.at(least, self.of_rows, values)
        else:
            np.minimum.at(least, self.of_rows[keep], values[keep])
        least[-1] = HUGE
        return least


def _numbered(keys: Sequence[Ints], wanted: Sequence[Ints]) -> tuple[Ints, Ints, int]:
    """A number for each combination of ``keys``; for each of ``wanted`` the number that it equals,
    or -1."""
    of_keys = np.zeros(len(keys[0]), dtype=np.int64)
    of_wanted, known, size = np.zeros(len(wanted[0]), dtype=np.int64), np.asarray(True), 1
    for column, asked in zip(keys, wanted, strict=True):
        domain = np.unique(column)
        place = np.minimum(np.searchsorted(domain, asked), max(len(domain) - 1, 0))
        known = known & (domain[place] == asked if len(domain) else np.asarray(False))
        of_keys = of_keys * len(domain) + np.searchsorted(domain, column)
        of_wanted, size = of_wanted * len(domain) + place, size * len(domain)
    return of_keys, np.where(known, of_wanted, -1), size


def least_by(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """For each row of ``wanted`` the least of ``values`` whose row of ``keys`` equals it.

    A very large number where there is none.
    """
    of_keys, of_wanted, size = _numbered(list(keys.T), list(wanted.T))
    least = np.full(size + 1, HUGE)
    np.minimum.at(least, of_keys, values)
    least[-1] = HUGE
    found: Ints = least[of_wanted]
    return found


def _ends(tables: Tables, rows: Ints) -> dict[str, Ints]:
    """The ends table's row of each shape."""
    place = least_by(tables.ends.rows, np.arange(len(tables.ends)), rows[:, [0, 1, 3]])
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
    held, largest = _least_held(space, rows, microbatches), largest_allocation_kib(space.job)
    any_state, any_saved = _least_state(shard, None), _least_saved(layer, None)
    found = {}
    for code in space.values["mode"]:
        saved = _least_saved(layer, layer.table.axis("mode") == code)
        found["mode", code] = _over(held, saved, any_state, largest)
    for code in space.values["sharding"]:
        state = _least_state(shard, shard.table.axis("sharding") == code)
        found["sharding", code] = _over(held, any_saved, state, largest)
    return found


def _over(held: Ints, layer: tuple[Ints, Ints], state: Ints, largest: int) -> Flags:
    """More than may be allocated, or nothing of that kind goes with the shape at all."""
    saved, working = layer
    none = (saved == HUGE) | (state[:, 0] == HUGE)
    saved, working = np.where(none, 0, saved), np.where(none, 0, working)
    need = np.where(none[:, None], 0, state) + held * saved[:, None] + working[:, None]
    over: Flags = none | np.any(need > largest, axis=1)
    return over


def _least_state(shard: Keyed, keep: Flags | None) -> Ints:
    """Least model state of each shape on each of STAGES."""
    columns = (shard.table.columns[f"state_{name}"] for name in STAGES)
    return np.stack([shard.least(column, keep) for column in columns], axis=-1)


def _least_saved(layer: Keyed, keep: Flags | None) -> tuple[Ints, Ints]:
    """Least memory of a layer of each shape: saved, and held once beside it."""
    columns = layer.table.columns
    once = columns["working"] + columns["parked"]
    return layer.least(columns["saved"], keep), layer.least(once, keep)


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
