"""Peak bytes on one GPU of a stage, in whole KiB.

Integer arithmetic, each part rounded up to a KiB: the search, its judges and `estimate` decide
what fits by the same numbers, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel import sharding
from layoutopt.costmodel.activations import activation_kib, logits_kib, to_kib, working_kib
from layoutopt.costmodel.adapters import FROZEN_BYTES
from layoutopt.costmodel.axes import NONE, Array, Axes, Flags, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory_fit import memory_fit
from layoutopt.costmodel.offload import PARKED_LAYERS
from layoutopt.costmodel.pipeline import layers_in_flight, recomputed_in_flight
from layoutopt.costmodel.stages import Stages
from layoutopt.units import KIB


def usable_bytes(job: Job) -> int:
    """Bytes that an allocator may reserve on the job's GPU."""
    return job.cluster.gpu.memory_bytes - memory_fit(job).context_bytes


def reserve_kib(job: Job, allocated_kib: Ints) -> Ints:
    """What the allocator holds beyond ``allocated_kib``, rounded up."""
    fit = memory_fit(job)
    cached = fit.old_reserve_per_mille if job.software.old_allocator else fit.reserve_per_mille
    usable = np.asarray(usable_bytes(job) // KIB)
    return allocator_reserve(allocated_kib, usable, cached, fit.fragmented_per_mille)


def allocator_reserve(
    allocated_kib: Ints, usable_kib: Ints, cached: Ints | int, fragmented: int
) -> Ints:
    """The allocator caches ``cached`` per mille of what was freed as long as there is room, and
    gives it back before it fails, down to ``fragmented`` per mille."""
    most = np.minimum(_per_mille(allocated_kib, cached), usable_kib - allocated_kib)
    held: Ints = np.maximum(_per_mille(allocated_kib, fragmented), most)
    return held


def _per_mille(kib: Ints, share: Ints | int) -> Ints:
    return -(-kib * share // 1000)


def largest_allocation_kib(job: Job) -> int:
    """The most KiB that may be allocated: with its reserve it just fits."""
    usable = usable_bytes(job) // KIB
    return usable * 1000 // (1000 + memory_fit(job).fragmented_per_mille)


@dataclass(frozen=True)
class State:
    """Model state on one GPU of a stage, KiB."""

    weights: Ints
    gradients: Ints
    optimizer: Ints
    buffers: Ints
    step: Ints
    """What the optimizer step needs beside all of that, while no activation is held."""
    host: Ints
    """Optimizer state in host memory."""

    @property
    def total(self) -> Ints:
        """All of it but what the step alone needs."""
        return self.weights + self.gradients + self.optimizer + self.buffers


@dataclass(frozen=True)
class _Weights:
    """Parameters on one GPU: what data parallelism replicates, and routed experts."""

    dense: Array
    experts: Array


def _held_weights(
    job: Job, tp: Ints, layers: Ints, first: Flags, last: Flags, ep: Ints | int, etp: Ints | int
) -> tuple[_Weights, _Weights | None]:
    """What a stage trains, and what it holds frozen beside it."""
    dense = sharding.stage_parameters(job, tp, layers, first, last)
    experts: Array = np.zeros(1)
    if job.model.moe is not None:
        experts = sharding.expert_parameters(job, layers, np.asarray(ep), etp)
    if job.model.mtp_layers:
        more, more_experts = sharding.prediction_parameters(job, tp, ep, etp)
        dense = dense + np.where(last, more, 0.0)
        experts = experts + np.where(last, more_experts, 0.0)
    held = _Weights(dense, experts)
    if not job.training.lora:
        return held, None
    adapters = _Weights(
        sharding.trained_parameters(job, tp, layers, first, last),
        sharding.trained_experts(job, layers, np.asarray(ep), etp),
    )
    return adapters, held


def state_kib(
    job: Job,
    tp: Ints,
    pp: Ints,
    zero_stage: Ints,
    layers: Ints,
    first: Flags,
    last: Flags,
    *,
    shard: Ints | None = None,
    reshard: Flags | bool = True,
    ep: Ints | int = 1,
    etp: Ints | int = 1,
    offload: Flags | bool = False,
) -> State:
    """Weights, gradients, optimizer state and sharding buffers: axes (tp, pp, zero_stage).

    Where adapters alone are trained, the model's own weights are held in 16 bit and have neither
    gradients nor optimizer state.

    ZeRO divides the optimizer state from stage 1, gradients from 2, weights from 3, over the
    data-parallel ranks (Rajbhandari 2019, figure 1). Expert weights are divided over their own
    replicas, gpus / (ep * etp * pp). ``offload`` moves the optimizer's state to the host.
    """
    software, z = job.software, np.asarray(zero_stage)
    size = job.gpus // (np.asarray(tp) * pp) if shard is None else shard
    replicas: Ints = np.ones(1, dtype=np.int64)
    if job.model.moe is not None:
        replicas = sharding.expert_shard(job, tp, pp, ep, etp, shard)
    trained, frozen = _held_weights(job, np.asarray(tp), layers, first, last, ep, etp)

    def spread(weights: _Weights, bytes_each: int, sharded: Flags) -> Array:
        whole = weights.dense / np.where(sharded, size, 1)
        return bytes_each * (whole + weights.experts / np.where(sharded, replicas, 1))

    def held(bytes_each: int, from_stage: int) -> Ints:
        if not bytes_each:
            return np.zeros((1, 1), dtype=np.int64)
        return to_kib(spread(trained, bytes_each, z >= from_stage))

    each = gradient_bytes(job)
    gradients = held(each, 2)
    if software.keeps_whole_gradients:
        gradients = np.where(np.asarray(pp) > 1, held(each, 4), gradients)
    weights = held(software.weight_bytes, 3)
    if frozen is not None:
        weights = weights + to_kib(spread(frozen, FROZEN_BYTES, z >= 3))
    return State(
        weights=weights,
        gradients=gradients,
        optimizer=np.where(offload, 0, held(software.optimizer_bytes, 1)),
        step=np.where(offload, 0, held(software.step_bytes, 1)),
        host=np.where(offload, held(software.optimizer_bytes, 1), 0),
        buffers=_sharding_buffers(job, tp, z, layers, first, last, size, reshard, ep, etp),
    )


def gradient_bytes(job: Job) -> int:
    """Bytes that a stage holds for each gradient."""
    software = job.software
    if job.training.precision == "fp16" and software.fp16_gradient_bytes is not None:
        return software.fp16_gradient_bytes
    return software.gradient_bytes + software.gradient_copy_bytes


def _sharding_buffers(
    job: Job,
    tp: Ints,
    zero_stage: Ints,
    layers: Ints,
    first: Flags,
    last: Flags,
    size: Ints,
    reshard: Flags | bool,
    ep: Ints | int,
    etp: Ints | int,
) -> Ints:
    """Unsharded layers in hand: two gathered (one computing, one prefetched), one being reduced.

    ZeRO-3 holds two layers' 16-bit weights (all of the stage's where they are kept between forward
    and backward pass) and the ends' (embedding and head belong to the root group, Zhao 2023,
    section 3.3), and, as ZeRO-2, one layer's gradients before they are scattered. One rank alone
    gathers nothing, but fp32 weights are cast to 16 bit all the same.
    """
    one = np.minimum(layers, 1)
    no = np.asarray(False)
    layer = sharding.held_parameters(job, tp, one, no, no)
    reduced = sharding.trained_parameters(job, tp, one, no, no)
    if job.model.moe is not None:
        layer = layer + sharding.held_experts(job, one, np.asarray(ep), etp)
        reduced = reduced + sharding.trained_experts(job, one, np.asarray(ep), etp)
    ends = sharding.stage_parameters(job, tp, 0, first, last)
    in_hand = np.where(reshard, np.minimum(layers, 2), layers)
    gathered = 2.0 * (in_hand * layer + ends)
    reducing = job.software.gradient_bytes * np.maximum(
        reduced, sharding.trained_parameters(job, tp, 0, first, last)
    )
    cast = job.software.weight_bytes > 2 and not job.training.lora
    copied = (zero_stage == 3) & ((size > 1) | cast)
    scattered = (zero_stage >= 2) & (size > 1)
    whole = np.where(copied, gathered, 0.0) + np.where(scattered, reducing, 0.0)
    fixed: Array | float = memory_fit(job).workspace_bytes
    if job.software.bucket_bytes:
        fixed = fixed + np.where((zero_stage >= 1) & (size > 1), job.software.bucket_bytes, 0)
    return to_kib(whole + fixed)


@dataclass(frozen=True)
class StageBytes:
    """KiB by part for each layout and listed stage, shape (layouts, stages)."""

    state: State
    activations: Ints
    logits: Ints
    at_step: Flags
    """Whether the worst moment is the optimizer step."""
    host: Ints
    """KiB in host memory."""

    @property
    def allocated(self) -> Ints:
        """KiB that tensors hold at the stage's worst moment."""
        return self.state.total + self.activations + self.logits


def stage_bytes(job: Job, axes: Axes, stages: Stages) -> StageBytes:
    """Peak KiB of every listed stage.

    The peak is in a layer's backward pass; or, on the last stage, at the loss, where the logits
    stand instead of a layer's gradients; or in the optimizer step, when no activation is held.
    """

    state = stage_state(job, axes, stages)
    saved, working = _layers_held(job, axes, stages)
    logits = logits_kib(job, axes.tp, axes.cp, axes.micro_batch)[..., None]
    beside = working if job.software.keeps_logits else np.zeros_like(working)
    at_loss = stages.last & (logits + beside > working)
    least = np.where(at_loss, beside, working)
    away = np.asarray(axes.offload_activations)[..., None]
    activations = np.where(away, 0, saved.total)
    least = least + np.where(away, PARKED_LAYERS * saved.largest, 0)
    at_step = state.step > activations + least + np.where(at_loss, logits, 0)
    return StageBytes(
        state=replace(state, buffers=state.buffers + np.where(at_step, state.step, 0)),
        activations=np.where(at_step, 0, activations + least),
        logits=np.where(at_loss & ~at_step, logits, 0),
        at_step=at_step,
        host=state.host + np.where(away, saved.total, 0),
    )


def stage_state(job: Job, axes: Axes, stages: Stages) -> State:
    """Model state of every listed stage."""

    def wide(values: Ints) -> Ints:
        return np.asarray(values)[..., None]

    return state_kib(
        job,
        wide(axes.tp),
        wide(axes.pp),
        wide(axes.zero_stage),
        stages.layers,
        stages.first,
        stages.last,
        shard=wide(axes.shard_degree),
        reshard=axes.reshard[..., None],
        ep=wide(axes.ep),
        etp=wide(axes.etp),
        offload=np.asarray(axes.offload_optimizer)[..., None],
    )


def layer_kib(job: Job, axes: Axes) -> tuple[Ints, Ints]:
    """One layer of each layout: saved activations of a microbatch, and what its backward pass
    needs beside them."""
    layer_axes = (axes.tp, axes.cp, axes.ep, axes.micro_batch, axes.recompute)
    etp, sp = axes.etp, axes.sequence_parallel
    saved = activation_kib(job, *layer_axes, etp=etp, sp=sp)
    return saved, working_kib(job, *layer_axes, etp=etp, sp=sp)


@dataclass(frozen=True)
class _Saved:
    """KiB of activations that the layers in flight on each stage save, and of the largest one."""

    total: Ints
    largest: Ints


def _layers_held(job: Job, axes: Axes, stages: Stages) -> tuple[_Saved, Ints]:
    """Saved activations of each stage and what one layer's backward pass needs beside them.

    Where only some layers of a stage recompute, the worse of both kinds sets the latter.
    """
    how = (axes.pp, axes.interleaved, axes.microbatches, axes.schedule)
    saved, working = (part[..., None] for part in layer_kib(job, axes))
    if stages.recomputed is None:
        return _Saved(layers_in_flight(stages, *how) * saved, saved), working
    plain = replace(axes, recompute=np.full_like(axes.recompute, NONE))
    saved_whole, working_whole = (part[..., None] for part in layer_kib(job, plain))
    again, kept = recomputed_in_flight(stages, *how)
    worse = np.maximum(
        np.where(stages.recomputed > 0, working, 0),
        np.where(stages.recomputed < stages.layers, working_whole, 0),
    )
    return _Saved(again * saved + kept * saved_whole, np.maximum(saved, saved_whole)), worse
