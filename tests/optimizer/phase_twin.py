"""The plain twin of the search of phases: every layout of every phase, and every way to go on.

It shares with the search the types, the price of one layout, and what a restart takes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from layoutopt.costmodel.estimate import memory_of
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.phases import PhaseEstimate, PhaseJob, anew_s, phase_estimate, phase_jobs
from layoutopt.costmodel.stages import even_split
from layoutopt.optimizer.every_pipeline import every_pipeline
from layoutopt.optimizer.phases import PhasedQuestion

_KNOBS = ("micro_batch", "recompute", "cp_kind", "offload_activations", "reshard")
Key = tuple[object, ...]


@dataclass(frozen=True)
class Tried:
    """Least costs; infinite where there is none."""

    auto_s: float
    one_s: float
    each_s: tuple[float, ...]
    """Each phase alone with the restart after it."""
    layouts: int


def try_every_phase(asked: PhasedQuestion, most: int) -> Tried | None:
    """The least wall times of the three ways; None where there are more than ``most`` layouts."""
    planned = phase_jobs(asked.question.job, asked.phases)
    phases = []
    for one in planned:
        found = []
        for number, layout in enumerate(every_pipeline(replace(asked.question, job=one.job))):
            if number > most:
                return None
            if memory_of(one.job, layout).fits:
                found.append(phase_estimate(one, layout))
        phases.append(found)
    alone = [
        min((_wall(one) + _anew(one, planned) for one in found), default=math.inf)
        for found in phases
    ]
    return Tried(_auto(planned, phases), _one(planned, phases), tuple(alone), sum(map(len, phases)))


def _wall(one: PhaseEstimate) -> float:
    return one.run.wall_time_s


def _anew(one: PhaseEstimate, planned: tuple[PhaseJob, ...]) -> float:
    """The restart after a phase; nothing comes after the last."""
    if one.planned is planned[-1]:
        return 0.0
    return one.checkpoint.write_s + anew_s(one.planned.job, one.checkpoint.bytes)


def _auto(planned: tuple[PhaseJob, ...], phases: list[list[PhaseEstimate]]) -> float:
    """Phase by phase the least cost of having come there with each setup."""
    known: dict[Key, float] = {}
    onwards = 0.0
    for number, found in enumerate(phases):
        reached: dict[Key, tuple[float, float]] = {}
        for one in found:
            key = (*_same(planned, number), *_setup(one.layout, one))
            start = min(known.get(key, math.inf), onwards)
            cost = start + _wall(one)
            reached[key] = min(
                (cost, cost + _anew(one, planned)), reached.get(key, (math.inf,) * 2)
            )
        later = _same(planned, number + 1)
        known = {(*later, *key[2:]): cost for key, (cost, _) in reached.items() if key[:2] == later}
        onwards = min((after for _, after in reached.values()), default=math.inf)
    return onwards


def _one(planned: tuple[PhaseJob, ...], phases: list[list[PhaseEstimate]]) -> float:
    """For each skeleton each block's best setup, added up."""
    blocks: list[list[int]] = []
    for number in range(len(planned)):
        if number and _same(planned, number) == _same(planned, number - 1):
            blocks[-1].append(number)
        else:
            blocks.append([number])
    if len({one.phase.gpus for one in planned}) > 1:
        return math.inf
    total: dict[Key, float] = defaultdict(float)
    counted: dict[Key, int] = defaultdict(int)
    for block in blocks:
        setups: dict[tuple[Key, Key], dict[int, float]] = defaultdict(dict)
        for number in block:
            last = number == block[-1]
            for one in phases[number]:
                cost = _wall(one) + (_anew(one, planned) if last else 0.0)
                key = (_skeleton(one.layout, one), _setup(one.layout, one))
                setups[key][number] = min(cost, setups[key].get(number, math.inf))
        best: dict[Key, float] = {}
        for (skeleton, _), costs in setups.items():
            if len(costs) == len(block):
                best[skeleton] = min(best.get(skeleton, math.inf), sum(costs.values()))
        for skeleton, cost in best.items():
            total[skeleton] += cost
            counted[skeleton] += 1
    return min((total[key] for key in total if counted[key] == len(blocks)), default=math.inf)


def _same(planned: tuple[PhaseJob, ...], number: int) -> Key:
    """What a block has in common."""
    if number >= len(planned):
        return (None, None)
    return planned[number].phase.seq_len, planned[number].phase.gpus


def _setup(layout: Layout, one: PhaseEstimate) -> Key:
    """All of a layout but the number of microbatches."""
    said: dict[str, Any] = {**vars(layout), "microbatches": 0}
    split = even_split(one.planned.job.model.layers, layout.pp)
    said["layers_per_stage"] = layout.layers_per_stage or split
    again = layout.recompute_layers
    if layout.recompute == "none" or again is None:
        counts = tuple(n if layout.recompute == "full" else 0 for n in said["layers_per_stage"])
    elif isinstance(again, int):
        counts = tuple(min(again, n) for n in said["layers_per_stage"])
    else:
        counts = again
    said["recompute_layers"] = counts
    if layout.recompute == "full" and not any(counts):
        said["recompute"] = "none"
    return tuple(said[key] for key in sorted(said))


def _skeleton(layout: Layout, one: PhaseEstimate) -> Key:
    usual: dict[str, Any] = {knob: getattr(Layout(), knob) for knob in _KNOBS}
    plain = replace(layout, **usual, recompute_layers=None, sequence_parallel=True)
    return _setup(plain, one)
