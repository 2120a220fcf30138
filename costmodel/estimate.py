"""What one layout needs and takes: the only way in for `estimate`, `solve`, `validate`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from layoutopt.costmodel import memory, mixed, step
from layoutopt.costmodel.adapters import active_adapter_parameters
from layoutopt.costmodel.assumptions import cited_for
from layoutopt.costmodel.axes import FULL, SELECTIVE, Axes, Ints, axes_of
from layoutopt.costmodel.checkpoint import checkpoint_cost, run_plan
from layoutopt.costmodel.compute import lists_products
from layoutopt.costmodel.counts import (
    attention_flops_per_token_forward,
    count,
    flops_6nd_per_token,
    matmul_flops_per_token_forward,
    model_flops_per_token,
)
from layoutopt.costmodel.extrapolation import warnings_for
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.offload import largest_host_kib
from layoutopt.costmodel.placement import ordered
from layoutopt.costmodel.results import BREAKDOWN, Estimate, Memory, StageMemory, StepTime
from layoutopt.costmodel.stages import Stages, even_classes, stages_of
from layoutopt.units import KIB, TERA


def estimate(job: Job, layout: Layout) -> Estimate:
    """Memory, step time, checkpoints and run of ``layout``; same arguments, same answer.

    The layout is taken as legal: `rules.broken_rules` says whether it is. What a layout can say
    and no formula reads yet is named in ``warnings`` (A18).
    """
    alone = mixed.whole_pool(job, layout)
    if alone is not None:
        priced = estimate(alone, replace(layout, pools_per_stage=None))
        return replace(priced, layout=layout, memory=memory_of(job, layout))
    job, step_time = _stepped(job, layout)
    size, write_s, stall_s = checkpoint_cost(job, layout.tp, layout.pp, layout.zero_stage)
    checkpoint, run = run_plan(job, step_time.time_s, float(write_s[0]), float(stall_s[0]), size)
    return Estimate(
        layout=layout,
        memory=memory_of(job, layout),
        step=step_time,
        checkpoint=checkpoint,
        run=run,
        warnings=warnings_for(job, layout),
        assumptions=cited_for(job, layout),
    )


def step_of(job: Job, layout: Layout) -> StepTime:
    """The step of `estimate` alone."""
    alone = mixed.whole_pool(job, layout)
    if alone is not None:
        return step_of(alone, replace(layout, pools_per_stage=None))
    return _stepped(job, layout)[1]


def _stepped(job: Job, layout: Layout) -> tuple[Job, StepTime]:
    """The step, and the job with its ranks in the layout's order, all its pools together."""
    if layout.pools_per_stage:
        return mixed.whole_job(job, layout), _mixed_step_time(job, layout)
    job = ordered(job, layout.axis_order)
    axes, stages = _one(job, layout)
    return job, _step_time(job, axes, stages)


def _one(job: Job, layout: Layout) -> tuple[Axes, Stages]:
    return axes_of([layout]), stages_of(layout, job.model.layers)


