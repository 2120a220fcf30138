"""The best of one kind of layout over the whole space: every split, recompute and schedule.

A kind is a choice of tp, cp, pp and experts; the survey ranks kinds by their best even layout. Each
is small enough to be searched like the whole (pipelining.py). How much is tried is counted and
never timed, so that the same question gets the same answer on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.costmodel.memory_fit import memory_fit
from layoutopt.costmodel.results import Estimate
from layoutopt.optimizer import choices
from layoutopt.optimizer.asked import is_wider, recompute_of
from layoutopt.optimizer.pipelining import Pipelines
from layoutopt.optimizer.question import Limit
from layoutopt.optimizer.rounds import Rounds
from layoutopt.optimizer.space import Space, layout_of
from layoutopt.optimizer.survey import KIND, Seen
from layoutopt.optimizer.tables import Tables
from layoutopt.units import GIB, KIB

MORE_BYTES = (8 * GIB, 2 * GIB)
"""Memory that is added to each GPU to see whether it changes the choice: most of it first."""
_ROUNDED_KIB = 2
"""More than what may be allocated of so much more memory is rounded down by."""
_MOST_OUTER = 6
"""Choices of all but split and recompute that are looked into for one kind."""
_EFFORT = 0.2
"""Deterministic seconds of the solver for each of them."""


def best_of_kinds(
    rounds: Rounds, mine: Seen, top: int, fitting: Sequence[Seen], misfits: Sequence[Seen]
) -> tuple[Estimate, ...]:
    """The ``top`` best of the even layouts ``fitting`` and of their kinds' other splits, recompute
    and schedules; best first.

    Looked at too are one kind less of which some even layout among ``misfits`` (faster than the
    plan) lacks least memory: recompute of a part of its layers may make up for it.
    """
    space, known = rounds.space, {_kind(mine)}
    wider, found = is_wider(space.question), list[Estimate]()

    def searched(one: Seen, most_s: float) -> Estimate | None:
        if _kind(one) in known or not wider:
            return None
        known.add(_kind(one))
        walls = sorted(other.run.wall_time_s for other in found)
        limit = walls[top - 1] if len(walls) >= top else math.inf
        return _best(rounds, space, one.chosen, min(limit, most_s))

    for one in fitting:
        even = estimate(space.job, layout_of(space.question, one.chosen))
        found.append(searched(one, even.run.wall_time_s) or even)
    near = sorted(misfits, key=lambda one: (one.over_kib, one.wall_s))
    tried = len(known) + max(top - 1, 1)
    for one in near:
        if len(known) >= tried:
            break
        other = searched(one, math.inf)
        found += [other] if other else []
    found.sort(key=lambda one: one.run.wall_time_s)
    return tuple(found[:top])


def _kind(seen: Seen) -> tuple[int, ...]:
    return tuple(seen.chosen[axis] for axis in KIND)


def roomier(rounds: Rounds, seen: Seen, most_s: float) -> Estimate | None:
    """The best layout of the kind of ``seen`` whose run is shorter than ``most_s`` with the least
    of MORE_BYTES with which there is one, as it is on today's GPUs; None where there is none."""
    found = None
    for more in MORE_BYTES:
        plan = _with_more(rounds, rounds.space, seen, most_s, more)
        if plan is None:
            break
        found = plan
    return found


def with_what_it_lacks(rounds: Rounds, even: Seen, most_s: float) -> Estimate | None:
    """The best split and recompute of ``even``, which does not fit, that lack no more than it
    does, if the run is shorter than ``most_s``; as it is on today's GPUs.

    None too where all stages recompute as many layers: each number is a problem of its own.
    """
    if recompute_of(rounds.space.question) == "same":
        return None
    share = 1000 + memory_fit(rounds.space.job).fragmented_per_mille
    more = (-(-even.over_kib * share // 1000) + _ROUNDED_KIB) * KIB
    return _with_more(rounds, _alike(rounds.space, even), even, most_s, more)


def lacks_kib(job: Job, one: Estimate) -> int:
    """KiB that the fullest stage of a layout allocates beyond what it may."""
    allocated = max(stage.allocated for stage in one.memory.stages)
    return allocated // KIB - largest_allocation_kib(job)


def _alike(space: Space, even: Seen) -> Space:
    """The space's layouts that differ from ``even`` in split and recompute alone."""
    modes = {
        choices.with_recompute(even.chosen["mode"], code) for code in range(len(RECOMPUTE))
    } & set(space.values["mode"])
    limits = (*space.question.limits, Limit("vpp", "==", even.chosen["vpp"]))
    values = {axis: (value,) for axis, value in even.chosen.items()}
    question = replace(space.question, limits=limits)
    return replace(space, question=question, values={**values, "mode": tuple(sorted(modes))})


def _with_more(
    rounds: Rounds, space: Space, seen: Seen, most_s: float, more: int
) -> Estimate | None:
    """The best layout of the kind of ``seen`` on GPUs with so many bytes more, if its run is
    shorter than ``most_s``; priced on today's GPUs, where it does not fit."""
    if not is_wider(space.question):
        return None
    found = _best(rounds, space, seen.chosen, most_s, more)
    return estimate(space.job, found.layout) if found else None


def _best(
    rounds: Rounds, space: Space, chosen: dict[str, int], most_s: float, more_bytes: int = 0
) -> Estimate | None:
    """The best run below ``most_s`` of the space's one kind, with so much more memory per GPU."""
    space = _only(space, chosen, more_bytes)
    tables = _tables_of(rounds.tables, chosen)
    budget = replace(rounds.budget, effort=_EFFORT)
    search = Pipelines(space, tables, rounds.clock, budget, math.inf, _MOST_OUTER)
    return search.run(most_s).plan


def _only(space: Space, chosen: dict[str, int], more_bytes: int) -> Space:
    """The space's layouts of one kind, on GPUs with more memory."""
    values = {**space.values, **{axis: (chosen[axis],) for axis in KIND}}
    job = space.job
    if more_bytes:
        memory = job.cluster.gpu.memory_bytes + more_bytes
        gpu = job.cluster.gpu.model_copy(update={"memory_bytes": memory})
        job = replace(job, cluster=job.cluster.model_copy(update={"gpu": gpu}))
    return replace(space, question=replace(space.question, job=job), values=values)


def _tables_of(tables: Tables, chosen: dict[str, int]) -> Tables:
    """The rows of layers that one kind may have: fewer to look through."""
    layer = tables.layer
    mine = np.logical_and.reduce(
        [layer.axis(axis) == chosen[axis] for axis in KIND if axis in layer.axes]
    )
    return replace(tables, layer=layer.keep(mine))
