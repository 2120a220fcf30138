"""Ways out: changes of a question that let something through, each with its step time.

Whether a changed question has a layout that fits is decided exactly, by `leanest` and of every
split and recompute by `some_pipeline_fits`; its best layout is searched for like any answer. How
much is tried is counted, never timed: the same question gets the same ways out on any machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.linears import usual_adapters
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import sharding_fits
from layoutopt.costmodel.software import software
from layoutopt.hardware_profiles.catalog import gpu_names, load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster, with_nodes
from layoutopt.optimizer import orders
from layoutopt.optimizer.asked import asks_usual, is_wider
from layoutopt.optimizer.lean import leanest
from layoutopt.optimizer.lean_pipelines import some_pipeline_fits
from layoutopt.optimizer.outcome import Change
from layoutopt.optimizer.pipelining import least_of_pipelines_s
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.space import Space
from layoutopt.units import GIB

SHARDING_FRAMEWORK = "torchtitan"
"""A framework that shards weights, to suggest where the given one does not."""
DOUBLINGS = 8
"""Times that the GPU count is doubled in the search for one that is enough."""
STEPS = 16
"""Between a count that is too small and its double: counts tried are multiples of a 16th of it."""
SHORTEST_SEQUENCE = 512
"""Shorter sequences are not suggested."""
MOST_GPUS_TRIED = 3
"""Accelerators with more memory that are tried."""
_BUDGET = Budget(seconds=math.inf, effort=10.0)
"""Of the search of a changed question: deterministic seconds of each call of the solver."""


def something_fits(question: Question) -> bool:
    """Whether any layout of the question is legal and fits in memory."""
    space = orders.first_space(question)
    return space is not None and _fits(space)


def _fits(space: Space) -> bool:
    if asks_usual(space.question.pipeline):
        seen = leanest(space)
        if seen is not None and seen.over_kib == 0:
            return True
    return is_wider(space.question) and some_pipeline_fits(space)


def fastest(question: Question, most_wall_s: float = math.inf) -> Estimate | None:
    """The best layout of a question, deadline and budget ignored, if its run takes at most
    ``most_wall_s``; None where nothing fits."""
    space = orders.first_space(question)
    if space is None or not _fits(space):
        return None
    if math.isfinite(most_wall_s) and least_of_pipelines_s(space) > most_wall_s:
        return None
    _, ended = orders.proved(space, _BUDGET, time.monotonic(), most_wall_s)
    best = ended.best.estimate if ended.best else None
    return best if best is not None and best.run.wall_time_s <= most_wall_s else None


def _priced(option: str, value: str, question: Question) -> Iterator[Change]:
    best = fastest(question)
    if best is not None:
        yield Change(option, value, best.step.time_s)


def freed(question: Question, best_of: Callable[[Question], Estimate | None]) -> list[Change]:
    """What was fixed or limited left to the search: one axis, or all where one is not enough.

    ``best_of``: the best layout of a changed question, if it is good enough. Of all, those are
    named that come out otherwise than they were fixed.
    """
    asked = list(dict.fromkeys([*question.fix, *(limit.axis for limit in question.limits)]))
    found = []
    for axis in asked:
        best = best_of(_without(question, {axis}))
        if best is not None:
            found.append(Change(axis, _value(best.layout, axis), best.step.time_s))
    if not found and len(asked) > 1:
        best = best_of(_without(question, set(asked)))
        if best is not None:
            now = {axis: _value(best.layout, axis) for axis in asked}
            words = [f"{axis}={v}" for axis, v in now.items() if str(question.fix.get(axis)) != v]
            found.append(Change("fix", ",".join(words), best.step.time_s))
    return found


def _value(layout: Layout, axis: str) -> str:
    """Of one key, in a layout's own words: full:3+2 where a part recomputes."""
    counts = layout.recompute_layers if axis == "recompute" else None
    if counts is None:
        return str(getattr(layout, axis))
    runs = [
        (n, len(list(run))) for n, run in groupby(counts if isinstance(counts, tuple) else [counts])
    ]
    return "full:" + "+".join(f"{times}*{n}" if times > 1 else str(n) for n, times in runs)


def _without(question: Question, axes: set[str]) -> Question:
    return replace(
        question,
        fix={axis: value for axis, value in question.fix.items() if axis not in axes},
        limits=tuple(limit for limit in question.limits if limit.axis not in axes),
    )


def sharding_framework(question: Question) -> Iterator[Change]:
    """A framework that shards gradients and weights, where the given one does not."""
    job = question.job
    profile = software(SHARDING_FRAMEWORK)
    if not sharding_fits(job, 3, 1) and (profile.lora or not job.training.lora):
        changed = replace(question, job=replace(job, software=profile))
        yield from _priced("framework", profile.name, changed)


