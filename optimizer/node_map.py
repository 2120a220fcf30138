"""Which nodes hold which ranks: blocks of neighbours (stages, or whole pipelines) under switches.

The chunks are decided with the layout (costmodel.fragments); they leave open which switch each
chunk takes. CP-SAT leaves as many blocks as possible whole under one switch, tier by tier from the
outside in, and then lets them touch as few switches as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from layoutopt.costmodel.fragments import Chunks, chunks_of, held, node_count, roots
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import PIPELINE_INSIDE, Layout
from layoutopt.errors import InternalError
from layoutopt.hardware_profiles.schema import Switch

SECONDS = 5.0
"""For one tier under one switch; the map is as valid without the proof, and moves no figure."""
_MOST_CELLS = 20_000
"""Blocks times switches up to which the solver is asked; beyond it switches are filled in turn."""


@dataclass(frozen=True)
class StagePlace:
    """Where one stage stands."""

    stage: int
    nodes: tuple[str, ...]
    """In rank order; a node may hold several stages."""
    switches: dict[str, int]
    """Nodes of the stage under each innermost switch."""


@dataclass(frozen=True)
class Placement:
    """A rank-to-node map. Rank r runs on node r // ranks_per_node of ``nodes``."""

    nodes: tuple[str, ...]
    ranks_per_node: int
    chunk_nodes: Chunks
    """Consecutive nodes under one switch, for each tier from the inside out."""
    stages: tuple[StagePlace, ...]
    unused: tuple[str, ...]
    proved: bool
    """No other map in such chunks leaves more blocks whole under one switch."""


def placement_of(job: Job, layout: Layout) -> Placement:
    """The map of a job that `fragments.placed` made, for ``layout``."""
    per_node, count, chunks = job.cluster.gpus_per_node, node_count(job), chunks_of(job)
    proofs: list[bool] = []
    block = _block_nodes(job, layout)
    if chunks:
        nodes = _spread(roots(job.cluster), chunks, count, block, proofs)
    else:
        nodes = [n for one in job.cluster.switches for n in one.all_nodes][:count]
    if len(set(nodes)) != count:
        raise InternalError(f"a map of {count} nodes names {len(set(nodes))}")
    home = {n: one.name for one in _leaves(job.cluster.switches) for n in one.nodes}
    stages = tuple(_stage(layout, s, nodes, per_node, home) for s in range(layout.pp))
    unused = tuple(n for n in home if n not in set(nodes))
    return Placement(tuple(nodes), per_node, chunks, stages, unused, all(proofs))


