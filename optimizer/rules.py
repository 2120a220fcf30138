"""The rules that join axes, one function each; the name is the rule.

Rules that look at one axis alone have already shaped its domain (space.AXIS_RULES), and those that
look at the axes of one table its rows (Space.exchanges, Space.groups_shards).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.offload import largest_host_kib
from layoutopt.optimizer.paths import STAGES, StageShape, stage_shapes
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Table, held_layers
from layoutopt.optimizer.variables import Degrees, Rows

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar, LinearExpr


def use_every_gpu(degrees: Degrees, space: Space) -> None:
    """tp * cp * pp * dp is the number of GPUs."""
    degrees.rows("grid", ("tp", "cp", "pp", "dp"), space.grids)


def use_the_batch(degrees: Degrees, space: Space) -> None:
    """dp * micro_batch * microbatches is the global batch."""
    degrees.rows("batch", ("dp", "micro_batch", "microbatches"), space.batches)


def sequence_parallel_splits(degrees: Degrees, space: Space) -> None:
    """Where sequence parallelism is used, every rank holds whole positions."""
    _only(degrees, "tp", "cp", space.splits)


def cut_layers_evenly(degrees: Degrees, space: Space) -> Rows:
    """Interleaved chunks hold equally many layers. Returns the (pp, vpp) rows."""
    return degrees.rows("chunks", ("pp", "vpp"), space.chunks)


def interleave_whole_groups(degrees: Degrees, space: Space, chunks: Rows) -> None:
    """With vpp > 1, pp divides the microbatches."""
    for (pp, vpp), literal in zip(space.chunks, chunks.literals, strict=True):
        for microbatches, count in degrees["microbatches"].items():
            if not space.groups(pp, vpp, microbatches):
                degrees.model.add_implication(literal, count.negated())


def framework_shards(degrees: Degrees, space: Space) -> None:
    """Only ZeRO stages, and weights kept or dropped, that the framework has with this pipeline."""
    _only(degrees, "sharding", "pp", space.shards)


def framework_offloads(degrees: Degrees, space: Space) -> None:
    """Activations go to the host only with a pipeline that the framework moves them in."""
    _only(degrees, "mode", "pp", space.offloads)


def experts_share_a_stage(degrees: Degrees, space: Space) -> None:
    """ep and etp divide the GPUs of a pipeline stage."""
    _only(degrees, "experts", "pp", space.expert_groups)


def experts_stay_within_tensor_ranks(degrees: Degrees, space: Space) -> None:
    """etp divides tp."""
    _only(degrees, "experts", "tp", space.cuts_experts)


def _only(degrees: Degrees, first: str, second: str, rule: Callable[[int, int], bool]) -> None:
    """Forbids the pairs of values that ``rule`` does not let through."""
    for one in degrees[first]:
        for other in degrees[second]:
            if not rule(one, other):
                degrees.forbid(**{first: one, second: other})


class Memory:
    """What a stage holds, as columns of the tables, KiB."""

    def __init__(
        self,
        layer: Rows,
        layers: Table,
        ends: Rows,
        end: Table,
        shard: Rows,
        sharding: Table,
        *,
        keeps_logits: bool,
    ):
        self.keeps_logits = keeps_logits
        self.saved = layer.at_least(layers.columns["saved"], "saved")
        self.parked = layer.at_least(layers.columns["parked"], "parked")
        self.working = layer.at_least(layers.columns["working"], "working")
        self.saved_host = layer.at_least(layers.columns["saved_host"], "saved on the host")
        self.logits = ends.at_least(end.columns["logits"], "logits")
        self.state = {
            name: shard.at_least(sharding.columns[f"state_{name}"], f"state_{name}")
            for name in STAGES
        }
        self.host = {
            name: shard.at_least(sharding.columns[f"host_{name}"], f"host_{name}")
            for name in STAGES
        }


def every_step_fits(degrees: Degrees, shard: Rows, sharding: Table, largest_kib: int) -> None:
    """What the optimizer step needs, while no activation is held, fits beside the state."""
    most = np.max([sharding.columns[f"step_{name}"] for name in STAGES], axis=0)
    for place in np.flatnonzero(most > largest_kib).tolist():
        degrees.model.add(shard.literals[place] == 0)


def every_stage_fits(
    degrees: Degrees,
    space: Space,
    chunks: Rows,
    held: Memory,
    largest_kib: LinearExpr | int,
) -> None:
    """State, activations in flight, and the worse of a layer's backward pass and the loss fit; so
    does what is offloaded, in the host's memory.

    What is in flight depends on (pp, vpp) and, while the pipeline is not full, on the number of
    microbatches: one set of constraints for each distinct count of layers in flight.
    """
    for (pp, vpp), literal in zip(space.chunks, chunks.literals, strict=True):
        shapes = stage_shapes(space.job, pp)
        for counts, microbatches in in_flight(space, pp, vpp).items():
            when = [literal, _one_of(degrees, microbatches)]
            for shape in shapes:
                layers = counts[STAGES.index(shape.name)]
                rest = held.state[shape.name] + layers * held.saved + held.parked
                _fits(degrees, when, shape, rest, held, largest_kib)
                away = held.host[shape.name] + layers * held.saved_host
                if not isinstance(away, int):
                    host = degrees.model.add(away <= largest_host_kib(space.job))
                    host.only_enforce_if(when)


def in_flight(space: Space, pp: int, vpp: int) -> dict[tuple[int, ...], list[int]]:
    """Layer-microbatches held on each of STAGES, and the microbatch counts that lead to them."""
    legal = [m for m in space.values["microbatches"] if space.groups(pp, vpp, m)]
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    if legal:
        counts = held_layers(space.job, pp, vpp, ints(legal)).tolist()
        for count, microbatches in zip(counts, legal, strict=True):
            found[tuple(count)].append(microbatches)
    return found


def _one_of(degrees: Degrees, microbatches: list[int]) -> IntVar:
    """True where the number of microbatches is one of these."""
    literals = degrees["microbatches"]
    if len(microbatches) == 1:
        return literals[microbatches[0]]
    return degrees.any_value("microbatches", microbatches)


def _fits(
    degrees: Degrees,
    when: list[IntVar],
    shape: StageShape,
    rest: LinearExpr | int,
    held: Memory,
    largest_kib: LinearExpr | int,
) -> None:
    model = degrees.model
    model.add(rest + held.working <= largest_kib).only_enforce_if(when)
    if shape.last:
        beside = held.working if held.keeps_logits else 0
        model.add(rest + held.logits + beside <= largest_kib).only_enforce_if(when)
