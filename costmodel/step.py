"""The time of one optimizer step: the terms of `terms.py`, added up for given layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import terms
from layoutopt.costmodel.axes import GPIPE, ONE_F_ONE_B, Array, Axes, Flags, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.once import once_a_step
from layoutopt.costmodel.pipeline import (
    Passes,
    Work,
    late_messages,
    one_f_one_b_seconds,
    pipeline_seconds,
    zero_bubble_seconds,
)
from layoutopt.costmodel.stage_work import (
    Ends,
    LayerKind,
    Mixed,
    end_seconds,
    message_seconds,
    mixed_layers,
    stage_seconds,
    sum_of,
)
from layoutopt.costmodel.stages import Stages


@dataclass(frozen=True)
class StepParts:
    """Seconds by part, one entry per layout; keys are results.BREAKDOWN, and they add up."""

    parts: dict[str, Array]

    @property
    def total(self) -> Array:
        """The step time."""
        total: Array = np.sum(np.stack(list(self.parts.values())), axis=0)
        return total


def jitter(job: Job) -> float:
    """Relative time that stragglers and jitter add on the job's GPUs (A8)."""
    return machine(job).reach.jitter * float(np.log2(max(1.0, job.gpus / 8)))


def step_parts(job: Job, axes: Axes, stages: Stages) -> StepParts:
    """Where the seconds of one step go, for each layout."""
    mixed = mixed_layers(job, axes, stages)
    ends = end_seconds(job, axes)
    message = message_seconds(job, axes)
    stage = stage_seconds(mixed, stages, ends)
    worst = np.argmax(stage, axis=-1)
    bubble = bubble_seconds(job, axes, stages, mixed, ends)

    def at_worst(values: Array | Ints | Flags) -> Array:
        rows = np.broadcast_to(values, stage.shape)
        picked = np.take_along_axis(rows, worst[..., None], -1)[..., 0]
        count: Array = axes.microbatches * picked.astype(float)
        return count

    def layers(seconds: Callable[[LayerKind], Array]) -> Array:
        return sum_of(at_worst(count) * seconds(kind) for kind, count in mixed.priced())

    first, last = at_worst(stages.first), at_worst(stages.last)
    sync, optimizer = once_a_step(job, axes, stages, mixed)
    parts = {
        "compute": layers(lambda kind: kind.terms.compute.total)
        + first * ends.parts[0].compute.total
        + last * ends.parts[1].compute.total,
        "recompute": layers(lambda kind: kind.terms.recompute),
        "tp_comm": layers(lambda kind: kind.terms.tp_comm.total)
        + first * ends.parts[0].tp_comm.total
        + last * ends.parts[1].tp_comm.total,
        "cp_comm": layers(lambda kind: kind.terms.cp_comm.total),
        "ep_comm": layers(lambda kind: kind.terms.ep_comm.total),
        "offload": layers(lambda kind: kind.terms.offload.total),
        "pp_comm": axes.microbatches * message + late_seconds(job, axes),
        "pipeline_bubble": bubble,
        "dp_comm": layers(lambda kind: kind.repeated) + sync,
        "optimizer": optimizer,
    }
    shape = np.broadcast(*parts.values()).shape
    parts = {name: np.broadcast_to(value, shape) for name, value in parts.items()}
    host = axes.microbatches * job.software.microbatch_overhead_s + job.software.step_overhead_s
    known = np.sum(np.stack(list(parts.values())), axis=0) + host
    parts["other"] = host + jitter(job) * known
    return StepParts(parts)


def bubble_seconds(job: Job, axes: Axes, stages: Stages, mixed: Mixed, ends: Ends) -> Array:
    """What the slowest stage waits for while the pipeline fills and drains."""
    m, schedule = axes.microbatches, axes.schedule
    fixed = (message_seconds(job, axes) + job.software.microbatch_overhead_s)[..., None]
    stage = stage_seconds(mixed, stages, ends) + fixed
    slowest = np.max(stage, axis=-1)
    everything = mixed.all_stages(lambda kind: kind.total) + ends.embedding + ends.head
    everything = everything + axes.pp * fixed[..., 0]
    waits = pipeline_seconds(slowest, everything, axes.pp, axes.interleaved, m) - m * slowest
    plain = (schedule == ONE_F_ONE_B) & ((axes.interleaved == 1) | (axes.pp == 1))
    if plain.any():
        work = Work(
            stage=stage,
            forward=mixed.stage(lambda kind: kind.terms.forward),
            before=_before(stages, stage, mixed, ends, fixed),
            place=stages.index if stages.run_end is None else stages.run_end,
            everything=everything,
        )
        waits = np.where(plain, one_f_one_b_seconds(work, axes.pp, m) - m * slowest, waits)
    split = (schedule != ONE_F_ONE_B) & (schedule != GPIPE)
    if split.any():
        passes = mean_passes(axes, mixed, ends, fixed[..., 0])
        waits = np.where(split, zero_bubble_seconds(passes, schedule, axes.pp, m), waits)
    bubble: Array = np.where(axes.pp > 1, waits, 0.0)
    return bubble


def _before(stages: Stages, stage: Array, mixed: Mixed, ends: Ends, fixed: Array) -> Array:
    """Seconds of one microbatch on all stages before each listed one."""
    if stages.run_end is None or stages.ahead is None:
        before: Array = np.cumsum(stage, axis=-1) - stage
        return before
    layers = stages.ahead * mixed.kinds[0].total[..., None]
    embedding = np.where(stages.run_end > 0, ends.embedding[..., None], 0.0)
    ahead: Array = layers + embedding + stages.run_end * fixed
    return ahead


def mean_passes(axes: Axes, mixed: Mixed, ends: Ends, fixed: Array) -> Passes:
    """The mean stage's passes; messages and host half with the forward pass and half with the
    input gradient."""
    forward = mixed.all_stages(lambda kind: kind.terms.forward) + ends.forward
    weights = mixed.all_stages(lambda kind: kind.terms.weight) + ends.weight
    both = mixed.all_stages(lambda kind: kind.total) + ends.embedding + ends.head
    return Passes(
        forward / axes.pp + fixed / 2,
        (both - forward - weights) / axes.pp + fixed / 2,
        weights / axes.pp,
    )


def late_seconds(job: Job, axes: Axes) -> Array:
    """Messages that could hide and have nothing to hide behind."""
    travel = terms.travel_seconds(
        job, axes.tp, axes.cp, axes.pp, axes.micro_batch, sp=axes.sequence_parallel
    )
    late = late_messages(axes.schedule, axes.pp, axes.interleaved)
    seconds: Array = late * travel
    return seconds
