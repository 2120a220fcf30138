"""The step time as linear constraints over the tables' columns.

step = (1 + jitter) (pipeline + traffic once a step + optimizer + fixed). Each part is a variable
that is at least what the cost model says; being minimised, it equals it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.paths import Path, late_hops, paths_of, priced_layers
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Tables, first_chunk, hiding_passes
from layoutopt.optimizer.variables import Degrees, Rows

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar, LinearExpr

FORWARD_AND_BACKWARD = ("forward", "backward")


@dataclass(frozen=True)
class Group:
    """The three tables as rows of literals."""

    layer: Rows
    ends: Rows
    shard: Rows


class Columns:
    """Columns of the tables as solver variables, made when they are first asked for."""

    def __init__(self, group: Group, tables: Tables) -> None:
        self._of = {
            "layer": (group.layer, tables.layer),
            "ends": (group.ends, tables.ends),
            "shard": (group.shard, tables.shard),
        }
        self._made: dict[tuple[str, str], LinearExpr | int] = {}

    def __call__(self, table: str, name: str) -> LinearExpr | int:
        """At least the chosen row's entry."""
        if (table, name) not in self._made:
            rows, values = self._of[table]
            self._made[table, name] = rows.at_least(values.columns[name], f"{table}.{name}")
        return self._made[table, name]

    def window(self, name: str, table: str = "layer") -> LinearExpr | int:
        """At most the chosen row's entry: what is taken off, as what a transfer hides behind."""
        key = (table, f"window {name}")
        if key not in self._made:
            rows, values = self._of[table]
            self._made[key] = rows.at_most(values.columns[name], f"window.{name}")
        return self._made[key]

    def largest(self, table: str, name: str) -> int:
        """The column's largest entry."""
        values = self._of[table][1].columns[name]
        return int(values.max(initial=0))


@dataclass(frozen=True)
class Repeated:
    """Exposed ZeRO-2/3 traffic of one layer and microbatch, plain and times M."""

    plain: LinearExpr | int
    times_m: LinearExpr | int


def repeated_sharding(degrees: Degrees, tables: Tables, columns: Columns, group: Group) -> Repeated:
    """max((1 - share) wire, wire - window), forward and backward, while a layer computes."""
    plain: list[LinearExpr | int] = []
    times_m: list[LinearExpr | int] = []
    for way in FORWARD_AND_BACKWARD:
        if columns.largest("shard", f"{way}_wire") == 0:
            continue
        wire, least = columns("shard", f"{way}_wire"), columns("shard", f"{way}_wire_least")
        shown = degrees.cost(0, columns.largest("shard", f"{way}_wire"), f"{way}.shown")
        degrees.model.add(shown >= least)
        degrees.model.add(shown >= wire - columns.window(way))
        plain.append(shown)
        times_m.append(_times_m(degrees, tables, columns, group, way))
    return Repeated(sum(plain), sum(times_m))


def _times_m(degrees: Degrees, tables: Tables, columns: Columns, group: Group, way: str) -> IntVar:
    """M times a layer's exposed traffic: one product for each value of M."""
    model = degrees.model
    most = columns.largest("shard", f"fine_{way}_wire") * max(tables.rounds) / tables.fine
    shown = degrees.cost(0, int(most) + 1, f"m.{way}.shown")
    window = columns.window(f"m_{way}")
    codes = tables.ends.columns["rounds"]
    for code, rounds in enumerate(tables.rounds):
        literal = group.ends.any_of((codes == code).nonzero()[0].tolist(), f"M={rounds}")
        prefix, fine = tables.resolution(rounds)
        wire = columns("shard", f"{prefix}{way}_wire")
        least = columns("shard", f"{prefix}{way}_wire_least")
        scale = fine * rounds.denominator
        model.add(scale * shown >= rounds.numerator * least).only_enforce_if(literal)
        model.add(scale * (shown + window) >= rounds.numerator * wire).only_enforce_if(literal)
    return shown


def pipeline_time(
    degrees: Degrees,
    space: Space,
    tables: Tables,
    columns: Columns,
    chunks: Rows,
    repeated: Repeated,
    group: Group,
) -> IntVar:
    """The longest path through the schedule (paths.py).

    For each (pp, vpp) and each path, times vpp to keep whole numbers.
    """
    from_rounds = _FromRounds(tables, group)
    layers = priced_layers(space.job)
    layer = columns("layer", "total") + repeated.plain
    layer_m = columns("layer", "m_total") + repeated.times_m
    ends_m = columns("ends", "m_embedding") + columns("ends", "m_head") + columns("ends", "m_host")
    total = degrees.cost(0, _most(space, tables, columns), "pipeline")
    degrees.model.add(total >= layers * layer_m + ends_m)
    for (pp, vpp), literal in zip(space.chunks, chunks.literals, strict=True):
        for path in paths_of(space.job, pp, vpp):
            exists = from_rounds(path.rounds)
            if exists is not None:
                work = path.many * layer_m + path.once * layer
                work += _beside(space, tables, columns, (pp, vpp), path)
                degrees.model.add(vpp * total >= work).only_enforce_if([literal, *exists])
    return total