def adapters(question: Question) -> Iterator[Change]:
    """Adapters beside every layer instead of all weights, where those are fine-tuned."""
    job = question.job
    if job.training.finetune != "full" or not job.software.lora:
        return
    model = job.model.model_copy(update={"mtp_layers": 0})
    lora = usual_adapters(model, job.software.merged_adapters)
    training = job.training.model_copy(update={"finetune": "lora", "lora": lora})
    changed = replace(question, job=replace(job, model=model, training=training))
    yield from _priced("finetune", "lora", changed)


def shorter_sequence(question: Question) -> Iterator[Change]:
    """The longest half, quarter, eighth ... of the sequence with which something fits."""
    length = question.job.training.seq_len
    halves = [length >> n for n in range(1, 7) if length % (1 << n) == 0]
    halves = [half for half in halves if half >= SHORTEST_SEQUENCE]
    if not halves or not something_fits(_at_length(question, halves[-1])):
        return
    for half in halves:
        changed = _at_length(question, half)
        if something_fits(changed):
            yield from _priced("seq_len", str(half), changed)
            return


def _at_length(question: Question, seq_len: int) -> Question:
    training = question.job.training.model_copy(update={"seq_len": seq_len})
    return replace(question, job=replace(question.job, training=training))


def larger_gpu(question: Question, needed_bytes: int) -> Iterator[Change]:
    """The accelerator with the least memory, of this architecture if one does, that is enough."""
    job = question.job
    mine = job.cluster.gpu.architecture
    known = [load_gpu(name) for name in gpu_names()]
    enough = [gpu for gpu in known if gpu.memory_bytes >= needed_bytes]
    enough.sort(key=lambda gpu: (gpu.architecture != mine, gpu.memory_bytes, gpu.name))
    for gpu in enough[:MOST_GPUS_TRIED]:
        cluster = default_cluster(gpu, job.gpus)
        changed = replace(question, job=replace(job, cluster=cluster, efficiency=None))
        if something_fits(changed):
            yield from _priced("gpu", gpu.name, changed)
            return


def more_memory(question: Question, gib: int) -> Iterator[Change]:
    """So much memory on the same accelerator."""
    cluster = question.job.cluster
    gpu = cluster.gpu.model_copy(update={"memory_bytes": gib * GIB})
    job = replace(question.job, cluster=cluster.model_copy(update={"gpu": gpu}))
    yield from _priced("gpu memory", f"{gib:,} GiB or more", replace(question, job=job))


def more_gpus(
    question: Question,
    at_least: float,
    enough: Callable[[Question], Estimate | None],
    doublings: int = DOUBLINGS,
) -> list[Change]:
    """The smallest count that is enough, and the power of two times today's above it.

    ``at_least`` times the GPUs are needed at the least. Counts in between are whole nodes, and
    multiples of a 16th of the larger count; divisibility decides which of them work.
    """
    gpus, first = question.job.gpus, max(1, math.ceil(math.log2(max(at_least, 1.0))))
    for power in range(first, first + doublings):
        count = gpus << power
        best = enough(on_gpus(question, count))
        if best is None:
            continue
        found = [Change("gpus", str(count), best.step.time_s)]
        for fewer in _between(question, count, at_least):
            best = enough(on_gpus(question, fewer))
            if best is not None:
                return [Change("gpus", str(fewer), best.step.time_s), *found]
        return found
    return []


def _between(question: Question, count: int, at_least: float) -> Iterator[int]:
    gpus, per_node = question.job.gpus, question.job.cluster.gpus_per_node
    unit = per_node if gpus % per_node == 0 else gpus
    step = max(unit, count // STEPS // unit * unit)
    for fewer in range(count // 2 + step, count, step):
        if fewer >= at_least * gpus:
            yield fewer


def fewer_gpus(
    question: Question, best_of: Callable[[Question], Estimate | None]
) -> Iterator[Change]:
    """The most of a half, a quarter or an eighth of the GPUs that is good enough."""
    for power in range(1, 4):
        if question.job.gpus % (1 << power):
            return
        count = question.job.gpus >> power
        best = best_of(replace(question, job=replace(question.job, gpus=count)))
        if best is not None:
            yield Change("gpus", str(count), best.step.time_s)
            return


def on_gpus(question: Question, gpus: int) -> Question:
    """The same question on more GPUs: on more nodes where the cluster has too few."""
    job: Job = question.job
    cluster = job.cluster
    nodes = -(-gpus // cluster.gpus_per_node)
    if cluster.nodes is not None and nodes > cluster.nodes:
        cluster = with_nodes(cluster, nodes)
    return replace(question, job=replace(job, gpus=gpus, cluster=cluster))
