"""The solver's integer objective of one given layout, computed without the solver."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layoutopt.errors import InternalError
from layoutopt.optimizer.paths import late_hops, paths_of, priced_layers
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Table, Tables, first_chunk, hiding_passes

Entries = Mapping[str, int]


def step_quanta(space: Space, tables: Tables, chosen: Mapping[str, int]) -> int:
    """The least value that the constraints leave the step of ``chosen``, in quanta."""
    layer, ends, shard = (
        entries(table, chosen) for table in (tables.layer, tables.ends, tables.shard)
    )
    plain, times_m = _repeated(tables, layer, ends, shard)
    pipeline = _pipeline(space, tables, chosen, layer, ends, plain, times_m)
    return pipeline + _once(space, chosen, layer, shard)


def entries(table: Table, chosen: Mapping[str, int]) -> Entries:
    """The table's columns at the row of ``chosen``."""
    wanted = [chosen[axis] for axis in table.axes]
    places = np.flatnonzero(np.all(table.rows == wanted, axis=1))
    if not len(places):
        raise InternalError(
            f"table {table.name} has no row for {dict(zip(table.axes, wanted, strict=True))}"
        )
    return {name: int(column[places[0]]) for name, column in table.columns.items()}


def _repeated(tables: Tables, layer: Entries, ends: Entries, shard: Entries) -> tuple[int, int]:
    """Exposed ZeRO-2/3 traffic of a layer and microbatch, plain and times M."""
    rounds, plain, times_m = tables.rounds[ends["rounds"]], 0, 0
    for way in ("forward", "backward"):
        wire, least = shard[f"{way}_wire"], shard[f"{way}_wire_least"]
        plain += max(0, least, wire - layer[way])
        prefix, fine = tables.resolution(rounds)
        scale = fine * rounds.denominator
        fine_least = rounds.numerator * shard[f"{prefix}{way}_wire_least"]
        fine_wire = rounds.numerator * shard[f"{prefix}{way}_wire"]
        times_m += max(0, -(-fine_least // scale), -(-fine_wire // scale) - layer[f"m_{way}"])
    return plain, times_m


def _pipeline(
    space: Space,
    tables: Tables,
    chosen: Mapping[str, int],
    layer: Entries,
    ends: Entries,
    plain: int,
    times_m: int,
) -> int:
    layers, pp, vpp = priced_layers(space.job), chosen["pp"], chosen["vpp"]
    once, many = layer["total"] + plain, layer["m_total"] + times_m
    link = next(code for code, pps in enumerate(tables.links) if pp in pps)
    host = round(space.job.software.microbatch_overhead_s / tables.quantum_s)
    always = vpp * vpp * pp * ends[f"m_message{link}"] + vpp * pp * ends["m_host"]
    always += vpp * late_hops(pp, vpp) * ends[f"travel{link}"]
    totals = [layers * many + ends["m_embedding"] + ends["m_head"] + ends["m_host"]]
    for path in paths_of(space.job, pp, vpp):
        if tables.rounds[ends["rounds"]] < path.rounds:
            continue
        work = path.many * many + path.once * once
        work -= path.forward * layer["forward"] + path.m_forward * layer["m_forward"]
        work += path.fixed * (vpp * ends[f"message{link}"] + host)
        for name, (often, single) in (("embedding", path.embedding), ("head", path.head)):
            work += often * ends[f"m_{name}"] + single * ends[name]
        totals.append(-(-(work + always) // vpp))
    return max(totals)


def _once(space: Space, chosen: Mapping[str, int], layer: Entries, shard: Entries) -> int:
    pp, vpp = chosen["pp"], chosen["vpp"]
    passes = hiding_passes(space.job, pp, vpp)
    total = shard["once"]
    for name, window in (("reduce", "backward"), ("gather", "forward")):
        hidden = passes.numerator * layer[window]
        behind = -((hidden - passes.denominator * shard[name]) // passes.denominator)
        own = 0
        if pp > 1 and vpp > 1:
            own = vpp * shard[name] - (vpp - 1) * shard[f"{name}_layers"]
            own = -((first_chunk(space.job, pp) * layer[window] - own) // vpp)
        total += max(0, shard[f"{name}_least"], behind, own)
    return total