class _FromRounds:
    """Literals of what M is at least."""

    def __init__(self, tables: Tables, group: Group) -> None:
        self._rounds, self._group = tables.rounds, group
        self._codes = tables.ends.columns["rounds"]
        self._made: dict[tuple[int, ...], IntVar] = {}

    def __call__(self, least: Fraction) -> tuple[IntVar, ...] | None:
        """What has to be true for M to be at least ``least``; None where no M is."""
        enough = [code for code, rounds in enumerate(self._rounds) if rounds >= least]
        places = tuple(np.flatnonzero(np.isin(self._codes, enough)).tolist())
        if len(places) == len(self._codes):
            return ()
        if not places:
            return None
        if places not in self._made:
            self._made[places] = self._group.ends.any_of(places, f"M >= {least}")
        return (self._made[places],)


def _beside(
    space: Space, tables: Tables, columns: Columns, chunks: tuple[int, int], path: Path
) -> LinearExpr | int:
    """What a path takes beside its layers: messages, host and ends, less forward passes."""
    pp, vpp = chunks
    link = next(code for code, pps in enumerate(tables.links) if pp in pps)
    beside = vpp * vpp * pp * columns("ends", f"m_message{link}")
    beside += vpp * path.fixed * columns("ends", f"message{link}")
    beside += vpp * pp * columns("ends", "m_host") + path.fixed * _host(space, tables)
    beside += vpp * late_hops(pp, vpp) * columns("ends", f"travel{link}")
    for name, (times_m, plain) in (("embedding", path.embedding), ("head", path.head)):
        beside += times_m * columns("ends", f"m_{name}") + plain * columns("ends", name)
    if path.forward > 0:
        beside -= path.forward * columns.window("forward")
    elif path.forward < 0:
        beside -= path.forward * columns("layer", "forward")
    if path.m_forward:
        beside -= path.m_forward * columns.window("m_forward")
    return beside


def _host(space: Space, tables: Tables) -> int:
    return round(space.job.software.microbatch_overhead_s / tables.quantum_s)


def _most(space: Space, tables: Tables, columns: Columns) -> int:
    """More than any pipeline takes: every column at its largest."""
    layer, times_m = columns.largest("layer", "total"), columns.largest("layer", "m_total")
    times_m += columns.largest("layer", "forward")
    for way in FORWARD_AND_BACKWARD:
        wire = columns.largest("shard", f"{way}_wire")
        layer, times_m = layer + wire, times_m + int(wire * max(tables.rounds)) + 2
    ends = sum(
        columns.largest("ends", name)
        for name in tables.ends.columns
        if name not in ("rounds", "logits")
    )
    work = [
        path.many // vpp * times_m + abs(path.once) * layer
        for pp, vpp in space.chunks
        for path in paths_of(space.job, pp, vpp)
    ]
    return max(work) + 2 * max(pp * vpp + pp for pp, vpp in space.chunks) * ends


def once_a_step(degrees: Degrees, space: Space, columns: Columns, chunks: Rows) -> LinearExpr | int:
    """Gradient reduction and weight gather that the first stage cannot hide; the optimizer."""
    total: LinearExpr | int = columns("shard", "once")
    places: dict[Fraction, list[int]] = defaultdict(list)
    for place, (pp, vpp) in enumerate(space.chunks):
        places[hiding_passes(space.job, pp, vpp)].append(place)
    literals = {passes: chunks.any_of(found, f"hides {passes}") for passes, found in places.items()}
    for name, window in (("reduce", "backward"), ("gather", "forward")):
        most = columns.largest("shard", name)
        if most == 0:
            continue
        wire, layers = columns("shard", name), columns.window(f"{name}_layers", "shard")
        shown = degrees.cost(0, most, f"{name}.shown")
        degrees.model.add(shown >= columns("shard", f"{name}_least"))
        for passes, literal in literals.items():
            hidden = passes.numerator * columns.window(window)
            degrees.model.add(
                passes.denominator * shown >= passes.denominator * wire - hidden
            ).only_enforce_if(literal)
        for (pp, vpp), literal in zip(space.chunks, chunks.literals, strict=True):
            if pp > 1 and vpp > 1:
                held = first_chunk(space.job, pp)
                own = vpp * wire - (vpp - 1) * layers - held * columns.window(window)
                degrees.model.add(vpp * shown >= own).only_enforce_if(literal)
        total += shown
    return total
