"""The time of one optimizer step: the terms of `terms.py`, added up for given layouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import sharding, terms
from layoutopt.costmodel.axes import Array, Axes, Flags, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.pipeline import bubble_scale, overlap_window, pipeline_seconds
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


def exposed(wire: Array, window: Array, share: float) -> Array:
    """Seconds of communication that compute does not hide.

    At most ``share`` of it can hide, and no more than the window (A4):
    max((1 - share) w, w - window).
    """
    left: Array = np.maximum((1 - share) * wire, wire - window)
    return left


def jitter(job: Job) -> float:
    """Relative time that stragglers and jitter add on the job's GPUs (A8)."""
    return machine(job).reach.jitter * float(np.log2(max(1.0, job.gpus / 8)))


def step_parts(job: Job, axes: Axes, stages: Stages) -> StepParts:
    """Where the seconds of one step go, for each layout."""
    layer = terms.layer_terms(
        job,
        axes.tp,
        axes.cp,
        axes.ep,
        axes.micro_batch,
        axes.recompute,
        etp=axes.etp,
        sp=axes.sequence_parallel,
        cp_kind=axes.cp_kind,
    )
    repeated = _repeated_sharding(job, axes, layer)
    ends = _Ends(
        terms.embedding_seconds(job, axes.tp, axes.cp, axes.micro_batch).total,
        terms.head_seconds(job, axes.tp, axes.cp, axes.micro_batch).total,
    )
    message = terms.message_seconds(
        job, axes.tp, axes.cp, axes.pp, axes.micro_batch, sp=axes.sequence_parallel
    )
    chunks = np.where(axes.pp > 1, axes.vpp, 1)
    fixed = chunks * message + job.software.microbatch_overhead_s
    layer_total = layer.total + repeated
    stage = _stage_seconds(stages, layer_total, ends)
    worst = np.argmax(stage, axis=-1)
    slowest = np.max(stage, axis=-1) + fixed
    everything = job.model.layers * layer_total + ends.embedding + ends.head + axes.pp * fixed
    piped = pipeline_seconds(slowest, everything, axes.pp, axes.vpp, axes.microbatches)
    bubble = (piped - axes.microbatches * slowest) * bubble_scale(axes.schedule)

    def at_worst(values: Ints | Flags) -> Array:
        rows = np.broadcast_to(values, stage.shape)
        picked = np.take_along_axis(rows, worst[..., None], -1)[..., 0]
        count: Array = axes.microbatches * picked.astype(float)
        return count

    layers = at_worst(stages.layers)
    end_work = at_worst(stages.first) * ends.embedding + at_worst(stages.last) * ends.head
    sync, optimizer = _once_a_step(job, axes, stages, layer)
    parts = {
        "compute": layers * layer.compute.total + end_work,
        "recompute": layers * layer.recompute,
        "tp_comm": layers * layer.tp_comm.total,
        "cp_comm": layers * layer.cp_comm.total,
        "ep_comm": layers * layer.ep_comm.total,
        "pp_comm": axes.microbatches * chunks * message,
        "pipeline_bubble": bubble,
        "dp_comm": layers * repeated + sync,
        "optimizer": optimizer,
    }
    shape = np.broadcast(*parts.values()).shape
    parts = {name: np.broadcast_to(value, shape) for name, value in parts.items()}
    host = axes.microbatches * job.software.microbatch_overhead_s + job.software.step_overhead_s
    known = np.sum(np.stack(list(parts.values())), axis=0) + host
    parts["other"] = host + jitter(job) * known
    return StepParts(parts)


@dataclass(frozen=True)
class _Ends:
    embedding: Array
    head: Array


def _stage_seconds(stages: Stages, layer: Array, ends: _Ends) -> Array:
    """One microbatch on each listed stage, shape (layouts, stages): its layers and its ends."""
    seconds: Array = (
        stages.layers * layer[..., None]
        + np.where(stages.first, ends.embedding[..., None], 0.0)
        + np.where(stages.last, ends.head[..., None], 0.0)
    )
    return seconds


def _repeated_sharding(job: Job, axes: Axes, layer: terms.LayerTerms) -> Array:
    """Exposed ZeRO-2/3 traffic of one layer and microbatch."""
    wire = sharding.gather_seconds(
        job,
        axes.tp,
        axes.pp,
        axes.zero_stage,
        shard=axes.shard_degree,
        reshard=axes.reshard,
        ep=axes.ep,
        etp=axes.etp,
    )
    share = job.software.overlap_fsdp
    return exposed(wire.forward, layer.forward, share) + exposed(
        wire.backward, layer.backward, share
    )


def _once_a_step(
    job: Job, axes: Axes, stages: Stages, layer: terms.LayerTerms
) -> tuple[Array, Array]:
    """Exposed data-parallel traffic and the optimizer step, on the first stage.

    The reduction hides behind the stage's last backward passes, the gather behind its first
    forward passes: the first stage ends its backward last, with nothing to wait for (A3).
    """
    first_layers = stages.layers[..., 0]
    sync = sharding.sync_seconds(
        job,
        axes.tp,
        axes.pp,
        axes.zero_stage,
        first_layers,
        shard=axes.shard_degree,
        group=axes.group,
        ep=axes.ep,
        etp=axes.etp,
    )
    software = job.software
    passes = first_layers * overlap_window(axes.pp, axes.vpp)
    seconds = exposed(sync.reduce, passes * layer.backward, software.overlap_grad_reduce)
    seconds = seconds + exposed(sync.gather, passes * layer.forward, software.overlap_param_gather)
    seconds = seconds + sharding.tied_embedding_seconds(job, axes.tp, axes.pp)
    optimizer = sharding.optimizer_seconds(
        job,
        axes.tp,
        axes.pp,
        axes.zero_stage,
        first_layers,
        shard=axes.shard_degree,
        ep=axes.ep,
        etp=axes.etp,
    )
    return seconds, optimizer
