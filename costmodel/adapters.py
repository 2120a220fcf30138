"""What low-rank adapters (LoRA) need and take beside frozen weights.

Frozen weights have no gradient and no optimizer state, their products have no weight gradient in
the backward pass, and their inputs are kept for an adapter alone. Adapters are cut over tensor
ranks as Megatron Bridge's parallel adapters are: A by its rank (by its input beside a layer that
is cut by rows), B by what it makes; each routed expert has its own (A22). Parts of an adapter
run in 16 bit whatever the frozen layers run in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel import collectives
from layoutopt.costmodel.axes import FULL, Array, Ints
from layoutopt.costmodel.compute import ZERO, Seconds, gemm
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.linears import Linear, adapted
from layoutopt.costmodel.machine import Machine, cuda_graphs, machine
from layoutopt.costmodel.shares import attention_share, dense_share, expert_share

FROZEN_BYTES = 2
"""Bytes of a frozen weight: 16 bit, whatever trained weights are kept in."""
KERNELS = 4
"""Kernels that an adapter launches forward: two products, scale, sum."""


def adapters_of(job: Job) -> tuple[Linear, ...]:
    """The layers of the job's model that have an adapter; none where all weights are trained."""
    lora = job.training.lora
    return adapted(job.model, lora, job.software.merged_adapters) if lora else ()


def adapter_parameters(job: Job) -> int:
    """Parameters of all adapters: rank * (inner + columns) each."""
    return _parameters(job, job.model.moe.experts if job.model.moe else 0)


def active_adapter_parameters(job: Job) -> int:
    """Parameters of adapters that a token meets: those of ``top_k`` experts."""
    return _parameters(job, job.model.moe.top_k if job.model.moe else 0)


def _parameters(job: Job, experts: int) -> int:
    """Parameters of the adapters, those of so many experts of a layer counted."""
    lora, model = job.training.lora, job.model
    if lora is None:
        return 0
    times = {
        "attention": model.attention_layers,
        "dense": model.dense_layers,
        "routed": model.moe_layers * experts,
        "shared": model.moe_layers,
    }
    return lora.rank * sum(times[one.place] * (one.inner + one.columns) for one in adapters_of(job))


def _shares(job: Job) -> dict[str, float]:
    """Share of the layers that have what stands at a place; routed experts are counted apart."""
    return {
        "attention": attention_share(job.model),
        "dense": dense_share(job.model),
        "shared": expert_share(job.model),
        "routed": 0.0,
    }


@dataclass(frozen=True)
class InputsKept:
    """Bytes an element of what feeds the linear layers of a layer, kept for weight gradients."""

    attention: float
    """The norm's output before attention."""
    latents: float
    """MLA's latents after their norms."""
    attention_out: float
    """Attention's output, beside the copy that attention's own backward pass needs."""
    mlp: float
    mlp_out: float
    """The activation's output."""


def inputs_kept(job: Job) -> InputsKept:
    """One byte in 8 and 4 bit, else two. Frozen weights need none of it: an adapter keeps its
    input in 16 bit, and shares attention's own copy of the output."""
    if job.training.lora is None:
        kept = min(2.0, max(1.0, machine(job).gemm_bytes))
        return InputsKept(kept, kept, kept if kept < 2 else 0.0, kept, kept)
    names = set(job.training.lora.targets)

    def any_of(*layers: str) -> float:
        return 2.0 if names & set(layers) else 0.0

    first = ("q_a_proj", "kv_a_proj_with_mqa")
    return InputsKept(
        attention=any_of("q_proj", "k_proj", "v_proj", *first),
        latents=any_of("q_b_proj", "kv_b_proj"),
        attention_out=0.0,
        mlp=any_of("gate_proj", "up_proj"),
        mlp_out=any_of("down_proj"),
    )


def saved_bytes_a_token(job: Job, tp: Ints, etp: Ints | int) -> Array:
    """Outputs of the adapters' first products, 16 bit, whole on every tensor rank: bytes a token
    and average layer."""
    lora, moe, experts = job.training.lora, job.model.moe, expert_share(job.model)
    if lora is None:
        return np.zeros(1)
    saved: Array = np.zeros(np.shape(tp))
    for one in adapters_of(job):
        times: Array | float = _shares(job)[one.place]
        if one.place == "routed" and moe is not None:
            times = experts * moe.top_k * np.asarray(etp) / tp
        saved = saved + times * 2.0 * lora.rank
    return saved


def replicated_adapters(job: Job, tp: Ints, layers: Ints | float) -> Array:
    """Adapter parameters of ``layers`` average layers on one GPU, those of routed experts left
    out: divided by tp but for layers that tp does not divide."""
    lora, share = job.training.lora, _shares(job)
    held: Array = np.zeros(np.broadcast(tp, layers).shape)
    if lora is None:
        return held
    for one in adapters_of(job):
        parameters = share[one.place] * lora.rank * (one.inner + one.columns)
        held = held + layers * parameters / (1 if one.cut == "none" else np.asarray(tp))
    return held


