"""The time of one optimizer step: the terms of `terms.py`, added up for given layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from layoutopt.costmodel import sharding, terms
from layoutopt.costmodel.activations import activation_kib
from layoutopt.costmodel.axes import NONE, Array, Axes, Flags, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.offload import offloaded
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


@dataclass(frozen=True)
class LayerKind:
    """Layers that are run alike: one of them and one microbatch, and the ZeRO-2/3 traffic that its
    passes do not hide."""

    terms: terms.LayerTerms
    repeated: Array

    @property
    def total(self) -> Array:
        """Seconds of one layer and microbatch."""
        total: Array = self.terms.total + self.repeated
        return total


def layer_kind(job: Job, axes: Axes, recompute: Ints) -> LayerKind:
    """One average layer of each layout that recomputes by the code ``recompute``."""
    layer = terms.layer_terms(
        job,
        axes.tp,
        axes.cp,
        axes.ep,
        axes.micro_batch,
        recompute,
        etp=axes.etp,
        sp=axes.sequence_parallel,
        cp_kind=axes.cp_kind,
    )
    if np.any(axes.offload_activations):
        saved = activation_kib(
            job,
            axes.tp,
            axes.cp,
            axes.ep,
            axes.micro_batch,
            recompute,
            etp=axes.etp,
            sp=axes.sequence_parallel,
        )
        layer = offloaded(job, layer, saved, axes.offload_activations)
    return LayerKind(layer, _repeated_sharding(job, axes, layer))


@dataclass(frozen=True)
class Mixed:
    """How many layers of each listed stage are of which kind."""

    kinds: tuple[LayerKind, ...]
    counts: tuple[Ints, ...]
    """One for each kind, shape (layouts, stages)."""
    totals: tuple[Ints | int, ...]
    """The same over all stages."""
    predicting: Ints
    """Multi-token-prediction blocks, where the loss head stands: layers of the first kind. Shape
    (layouts, stages)."""
    blocks: int
    """The same over all stages."""

    def stage(self, seconds: Callable[[LayerKind], Array]) -> Array:
        """Sum over the layers of each stage, shape (layouts, stages)."""
        return sum_of(count * np.asarray(seconds(kind))[..., None] for kind, count in self.priced())

    def all_stages(self, seconds: Callable[[LayerKind], Array]) -> Array:
        """Sum over all layers."""
        found = sum_of(
            total * seconds(kind) for kind, total in zip(self.kinds, self.totals, strict=True)
        )
        return found + self.blocks * seconds(self.kinds[0]) if self.blocks else found

    def priced(self) -> list[tuple[LayerKind, Ints]]:
        """Kinds with their layers on each stage, prediction blocks among them."""
        pairs = list(zip(self.kinds, self.counts, strict=True))
        return [*pairs, (self.kinds[0], self.predicting)] if self.blocks else pairs


def sum_of(values: Iterable[Array]) -> Array:
    """Their sum, from left to right."""
    return reduce(np.add, values)


def mixed_layers(job: Job, axes: Axes, stages: Stages) -> Mixed:
    """All layers alike, or the first of each stage recomputing and the rest keeping everything."""
    told = layer_kind(job, axes, axes.recompute)
    blocks = job.model.mtp_layers
    predicting = blocks * stages.last.astype(np.int64)
    if stages.recomputed is None:
        return Mixed((told,), (stages.layers,), (job.model.layers,), predicting, blocks)
    kept = layer_kind(job, axes, np.full_like(axes.recompute, NONE))
    again = np.sum(stages.recomputed, axis=-1)
    counts = (stages.recomputed, stages.layers - stages.recomputed)
    totals = (again, job.model.layers - again)
    return Mixed((told, kept), counts, totals, predicting, blocks)


def step_parts(job: Job, axes: Axes, stages: Stages) -> StepParts:
    """Where the seconds of one step go, for each layout."""
    mixed = mixed_layers(job, axes, stages)
    ends = end_seconds(job, axes)
    message = message_seconds(job, axes)
    fixed = message + job.software.microbatch_overhead_s
    stage = stage_seconds(mixed, stages, ends)
    worst = np.argmax(stage, axis=-1)
    slowest = np.max(stage, axis=-1) + fixed
    everything = mixed.all_stages(lambda kind: kind.total) + ends.embedding + ends.head
    everything = everything + axes.pp * fixed
    piped = pipeline_seconds(slowest, everything, axes.pp, axes.interleaved, axes.microbatches)
    bubble = (piped - axes.microbatches * slowest) * bubble_scale(
        axes.schedule, axes.pp, axes.microbatches
    )

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
        "pp_comm": axes.microbatches * message,
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


def message_seconds(job: Job, axes: Axes) -> Array:
    """Exposed messages of a microbatch on one stage boundary, over all chunks."""
    message = terms.message_seconds(
        job, axes.tp, axes.cp, axes.pp, axes.micro_batch, sp=axes.sequence_parallel
    )
    return axes.chunks * message


@dataclass(frozen=True)
class Ends:
    """Seconds of one microbatch beside the layers: on the first stage and where the head stands."""

    parts: tuple[terms.EndTerms, terms.EndTerms]
    """Embedding and head."""

    @property
    def embedding(self) -> Array:
        """Kernels and traffic of the embedding."""
        return self.parts[0].total

    @property
    def head(self) -> Array:
        """Kernels and traffic of the loss head."""
        return self.parts[1].total


def end_seconds(job: Job, axes: Axes) -> Ends:
    """Embedding and loss head of each layout."""
    where = (job, axes.tp, axes.cp, axes.micro_batch)
    return Ends((terms.embedding_seconds(*where), terms.head_seconds(*where)))


def stage_seconds(mixed: Mixed, stages: Stages, ends: Ends) -> Array:
    """One microbatch on each listed stage, shape (layouts, stages): its layers and its ends."""
    seconds: Array = (
        mixed.stage(lambda kind: kind.total)
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
        cp=axes.cp,
    )
    share = job.software.overlap_fsdp
    return exposed(wire.forward, layer.forward, share) + exposed(
        wire.backward, layer.backward, share
    )


@dataclass(frozen=True)
class Once:
    """What the first stage does once a step, seconds: traffic on the wire, and the rest."""

    reduce: Array
    gather: Array
    tied: Array
    optimizer: Array

    def least(self, job: Job) -> Array:
        """What no window, however long, hides."""
        software = job.software
        traffic = (1 - software.overlap_grad_reduce) * self.reduce
        traffic = traffic + (1 - software.overlap_param_gather) * self.gather
        return traffic + self.tied + self.optimizer


def first_stage_once(
    job: Job, axes: Axes, layers: Ints, first: Flags | bool = True, last: Flags | bool = False
) -> Once:
    """A stage's share of what comes once a step, with ``layers`` layers on it: the first stage's,
    or what is ``first`` and ``last`` of the pipeline."""
    where = (job, axes.tp, axes.pp, axes.zero_stage, layers)
    shard, ep, etp, head = axes.shard_degree, axes.ep, axes.etp, axes.v_shape | last
    sync = sharding.sync_seconds(
        *where, shard=shard, group=axes.group, ep=ep, etp=etp, first=first, head=head, cp=axes.cp
    )
    return Once(
        sync.reduce,
        sync.gather,
        sharding.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp),
        sharding.optimizer_seconds(
            *where,
            shard=shard,
            ep=ep,
            etp=etp,
            first=first,
            head=head,
            offload=axes.offload_optimizer,
        ),
    )


def once_a_step(job: Job, axes: Axes, stages: Stages, mixed: Mixed) -> tuple[Array, Array]:
    """Exposed data-parallel traffic and the optimizer step, on the first stage.

    The reduction hides behind the stage's last backward passes, the gather behind its first
    forward passes: the first stage ends its backward last, with nothing to wait for (A3).
    """
    seconds, optimizer = held_once(job, axes, stages, mixed)
    return seconds + sharding.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp), optimizer


def held_once(job: Job, axes: Axes, stages: Stages, mixed: Mixed) -> tuple[Array, Array]:
    """The same without the sum of a shared table: what the first listed stage holds costs it."""
    once = first_stage_once(
        job, axes, stages.layers[..., 0], stages.first[..., 0], stages.last[..., 0]
    )
    software, passes = job.software, overlap_window(axes.pp, axes.interleaved)

    def window(way: Callable[[LayerKind], Array]) -> Array:
        return sum_of(
            count[..., 0] * passes * way(kind)
            for kind, count in zip(mixed.kinds, mixed.counts, strict=True)
        )

    backward = window(lambda kind: kind.terms.backward)
    forward = window(lambda kind: kind.terms.forward)
    seconds = exposed(once.reduce, backward, software.overlap_grad_reduce)
    seconds = seconds + exposed(once.gather, forward, software.overlap_param_gather)
    return seconds, once.optimizer
