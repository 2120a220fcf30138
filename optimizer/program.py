"""The whole CP-SAT model of a question: variables, rules, objective, put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.costmodel.checkpoint import checkpoint_cost
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.optimizer import choices, objective, rules
from layoutopt.optimizer.floors import Floors
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Tables
from layoutopt.optimizer.variables import BITS, Degrees, Rows, Size

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

Save = tuple[float, float]
"""Seconds until a checkpoint is durable, and seconds that training stands still for it."""


_ORDER = (
    "pp",
    "tp",
    "cp",
    "micro_batch",
    "sharding",
    "mode",
    "experts",
    "vpp",
    "dp",
    "microbatches",
)
"""The order in which axes are decided where there are no floors to go by."""


@dataclass(frozen=True)
class Program:
    """A built model. ``step`` is in quanta; ``saves`` are literals by what a checkpoint costs."""

    model: CpModel
    degrees: Degrees
    step: IntVar
    saves: Mapping[Save, IntVar]

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The tables that the model holds, and how large they are."""
        return tuple(self.degrees.sizes)


def build(space: Space, tables: Tables, floors: Floors | None = None) -> Program:
    """The model of ``space``; with ``floors`` it is proved sooner."""
    from layoutopt.optimizer.cp_sat import cp_model

    model = cp_model.CpModel()
    degrees = Degrees(model, space.values)
    if space.keeps("use_every_gpu"):
        rules.use_every_gpu(degrees, space)
    if space.keeps("use_the_batch"):
        rules.use_the_batch(degrees, space)
    rules.sequence_parallel_splits(degrees, space)
    chunks = rules.cut_layers_evenly(degrees, space)
    rules.interleave_whole_groups(degrees, space, chunks)
    rules.framework_shards(degrees, space)
    rules.framework_offloads(degrees, space)
    rules.experts_share_a_stage(degrees, space)
    rules.experts_stay_within_tensor_ranks(degrees, space)
    group = objective.Group(
        *(
            degrees.rows(table.name, table.axes, table.rows.tolist())
            for table in (tables.layer, tables.ends, tables.shard)
        )
    )
    if space.keeps("every_stage_fits"):
        held = rules.Memory(
            group.layer,
            tables.layer,
            group.ends,
            tables.ends,
            group.shard,
            tables.shard,
            keeps_logits=space.job.software.keeps_logits,
        )
        most = largest_allocation_kib(space.job)
        rules.every_step_fits(degrees, group.shard, tables.shard, most)
        rules.every_stage_fits(degrees, space, chunks, held, most)
    step = _step(degrees, space, tables, group, chunks)
    model.minimize(step)
    if floors is None:
        degrees.decide([literal for axis in _ORDER for literal in degrees[axis].values()])
    else:
        hold_to_floors(degrees, floors, group, step)
    saves = {
        save: group.shard.any_of(places, f"save {save[0]:.6g} s")
        for save, places in save_classes(space, tables).items()
    }
    return Program(model, degrees, step, saves)


def hold_to_floors(degrees: Degrees, floors: Floors, group: objective.Group, step: IntVar) -> None:
    """The step is no faster than its shape's floor, and a shape keeps to what fits with it."""
    from layoutopt.optimizer.cp_sat import cp_model

    shape = degrees.rows("shape", floors.shape.axes, floors.shape.rows.tolist())
    literals = [*shape.literals, *group.layer.literals, *group.shard.literals]
    above = np.concatenate([floors.shape.columns["step"], floors.layer_above, floors.shard_above])
    degrees.model.add(step >= cp_model.LinearExpr.weighted_sum(literals, above.tolist()))
    tight = floors.shape.columns["tight"]
    degrees.model.add(step >= cp_model.LinearExpr.weighted_sum(shape.literals, tight.tolist()))
    # Best first: shapes by their floors, then what is left to choose.
    order = np.argsort(tight, kind="stable").tolist()
    rest = [degrees[axis].values() for axis in ("sharding", "mode", "vpp")]
    degrees.decide([*(shape.literals[place] for place in order), *chain.from_iterable(rest)])
    for (axis, value), full in floors.too_full.items():
        over = [shape.literals[place] for place in full.nonzero()[0].tolist()]
        if over and value in degrees[axis]:
            degrees.model.add_at_most_one([*over, degrees[axis][value]])


def _step(
    degrees: Degrees, space: Space, tables: Tables, group: objective.Group, chunks: Rows
) -> IntVar:
    columns = objective.Columns(group, tables)
    repeated = objective.repeated_sharding(degrees, tables, columns, group)
    pipeline = objective.pipeline_time(degrees, space, tables, columns, chunks, repeated, group)
    once = objective.once_a_step(degrees, space, columns, chunks)
    step = degrees.cost(0, 2**BITS, "step")
    degrees.model.add(step >= pipeline + once)
    return step


def save_classes(space: Space, tables: Tables) -> dict[Save, list[int]]:
    """What a checkpoint costs, and the rows of the shard table where it costs that.

    It depends on (tp, pp, zero_stage) and has few distinct values.
    """
    table = tables.shard
    zero_stage = choices.sharding(table.axis("sharding")).zero_stage
    _, write, stall = checkpoint_cost(space.job, table.axis("tp"), table.axis("pp"), zero_stage)
    found: dict[Save, list[int]] = {}
    for place, save in enumerate(zip(write.tolist(), stall.tolist(), strict=True)):
        found.setdefault(save, []).append(place)
    return found
