"""The next best layouts that differ in kind: another tp, cp, pp or ep than the plan's.

Exact, by best-first bounding: shapes are priced in the order of their floors until no floor is
below what has been found. The plan itself and its proof are the solver's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from layoutopt.costmodel.axes import Array, Ints, ints
from layoutopt.costmodel.checkpoint import checkpoint_cost, run_wall_s
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.results import BREAKDOWN, Estimate
from layoutopt.optimizer.floors import Floors
from layoutopt.optimizer.outcome import Alternative
from layoutopt.optimizer.pricing import complete, price, row
from layoutopt.optimizer.space import Space, layout_of
from layoutopt.optimizer.wall import Clock
from layoutopt.units import format_bytes, format_seconds

KIND = ("tp", "cp", "pp", "ep")
_SHAPES_AT_ONCE = 32
MOST_SHAPES = 4_000
"""Shapes priced before the rest is left alone; what was found until then is still told."""
_LISTED = 3
"""Parts of the step to name for and against a layout."""

PART_NAMES: Mapping[str, str] = {
    "compute": "compute",
    "recompute": "recomputation",
    "tp_comm": "tensor-parallel traffic",
    "cp_comm": "context-parallel traffic",
    "ep_comm": "expert traffic",
    "pp_comm": "messages between stages",
    "pipeline_bubble": "pipeline bubble",
    "dp_comm": "exposed data-parallel traffic",
    "optimizer": "optimizer step",
    "other": "host and jitter",
}


def next_best(
    space: Space, floors: Floors, clock: Clock, plan: Estimate, top: int
) -> tuple[Alternative, ...]:
    """Up to ``top`` layouts of other kinds, best first, each with the reason it loses."""
    best: dict[tuple[int, ...], tuple[float, dict[str, int]]] = {}
    mine = tuple(getattr(plan.layout, axis) for axis in KIND)
    order = iter(np.argsort(floors.shape.columns["step"], kind="stable")[:MOST_SHAPES].tolist())
    while places := list(islice(order, _SHAPES_AT_ONCE)):
        lowest = _floor_wall_s(clock, int(floors.shape.columns["step"][places[0]]))
        found = sorted(wall for kind, (wall, _) in best.items() if kind != mine)
        if top <= 0 or (len(found) >= top and found[top - 1] <= lowest):
            break
        _keep_best(space, _completions(space, floors.shape.rows[places]), clock, best)
    others = sorted(
        (wall, tuple(chosen.values()), chosen) for kind, (wall, chosen) in best.items() if kind != mine
    )
    return tuple(_alternative(space, chosen, plan) for _, _, chosen in others[: max(top, 0)])


def _floor_wall_s(clock: Clock, quanta: int) -> float:
    """No run with a step of at least ``quanta`` is shorter: even with saves that cost nothing."""
    return clock.wall_s(max(clock.step_s(quanta), 1e-12), (0.0, 0.0))


def _completions(space: Space, shapes: Ints) -> dict[str, Ints]:
    """Every legal layout of ``shapes``, rows of (tp, cp, pp, micro_batch)."""
    rest = [space.values[axis] for axis in ("ep", "vpp", "zero_stage", "recompute")]
    grids = np.meshgrid(np.arange(len(shapes)), *(ints(v) for v in rest), indexing="ij")
    place, ep, vpp, zero_stage, recompute = (grid.ravel() for grid in grids)
    tp, cp, pp, micro_batch = shapes[place].T
    return complete(
        space,
        {
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "micro_batch": micro_batch,
            "ep": ep,
            "vpp": vpp,
            "zero_stage": zero_stage,
            "recompute": recompute,
        },
    )


def _keep_best(
    space: Space,
    columns: dict[str, Ints],
    clock: Clock,
    best: dict[tuple[int, ...], tuple[float, dict[str, int]]],
) -> None:
    """The shortest run of each kind that fits."""
    if not len(columns["tp"]):
        return
    seconds, over = price(space, columns)
    walls = _walls_s(space, columns, seconds, clock)
    kinds = np.stack([columns[axis] for axis in KIND], axis=-1).tolist()
    for place in np.argsort(walls, kind="stable").tolist():
        kind = tuple(kinds[place])
        if over[place] == 0 and (kind not in best or walls[place] < best[kind][0]):
            best[kind] = (float(walls[place]), row(columns, place))


def _walls_s(space: Space, columns: dict[str, Ints], seconds: Array, clock: Clock) -> Array:
    _, write, stall = checkpoint_cost(
        space.job, columns["tp"], columns["pp"], columns["zero_stage"]
    )
    return run_wall_s(space.job, seconds, write, stall, clock.size)


def _alternative(space: Space, chosen: dict[str, int], plan: Estimate) -> Alternative:
    other = estimate(space.job, layout_of(space.job, chosen))
    return Alternative(other, why_it_loses(other, plan))


def why_it_loses(other: Estimate, plan: Estimate) -> str:
    """What ``other`` takes longer for than ``plan``, by part, and what it gains back."""
    more = other.run.wall_time_s / plan.run.wall_time_s - 1
    gap = other.step.time_s - plan.step.time_s
    parts = {
        name: other.step.breakdown_s[name] - plan.step.breakdown_s[name] for name in BREAKDOWN
    }
    threshold = max(abs(gap), 1e-3 * plan.step.time_s) * 0.05
    lost = _listed({name: s for name, s in parts.items() if s > threshold})
    won = _listed({name: -s for name, s in parts.items() if s < -threshold})
    if gap <= 0:
        return f"Its step is no longer, but its checkpoints cost more: {more:.2%} more wall time."
    text = f"{format_seconds(gap)} longer a step ({gap / plan.step.time_s:.2%})"
    text += f": {lost} more" if lost else ""
    text += f", against {won} less" if won else ""
    spare = other.memory.usable_bytes - other.memory.worst.reserved
    return f"{text}; {format_bytes(spare)} of memory to spare."


def _listed(parts: Mapping[str, float]) -> str:
    largest = sorted(parts.items(), key=lambda part: -part[1])[:_LISTED]
    return ", ".join(f"{format_seconds(s)} {PART_NAMES[name]}" for name, s in largest)
