"""Shapes of pipelines: outer axes that a first, cheap floor leaves, with every number of chunks.

What follows (outer.py) multiplies each shape by every way to shard and to run a layer, and asks
the cost model for all of them. Here the tables' least layer, shared as evenly as work could be,
says which shapes are worth that:

    pipeline >= (m / pp + waits) all stages

The slowest stage, which has at least its share of the work, works on every microbatch; what is
waited for on top of it is in `least_waits`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layoutopt.costmodel.axes import Array, Ints, ints
from layoutopt.costmodel.pipelines import pipelines_of
from layoutopt.optimizer.domains import fixed, within
from layoutopt.optimizer.floors import LAYER_SHARES
from layoutopt.optimizer.keyed import HUGE, Keyed
from layoutopt.optimizer.space import Space
from layoutopt.optimizer.tables import Tables

SHAPE = ("tp", "cp", "pp", "dp", "micro_batch", "microbatches", "experts", "vpp")
"""Axes of a shape, in the order of its columns."""


def with_every_chunk(space: Space) -> Space:
    """The space with every number of chunks, where stages may be uneven."""
    question, job = space.question, space.job
    able = pipelines_of(job.software.framework)
    if question.pipeline.splits == "even" or able.splits == "even":
        return space
    chunks = tuple(
        v
        for v in range(1, job.model.layers // 2 + 2)
        if _chunks_add_up(job.model.layers, v)
        and within(question.limits, "vpp", v)
        and ("vpp" not in question.fix or v == fixed(question, "vpp"))
    )
    dropped = space.dropped | {"cut_layers_evenly"}
    return replace(space, values={**space.values, "vpp": chunks}, dropped=dropped)


def _chunks_add_up(layers: int, chunks: int) -> bool:
    """Whether stages of whole chunks can hold all layers: the embedding and the head may each stand
    in the place of one (rules.pipeline_fits)."""
    return any((layers + ends) % chunks == 0 for ends in (0, 1, 2))


def least_waits(pp: Ints, vpp: Ints, microbatches: Ints, *, plain: bool) -> Array:
    """What any split waits for beside m / p of all stages' work W, as a share of W.

    With v chunks that take turns (W - t_max) / v, which is least where all stages are alike. Under
    1F1B (``plain``: no other schedule is looked for) a stage s is on three paths through the
    order of work, each no longer than the pipeline:

        sum_{j<s} t_j + (m - p + s + 1) t_s + 2 sum_{j>s} t_j      for s > p - m
        W + (m - 1) (t_s - f_s)                                    for s <= p - m, f_s <= t_s / 2
        W - t_s + m t_s                                            for the last stage

    With m > p + 1, the first of them, weighted by 1 / ((m - p + s) (m - p + s - 1)), add up to
    (m + p - 1) / p W: no split does better than the even one. Else the first with s = p - m + 1 and
    the second leave at least (m - 1) / (2 p - m + 1) W on top of W. Other schedules are taken to
    wait for nothing.
    """
    few = 1 + (microbatches - 1) / np.maximum(2 * pp - microbatches + 1, 1) - microbatches / pp
    one = np.where(microbatches > pp + 1, 1 - 1 / pp, np.maximum(few, 0.0))
    return np.where(vpp > 1, (1 - 1 / pp) / vpp, one if plain else 0.0)


def shapes_of(space: Space, tables: Tables, most_s: float, *, plain: bool) -> Ints:
    """Rows of SHAPE whose step may take ``most_s`` at most, jitter and the step's fixed cost left
    out; with the least layer of the tables, and what comes once a step for nothing. ``plain``: see
    `least_waits`."""
    rows = unchunked(space)
    if np.isinf(most_s):
        return chunked(space, rows)
    # With one chunk, and then for nothing what chunks wait for: whatever their number is.
    rows = rows[_floor_s(space, tables, rows, plain=False) <= most_s]
    rows = chunked(space, rows)
    kept: Ints = rows[_floor_s(space, tables, rows, plain=plain) <= most_s]
    return kept


def _floor_s(space: Space, tables: Tables, rows: Ints, *, plain: bool) -> Array:
    """Seconds that every pipeline of a row takes; infinite where the tables have no such layer."""
    layer, ends, layers = tables.layer, tables.ends, space.job.model.layers
    keyed = Keyed(layer, LAYER_SHARES, _columns(rows, LAYER_SHARES))
    least = {name: keyed.least(layer.columns[name]) for name in ("m_total", "total")}
    floor = np.full(len(rows), np.inf)
    known = np.flatnonzero(least["total"] < HUGE)
    rows, least = rows[known], {name: column[known] for name, column in least.items()}
    at = Keyed(ends, ends.axes, _columns(rows, ends.axes)).least(np.arange(len(ends)))
    entry = {name: column[at] for name, column in ends.columns.items()}
    pp, vpp = rows[:, 2], rows[:, 7]
    always = layers * least["m_total"] + entry["m_embedding"] + entry["m_head"]
    always = always + pp * (entry["m_host"] + vpp * _messages(tables, pp, entry))
    waits = least_waits(pp, vpp, rows[:, 5], plain=plain)
    one = layers * least["total"] + entry["embedding"] + entry["head"]
    # Rounded as in any sum of the tables; twice, as the waits are not an even split's.
    floor[known] = tables.seconds(1) * (always + waits * one - 2 * tables.delta)
    return floor


def _columns(rows: Ints, axes: tuple[str, ...]) -> list[Ints]:
    return [rows[:, SHAPE.index(axis)] for axis in axes]


def _messages(tables: Tables, pp: Ints, entry: dict[str, Ints]) -> Ints:
    """Quanta of M messages on the link that the stages of each row share."""
    found = np.zeros_like(pp)
    for code, values in enumerate(tables.links):
        found = np.where(np.isin(pp, values), entry[f"m_message{code}"], found)
    return found


def unchunked(space: Space) -> Ints:
    """Every row of SHAPE that uses all GPUs and the batch, with one chunk."""
    grids, batches = ints(space.grids).reshape(-1, 4), ints(space.batches).reshape(-1, 3)
    batches = batches[np.argsort(batches[:, 0], kind="stable")]
    first = np.searchsorted(batches[:, 0], grids[:, 3])
    many = np.searchsorted(batches[:, 0], grids[:, 3], side="right") - first
    # Each grid with the batches of its dp, in their order.
    number = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    batch = batches[np.repeat(first, many) + number]
    rows = np.column_stack([np.repeat(grids, many, axis=0), batch[:, 1:]])
    experts = ints(space.values["experts"])
    rows = np.repeat(rows, len(experts), axis=0)
    ones = np.ones(len(rows), dtype=np.int64)
    return np.column_stack([rows, np.resize(experts, len(rows)), ones])


def chunked(space: Space, rows: Ints) -> Ints:
    """The rows with every number of chunks that may take turns: a stage has as many layers, and the
    microbatches come in whole groups."""
    found = [rows[:0]]
    for chunks in space.values["vpp"]:
        mine = rows[
            chunks <= np.where(rows[:, 2] > 1, (space.job.model.layers + 2) // rows[:, 2], 1)
        ]
        if chunks > 1 and space.keeps("interleave_whole_groups"):
            mine = mine[mine[:, 5] % mine[:, 2] == 0]
        found.append(np.column_stack([mine[:, :7], np.full(len(mine), chunks)]))
    chunked: Ints = np.concatenate(found)
    return chunked