def _block_nodes(job: Job, layout: Layout) -> int:
    """Nodes of a block of neighbours: a stage, or with the pipeline inside a whole pipeline."""
    ranks = (
        layout.tp * layout.cp * (layout.pp if layout.axis_order == PIPELINE_INSIDE else layout.dp)
    )
    return -(-ranks // job.cluster.gpus_per_node)


def _leaves(switches: Sequence[Switch]) -> list[Switch]:
    return [leaf for one in switches for leaf in (_leaves(one.switches) if one.switches else [one])]


def _spread(
    switches: Sequence[Switch], chunks: Chunks, count: int, block: int, proofs: list[bool]
) -> list[str]:
    """``count`` nodes below ``switches`` in rank order, a chunk of the outermost tier at a time."""
    chunk = chunks[-1]
    room = [held(one, chunks) for one in switches]
    takes, proved = assign(_pieces(count // chunk, max(1, block // gcd(block, chunk))), room)
    proofs.append(proved)
    parts = [
        iter(_under(one, chunks, sum(take[n] for take in takes) * chunk, block, proofs))
        for n, one in enumerate(switches)
    ]
    found: list[str] = []
    for take in takes:
        for n, some in enumerate(take):
            found += [next(parts[n]) for _ in range(some * chunk)]
    return found


def _under(switch: Switch, chunks: Chunks, count: int, block: int, proofs: list[bool]) -> list[str]:
    """``count`` nodes below one switch, chunks of the inner tiers kept whole."""
    if not count:
        return []
    if not switch.switches:
        return list(switch.nodes[:count])
    return _spread(switch.switches, chunks[:-1], count, block, proofs)


def _pieces(chunks: int, size: int) -> list[int]:
    """Blocks as numbers of chunks; the last one may be a part."""
    whole, rest = divmod(chunks, size)
    return [size] * whole + ([rest] if rest else [])


def assign(blocks: list[int], room: list[int]) -> tuple[list[list[int]], bool]:
    """Chunks of each block on each switch, and whether no assignment leaves more blocks whole.

    Most whole blocks first, then fewest switches touched. Equal blocks are interchangeable, and so
    are equal switches: the first in order takes no fewer.
    """
    if len(blocks) * len(room) > _MOST_CELLS or all(size == 1 for size in blocks):
        return _in_turn(blocks, room), all(size == 1 for size in blocks)
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    take = [[model.new_int_var(0, min(size, r), "") for r in room] for size in blocks]
    touch = [[model.new_bool_var("") for _ in room] for _ in blocks]
    for size, row, marks in zip(blocks, take, touch, strict=True):
        model.add(sum(row) == size)
        for some, mark in zip(row, marks, strict=True):
            model.add(some <= size * mark)
    for n, most in enumerate(room):
        model.add(sum(row[n] for row in take) <= most)
    whole = [model.new_bool_var("") for _ in blocks]
    for one, marks in zip(whole, touch, strict=True):
        model.add(sum(marks) <= 1 + (len(room) - 1) * (1 - one))
    for a, b in zip(range(len(blocks)), range(1, len(blocks)), strict=False):
        if blocks[a] == blocks[b]:
            model.add(whole[a] >= whole[b])
    # What fits whole under the switches bounds what can be whole at all.
    size = blocks[0]
    model.add(sum(whole[: len(blocks)]) <= sum(r // min(blocks) for r in room))
    touches = sum(mark for marks in touch for mark in marks)
    model.minimize(touches - (size * len(room) + 1) * len(blocks) * sum(whole))
    solver = cp_model.CpSolver()
    solver.parameters.cp_model_presolve = False
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = SECONDS
    for row, start in zip(take, _in_turn(blocks, room), strict=True):
        for some, value in zip(row, start, strict=True):
            model.add_hint(some, value)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return _in_turn(blocks, room), False
    return [[solver.value(some) for some in row] for row in take], status == cp_model.OPTIMAL


def _in_turn(blocks: list[int], room: list[int]) -> list[list[int]]:
    """Whole blocks where they fit, the rest wherever there is room."""
    left, found = list(room), [[0] * len(room) for _ in blocks]
    later = []
    for n, size in enumerate(blocks):
        fit = next((k for k, free in enumerate(left) if free >= size), None)
        if fit is None:
            later.append(n)
        else:
            found[n][fit], left[fit] = size, left[fit] - size
    for n in later:
        need = blocks[n]
        for k in sorted(range(len(left)), key=lambda k: (-left[k], k)):
            some = min(need, left[k])
            found[n][k], left[k], need = some, left[k] - some, need - some
    return found


def _stage(
    layout: Layout, stage: int, nodes: list[str], per_node: int, home: dict[str, str]
) -> StagePlace:
    """The nodes of a stage's ranks, in rank order."""
    inner, a_stage = layout.tp * layout.cp, layout.tp * layout.cp * layout.dp
    if layout.axis_order == PIPELINE_INSIDE:
        starts = [(r * layout.pp + stage) * inner for r in range(layout.dp)]
        ranks = [start + n for start in starts for n in range(inner)]
    else:
        ranks = list(range(stage * a_stage, (stage + 1) * a_stage))
    names = tuple(dict.fromkeys(nodes[rank // per_node] for rank in ranks))
    switches: dict[str, int] = {}
    for name in names:
        switches[home[name]] = switches.get(home[name], 0) + 1
    return StagePlace(stage, names, switches)


def placed_in_words(placement: Placement, job: Job) -> tuple[str, ...]:
    """How the nodes stand, and how many were left out."""
    total, used = job.cluster.nodes or 0, len(placement.nodes)
    crossing = [one for one in placement.stages if len(one.switches) > 1]
    tier = [level.name for level in job.cluster.levels[-len(placement.chunk_nodes) - 1 : -1]]
    chunks = " and ".join(
        f"{nodes} under one {name}" for nodes, name in zip(placement.chunk_nodes, tier, strict=True)
    )
    found = [
        f"Placement: neighbouring nodes stand {chunks or 'under one switch'}; "
        f"{len(placement.stages) - len(crossing)} of {len(placement.stages)} stages are whole "
        "under one switch."
    ]
    if used < total:
        found.append(
            f"{total - used} of {total} nodes are left out: no layout on more nodes is better."
        )
    return tuple(found)
