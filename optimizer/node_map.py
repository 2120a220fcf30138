"""Which nodes hold which ranks: blocks of neighbours (stages, or whole pipelines) under switches.

The chunks are decided with the layout (costmodel.fragments); they leave open which switch each
chunk takes. As many blocks as possible stay whole under one switch, tier by tier from the outside
in, and CP-SAT lets the others touch as few switches as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from layoutopt.costmodel.fragments import Chunks, chunks_of, held, node_count, roots
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import PIPELINE_INSIDE, Layout
from layoutopt.errors import InternalError
from layoutopt.hardware_profiles.schema import Switch

EFFORT = 1.0
"""CP-SAT's deterministic time for one tier under one switch, a few seconds. A map without the proof
is as valid, and no figure depends on it."""
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
    """No other map in such chunks leaves more blocks whole, or cuts the others less."""


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
    """Chunks of each block on each switch; and whether it is proved that none is better.

    As many blocks as the switches can hold whole stay whole: a count that needs no search. Which
    switches they take, CP-SAT decides: so that the others touch as few switches as possible.
    """
    size = max(blocks, default=1)
    equal = [n for n, one in enumerate(blocks) if one == size]
    most = [free // size for free in room]
    whole = min(len(equal), sum(most))
    cut = [n for n in range(len(blocks)) if n not in set(equal[:whole])]
    stay, takes, proved = _around(whole, most, [blocks[n] for n in cut], room, size)
    found = [[0] * len(room) for _ in blocks]
    homes = [n for n, some in enumerate(stay) for _ in range(some)]
    for block, home in zip(equal, homes, strict=False):
        found[block][home] = size
    for block, take in zip(cut, takes, strict=True):
        found[block] = take
    return found, proved


def _around(
    whole: int, most: list[int], cut: list[int], room: list[int], size: int
) -> tuple[list[int], list[list[int]], bool]:
    """Whole blocks on each switch, and the chunks there of those that are cut."""
    start = _in_turn([size] * whole, room)
    stay = [sum(take[n] for take in start) // size for n in range(len(room))]
    left = [free - size * some for free, some in zip(room, stay, strict=True)]
    takes = _in_turn(cut, left)
    if not cut or len(cut) * len(room) > _MOST_CELLS:
        return stay, takes, not cut
    from layoutopt.optimizer.cp_sat import cp_model

    model = cp_model.CpModel()
    kept = [model.new_int_var(0, some, "") for some in most]
    model.add(sum(kept) == whole)
    take = [[model.new_int_var(0, min(one, free), "") for free in room] for one in cut]
    touch = [[model.new_bool_var("") for _ in room] for _ in cut]
    for one, row, marks in zip(cut, take, touch, strict=True):
        model.add(sum(row) == one)
        for some, mark in zip(row, marks, strict=True):
            model.add(some <= one * mark)
    for n, free in enumerate(room):
        model.add(size * kept[n] + sum(row[n] for row in take) <= free)
    # Equal blocks are interchangeable: those that touch more come later.
    for a, b in pairwise(range(len(cut))):
        if cut[a] == cut[b]:
            model.add(sum(touch[a]) <= sum(touch[b]))
    model.minimize(sum(mark for marks in touch for mark in marks))
    for variables, values in zip([kept, *take], [stay, *takes], strict=True):
        for variable, value in zip(variables, values, strict=True):
            model.add_hint(variable, value)
    solver = cp_model.CpSolver()
    solver.parameters.cp_model_presolve = False
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = EFFORT
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return stay, takes, False
    shares = [[solver.value(variable) for variable in row] for row in take]
    return [solver.value(one) for one in kept], shares, status == cp_model.OPTIMAL


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