def step_seconds(job: Job, axes: Axes) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Step time of each layout of ``axes``, layers split as evenly as they go."""
    return step.step_parts(job, axes, _even(job, axes)).total


def _even(job: Job, axes: Axes) -> Stages:
    return even_classes(job.model.layers, axes.pp, axes.v_shape, axes.microbatches)


def allocated_kib(job: Job, axes: Axes) -> Ints:
    """Allocated KiB on the worst stage of each layout of ``axes``, even split.

    A layout fits where this is at most `memory.largest_allocation_kib`.
    """
    parts = memory.stage_bytes(job, axes, _even(job, axes))
    allocated: Ints = np.max(parts.allocated, axis=-1)
    return allocated


def over_kib(job: Job, axes: Axes) -> Ints:
    """KiB by which the worst stage of each layout of ``axes`` passes what may be allocated on the
    device, or what offload may fill of the host, whichever is more; 0 where it fits."""
    parts = memory.stage_bytes(job, axes, _even(job, axes))
    over: Ints = np.max(parts.allocated, axis=-1) - memory.largest_allocation_kib(job)
    if np.any(axes.offload_optimizer) or np.any(axes.offload_activations):
        over = np.maximum(over, np.max(parts.host, axis=-1) - largest_host_kib(job))
    return np.maximum(over, 0)


def _step_time(job: Job, axes: Axes, stages: Stages) -> StepTime:
    parts = step.step_parts(job, axes, stages).parts
    seconds = {name: float(parts[name][0]) for name in BREAKDOWN}
    share = 1.0
    if stages.recomputed is not None:
        share = float(np.sum(stages.recomputed)) / job.model.layers
    peak = job.cluster.gpu.peak(job.training.precision) * job.gpus
    return _rates(
        job, seconds, share * _repeated_flops_per_token(job, int(axes.recompute[0])), peak
    )


def _mixed_step_time(job: Job, layout: Layout) -> StepTime:
    again = _repeated_flops_per_token(job, RECOMPUTE.index(layout.recompute))
    whole = mixed.whole_job(job, layout)
    return _rates(whole, mixed.step_breakdown(job, layout), again, mixed.peak_flops(job, layout))


def _rates(job: Job, seconds: dict[str, float], again_a_token: float, peak_s: float) -> StepTime:
    """The step with its rates; ``peak_s`` is the FLOP/s of all GPUs at their peak."""
    time_s = sum(seconds.values())
    training = job.training
    positions, needed = training.tokens_per_step, needed_flops_per_token(job)
    tokens = positions * training.filled_share
    useful = needed * tokens
    plain = flops_6nd_per_token(job.model) * tokens
    hardware = needed * positions + again_a_token * positions
    peak = peak_s * time_s
    return StepTime(
        time_s=time_s,
        breakdown_s=seconds,
        model_flops=useful,
        model_flops_6nd=plain,
        hardware_flops=hardware,
        tokens_per_s_per_gpu=tokens / time_s / job.gpus,
        tflops_per_gpu=useful / time_s / job.gpus / TERA,
        mfu=useful / peak,
        mfu_6nd=plain / peak,
        hfu=hardware / peak,
    )


def needed_flops_per_token(job: Job) -> float:
    """FLOPs of one trained token, recompute not counted: (6 * active parameters + 3 * causal
    attention).

    With adapters 4 * active: frozen weights have no weight gradients; and 6 * the adapters' own.
    """
    model, training = job.model, job.training
    whole = model_flops_per_token(model, training.seq_len, training.documents)
    if training.lora is None:
        return whole
    return whole - 2 * count(model).active + 6 * active_adapter_parameters(job)


def _repeated_flops_per_token(job: Job, recompute: int) -> float:
    """FLOPs that recomputation adds to a token: what HFU counts beside MFU.

    full: the forward pass, a third of the model FLOPs (8ND, Narayanan 2021, section 5.1).
    selective: attention's core, or every second product of a layer where the scope is per operator.
    """
    model, seq = job.model, job.training.seq_len
    if recompute == FULL:
        return model_flops_per_token(model, seq, job.training.documents) / 3
    if recompute != SELECTIVE:
        return 0.0
    if job.software.selective_scope == "per_op":
        layers = matmul_flops_per_token_forward(model) - 2 * model.vocab * model.hidden
        return layers / 2 if lists_products(job) else layers
    return attention_flops_per_token_forward(model, seq, job.training.documents)


def memory_of(job: Job, layout: Layout) -> Memory:
    """Peak bytes of every stage of ``layout``, by part."""
    return _memory_of_pools(job, layout) if layout.pools_per_stage else _memory_of(job, layout)


def _memory_of_pools(job: Job, layout: Layout) -> Memory:
    """Each stage as on its own pool; capacity is that of the fullest stage's GPU."""
    jobs, plain = mixed.pool_jobs(job), replace(layout, pools_per_stage=None)
    if mixed.whole_pool(job, layout) is not None:
        name = (layout.pools_per_stage or ())[0]
        told = _memory_of(jobs[name], plain)
        usable = told.usable_bytes
        named = (replace(one, pool=name, usable_bytes=usable) for one in told.stages)
        return replace(told, stages=tuple(named))
    pools = {name: _memory_of(jobs[name], plain) for name in mixed.stages_on(layout)}
    stages = tuple(
        replace(pools[name].stages[n], pool=name, usable_bytes=pools[name].usable_bytes)
        for n, name in enumerate(layout.pools_per_stage or ())
    )
    most = {name: memory.largest_allocation_kib(jobs[name]) * KIB for name in pools}
    fits = all(one.allocated <= most[one.pool or ""] for one in stages)
    whole = Memory(capacity_bytes=0, usable_bytes=0, stages=stages, fits=fits)
    fullest = pools[whole.worst.pool or ""]
    return replace(whole, capacity_bytes=fullest.capacity_bytes, usable_bytes=fullest.usable_bytes)


def _memory_of(job: Job, layout: Layout) -> Memory:
    axes, stages = _one(job, layout)
    parts = memory.stage_bytes(job, axes, stages)
    reserve = memory.reserve_kib(job, parts.allocated)

    def row(values: Ints) -> list[int]:
        return [int(v) * KIB for v in np.broadcast_to(values, stages.layers.shape)[0]]

    names = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "reserve")
    state = parts.state
    values = (
        state.weights,
        state.gradients,
        state.optimizer,
        parts.activations,
        parts.logits,
        state.buffers,
        reserve,
    )
    columns: dict[str, Any] = dict(zip(names, map(row, values), strict=True))
    layers = stages.layers[0].tolist()
    at_step = np.broadcast_to(parts.at_step, stages.layers.shape)[0]
    listed = tuple(
        StageMemory(
            stage=stage,
            layers=layers[stage],
            **{name: column[stage] for name, column in columns.items()},
            peak_moment=_moment(layout, stage, columns["logits"][stage], bool(at_step[stage])),
        )
        for stage in range(len(layers))
    )
    largest, host = memory.largest_allocation_kib(job), max(row(parts.host))
    most_host = largest_host_kib(job) * KIB if host else 0
    return Memory(
        capacity_bytes=job.cluster.gpu.memory_bytes,
        usable_bytes=memory.usable_bytes(job),
        stages=listed,
        fits=bool(np.all(parts.allocated <= largest)) and host <= most_host,
        host_bytes=host,
        host_usable_bytes=most_host,
    )


def _moment(layout: Layout, stage: int, logits: int, at_step: bool) -> str:
    if at_step:
        return "optimizer step"
    if logits:
        return "loss of microbatch 1"
    held, unit = min(layout.pp - stage, layout.microbatches), ""
    if layout.schedule == "gpipe":
        held = layout.microbatches
    elif layout.schedule == "zb-h1":
        held = min(layout.pp, layout.microbatches)
    elif layout.schedule == "zb-2p" and layout.pp > 1:
        held = min(2 * layout.pp, layout.microbatches)
    elif layout.schedule == "zbv" and layout.pp > 1:
        both = (2 * layout.pp - stage - 1, stage + 1)
        held, unit = sum(min(most, layout.microbatches) for most in both), " chunks"
    elif layout.vpp > 1 and layout.pp > 1:
        warm = 2 * (layout.pp - stage - 1) + (layout.vpp - 1) * layout.pp + 1
        held, unit = min(warm, layout.microbatches * layout.vpp), " chunks"
    return f"backward of microbatch 1, {held}{unit} in flight"
