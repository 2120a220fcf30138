"""The step time as linear constraints over the tables' columns.

step = (1 + jitter) (pipeline + traffic once a step + optimizer + fixed). Each part is a variable
that is at least what the cost model says; being minimised, it equals it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Tables, hiding_passes, priced_layers, stage_shapes
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

    def window(self, name: str) -> LinearExpr | int:
        """At most the chosen row's entry of the layer table: what a transfer can hide behind."""
        key = ("layer", f"window {name}")
        if key not in self._made:
            rows, values = self._of["layer"]
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
) -> IntVar:
    """m t_max + (sum of t - t_max) / vpp, for the slowest of the stages.

    For each (pp, vpp) and each stage that may be slowest, times vpp to keep whole numbers.
    """
    layers = priced_layers(space.job)
    layer = columns("layer", "total") + repeated.plain
    layer_m = columns("layer", "m_total") + repeated.times_m
    ends_m = columns("ends", "m_embedding") + columns("ends", "m_head") + columns("ends", "m_host")
    total = degrees.cost(0, _most(space, tables, columns), "pipeline")
    degrees.model.add(total >= layers * layer_m + ends_m)
    link_of = {pp: code for code, pps in enumerate(tables.links) for pp in pps}
    for (pp, vpp), literal in zip(space.chunks, chunks.literals, strict=True):
        message = columns("ends", f"message{link_of[pp]}")
        message_m = columns("ends", f"m_message{link_of[pp]}")
        always = vpp * (vpp * pp * message_m + (pp - 1) * message)
        always += vpp * pp * columns("ends", "m_host") + (pp - 1) * _host(space, tables)
        for shape in stage_shapes(space.job, pp):
            work = vpp * pp * shape.priced * layer_m + (layers - shape.priced) * layer
            work += _end(columns, "embedding", pp, vpp, shape.first)
            work += _end(columns, "head", pp, vpp, shape.last)
            degrees.model.add(vpp * total >= work + always).only_enforce_if(literal)
    return total


def _end(columns: Columns, name: str, pp: int, vpp: int, here: bool) -> LinearExpr | int:
    """Embedding or head: m times where it stands on the slowest stage, else once (over vpp)."""
    return vpp * pp * columns("ends", f"m_{name}") if here else columns("ends", name)


def _host(space: Space, tables: Tables) -> int:
    return round(space.job.software.microbatch_overhead_s / tables.quantum_s)


def _most(space: Space, tables: Tables, columns: Columns) -> int:
    """More than any pipeline takes: every column at its largest."""
    layer = columns.largest("layer", "m_total") + columns.largest("layer", "total")
    for way in FORWARD_AND_BACKWARD:
        wire = columns.largest("shard", f"{way}_wire")
        layer += wire + int(wire * max(tables.rounds)) + 2
    ends = sum(
        columns.largest("ends", name)
        for name in tables.ends.columns
        if name not in ("rounds", "logits")
    )
    pps = [pp * shape.priced for pp in space.values["pp"] for shape in stage_shapes(space.job, pp)]
    return max(pps) * layer + max(pp * vpp + pp for pp, vpp in space.chunks) * ends


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
        wire = columns("shard", name)
        shown = degrees.cost(0, most, f"{name}.shown")
        degrees.model.add(shown >= columns("shard", f"{name}_least"))
        for passes, literal in literals.items():
            hidden = passes.numerator * columns.window(window)
            degrees.model.add(
                passes.denominator * shown >= passes.denominator * wire - hidden
            ).only_enforce_if(literal)
        total += shown
    return total