def expert_adapters(job: Job, layers: Ints | float, ep: Ints, etp: Ints | int) -> Array:
    """Adapter parameters of routed experts of ``layers`` average layers on one GPU."""
    lora, moe, counts = job.training.lora, job.model.moe, count(job.model)
    if lora is None or moe is None:
        return np.zeros(np.broadcast(layers, ep, etp).shape)
    routed = sum(one.inner + one.columns for one in adapters_of(job) if one.place == "routed")
    whole = lora.rank * routed * moe.experts * counts.moe_layers / counts.layers
    held: Array = layers * whole / (ep * np.asarray(etp))
    return held


def adapter_seconds(
    job: Job, rates: Machine, tokens: Array, tp: Ints, ep: Ints, etp: Ints
) -> Seconds:
    """Adapters of one average layer: A, B, the scale and the sum with the frozen layer's output.

    Forward the scale reads and writes the adapter's output and the sum reads both and writes one
    (10 bytes an element); backward the scale passes over its gradient, and the input's two
    gradients are summed (4 and 6 bytes).
    """
    lora, moe, experts = job.training.lora, job.model.moe, expert_share(job.model)
    if lora is None:
        return ZERO
    work = ZERO
    for one in adapters_of(job):
        if one.place == "routed" and moe is not None:
            rows = tokens / tp * etp * moe.top_k / (moe.experts / ep)
            each = _adapter(job, rates, one, rows, np.asarray(etp))
            work += each.scaled(experts * moe.experts / ep)
        else:
            each = _adapter(job, rates, one, tokens, np.asarray(tp))
            work += each.scaled(_shares(job)[one.place])
    return work


def _adapter(job: Job, rates: Machine, one: Linear, rows: Array, ranks: Ints) -> Seconds:
    """One adapter over ``rows`` tokens, cut over ``ranks``."""
    lora = job.training.lora
    if lora is None:
        return ZERO
    plain = replace(rates, gemm_flops_per_s=rates.gemm16_flops_per_s, gemm_bytes=2.0)
    whole = np.ones_like(ranks) if one.cut == "none" else ranks
    inner = one.inner / (whole if one.cut == "rows" else np.ones_like(ranks))
    columns, rank = one.columns / whole, np.asarray(float(lora.rank))
    own_rank = rank / whole if one.cut == "columns" else rank
    accumulate = float(job.software.gradient_bytes)
    work = gemm(plain, rows, inner, own_rank, accumulate)
    work += gemm(plain, rows, rank, columns, accumulate)
    rate = rates.memory_bytes_per_s
    forward = 10.0 * rows * columns / rate + 2 * rates.gap_s
    backward = (4.0 * columns + 6.0 * inner) * rows / rate + 2 * rates.gap_s
    return work + Seconds(forward, backward)


def adapter_traffic(job: Job, rates: Machine, tokens: Array, tp: Ints, recompute: Ints) -> Seconds:
    """Tensor-parallel traffic of one average layer's adapters, experts' left out.

    Beside a layer that is cut by columns the ranks gather x A, and scatter its gradient; beside
    one that is cut by rows they sum x A, and gather x A B, whose gradient they gather again
    (Megatron Bridge, ParallelLinearAdapter: linear_in and linear_out with gathered output).
    Nothing hides it. Full recompute repeats the forward part.
    """
    lora, shares = job.training.lora, _shares(job)
    if lora is None:
        return ZERO
    ranks = collectives.group(rates.levels, tp, np.asarray(1))
    low = 2.0 * tokens * lora.rank
    forward: Array = np.zeros(1)
    backward: Array = np.zeros(1)
    for one in adapters_of(job):
        share = shares[one.place]
        if one.cut == "columns":
            forward = forward + share * collectives.all_gather(ranks, low)
            backward = backward + share * collectives.reduce_scatter(ranks, low)
        elif one.cut == "rows":
            wide = collectives.all_gather(ranks, 2.0 * tokens * one.columns)
            forward = forward + share * (collectives.all_reduce(ranks, low) + wide)
            backward = backward + share * wide
    once = Seconds(forward, backward).scaled(job.software.tp_factor)
    return Seconds(once.forward, once.backward + np.where(recompute == FULL, once.forward, 0.0))


def launch_seconds(job: Job, rates: Machine) -> Seconds:
    """What launching one average layer's adapters adds to its host's floor; experts' aside."""
    if cuda_graphs(job) != "none":
        return ZERO
    kernels = KERNELS * sum(_shares(job)[one.place] for one in adapters_of(job))
    seconds = np.asarray(kernels * rates.reach.launch_s)
    return Seconds(seconds, 2 * seconds)
