"""Ways out: changes of a question that let something through, each with its step time.

Whether a changed question has a layout that fits is decided by `leanest`, exactly; what its best
layout takes is the survey's. How much is tried is counted, never timed: the same question gets the
same ways out on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from layoutopt.costmodel.axes import RING, SCHEDULES, Axes, Ints, ints
from layoutopt.costmodel.estimate import allocated_kib, estimate, over_kib, step_seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS
from layoutopt.costmodel.linears import usual_adapters
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import sharding_fits
from layoutopt.costmodel.software import software
from layoutopt.hardware_profiles.catalog import gpu_names, load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster, with_nodes
from layoutopt.optimizer import choices
from layoutopt.optimizer.floors import floors_of
from layoutopt.optimizer.outcome import Change
from layoutopt.optimizer.pricing import axes_from, complete, row
from layoutopt.optimizer.question import AXES, Question
from layoutopt.optimizer.space import Space, layout_of, space_of
from layoutopt.optimizer.survey import Seen, Survey
from layoutopt.optimizer.tables import tables_of
from layoutopt.optimizer.wall import Clock

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


def leanest(space: Space, schedule: str = "1f1b") -> Seen | None:
    """The even layout that allocates least on its worst stage; ties go to the faster one.

    A smaller micro_batch never needs more: activations in flight grow with it, or stay where it
    takes away as many microbatches. So each dp is tried with its smallest one alone, unless the
    question holds the batch to something.
    """
    columns = _lean_columns(space)
    if not len(columns["tp"]):
        return None
    code = SCHEDULES[schedule]

    def axes_of(some: dict[str, Ints]) -> Axes:
        axes = axes_from(space, some)
        return replace(axes, schedule=np.full_like(axes.schedule, code))

    axes = axes_of(columns)
    allocated, over = allocated_kib(space.job, axes), over_kib(space.job, axes)
    # First what is over by least: the host's memory counts too, where something is offloaded.
    allocated = np.where(over == over.min(), allocated, np.iinfo(np.int64).max)
    places = np.flatnonzero(allocated == allocated.min())
    columns = {axis: column[places] for axis, column in columns.items()}
    seconds = step_seconds(space.job, axes_of(columns))
    order = np.lexsort([*(columns[axis] for axis in reversed(AXES)), seconds])
    return Seen(row(columns, int(order[0])), float(seconds[order[0]]), int(over.min()))


def _lean_columns(space: Space) -> dict[str, Ints]:
    batches: dict[int, list[int]] = {}
    for dp, micro_batch, _ in space.batches:
        batches.setdefault(dp, []).append(micro_batch)
    held = {*space.question.fix, *(limit.axis for limit in space.question.limits)}
    # Where the optimizer step is the worst moment, larger microbatches hold no more.
    if not held & {"micro_batch", "microbatches", "vpp"} and not space.job.software.step_bytes:
        batches = {dp: [min(found)] for dp, found in batches.items()}
    shapes = [
        (tp, cp, pp, micro_batch)
        for tp, cp, pp, dp in space.grids
        for micro_batch in batches.get(dp, [])
    ]
    rest = (ints(space.values["experts"]), ints(space.values["vpp"]), *_lean_codes(space))
    grids = np.meshgrid(np.arange(len(shapes)), *rest, indexing="ij")
    place, experts, vpp, sharding, mode = (grid.ravel() for grid in grids)
    tp, cp, pp, micro_batch = ints(shapes).reshape(-1, 4)[place].T
    free = {"tp": tp, "cp": cp, "pp": pp, "experts": experts, "vpp": vpp}
    free |= {"micro_batch": micro_batch, "sharding": sharding, "mode": mode}
    return complete(space, free)


def _lean_codes(space: Space) -> tuple[Ints, Ints]:
    """Values of sharding and mode that can be the leanest: fewer ranks to shard over, or weights
    that are kept, never need less, and memory does not depend on the kind of context parallelism.
    """
    fix, sharding = space.question.fix, ints(space.values["sharding"])
    spread = choices.sharding(sharding)
    held = {*fix, *(limit.axis for limit in space.question.limits)}
    if "shard_degree" not in held:
        sharding = sharding[spread.degree == 0]
    modes = ints(space.values["mode"])
    kinds = choices.mode(modes).cp_kind
    if RING in kinds and CP_KINDS[RING] in space.job.software.cp_kinds:
        modes = modes[kinds == RING]
    return sharding, modes


def something_fits(question: Question) -> bool:
    """Whether any layout of the question is legal and fits in memory."""
    seen = leanest(space_of(question))
    return seen is not None and seen.over_kib == 0


def fastest(question: Question) -> Estimate | None:
    """The best layout of a question, deadline and budget ignored; None where nothing fits."""
    space = space_of(question)
    if not something_fits(question):
        return None
    tables = tables_of(space)
    survey = Survey(space, floors_of(space, tables), Clock(space.job, tables))
    found = survey.fitting(1).layouts
    return estimate(space.job, layout_of(space.question, found[0].chosen)) if found else None


def _priced(option: str, value: str, question: Question) -> Iterator[Change]:
    best = fastest(question)
    if best is not None:
        yield Change(option, value, best.step.time_s)


def freed(question: Question, enough: Callable[[Estimate], bool]) -> list[Change]:
    """What was fixed or limited left to the search: one axis, or all where one is not enough.

    Of all, those are named that come out otherwise than they were fixed.
    """
    asked = list(dict.fromkeys([*question.fix, *(limit.axis for limit in question.limits)]))
    found = []
    for axis in asked:
        best = fastest(_without(question, {axis}))
        if best is not None and enough(best):
            found.append(Change(axis, str(getattr(best.layout, axis)), best.step.time_s))
    if not found and len(asked) > 1:
        best = fastest(_without(question, set(asked)))
        if best is not None and enough(best):
            now = {axis: getattr(best.layout, axis) for axis in asked}
            words = [f"{axis}={v}" for axis, v in now.items() if question.fix.get(axis) != v]
            found.append(Change("fix", ",".join(words), best.step.time_s))
    return found


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


def fewer_gpus(question: Question, enough: Callable[[Estimate], bool]) -> Iterator[Change]:
    """The most of a half, a quarter or an eighth of the GPUs with which the run costs less."""
    for power in range(1, 4):
        if question.job.gpus % (1 << power):
            return
        count = question.job.gpus >> power
        best = fastest(replace(question, job=replace(question.job, gpus=count)))
        if best is not None and enough(best):
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
