"""Data parallelism and what it shards: parameters a GPU holds, and traffic of every microbatch.

Terms like those of `terms.py`: seconds per GPU, each a function of the axes that it depends on.
With G GPUs, dp * cp = G / (tp * pp), so whatever depends on the data-parallel group depends on
(tp, pp) alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import adapters, collectives, placement
from layoutopt.costmodel.axes import Array, Flags, Ints
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.shares import attention_share


def stage_parameters(job: Job, tp: Ints, layers: Ints | float, first: Flags, last: Flags) -> Array:
    """Parameters of a stage on one GPU that data parallelism replicates; experts left out.

    tp divides all of a layer but its norms, its router and the down-projections of MLA, of which
    every rank holds a copy (Megatron Core's duplicated linear layers). With more tp ranks than key
    and value heads, a head has copies.
    """
    counts, model = count(job.model), job.model
    moe_share = counts.moe_layers / counts.layers
    base: float = counts.shared_layer_params
    if model.mamba is None:
        base = (1 - moe_share) * counts.dense_layer_params
        base += moe_share * counts.moe_layer_base_params
    copied = counts.norm_params + moe_share * counts.router_params + _latent_parameters(model)
    per_layer = (base - copied) / tp + copied + _copied_heads(model, tp)
    ends = np.where(first, counts.embedding_params / tp, 0.0)
    head = counts.head_params or model.vocab * model.hidden
    held_already = np.asarray(first) & model.tied_embeddings
    ends = ends + np.where(np.asarray(last) & ~held_already, head / tp, 0.0)
    return layers * per_layer + ends + np.where(last, counts.final_norm_params, 0)


def _copied_heads(model: Model, tp: Ints) -> Array | float:
    """Key and value projections a rank holds beyond its even share of one layer's."""
    if model.mla is not None or np.max(tp) <= model.kv_heads:
        return 0.0
    both = 2.0 * model.hidden * model.kv_width * attention_share(model)
    return both * (1 / np.minimum(tp, model.kv_heads) - 1 / np.asarray(tp))


def prediction_parameters(
    job: Job, tp: Ints, ep: Ints | int, etp: Ints | int
) -> tuple[Array | float, Array | float]:
    """Multi-token-prediction blocks on one GPU of the last stage: dense part and routed experts.

    A layer, a 2h x h projection and norms each; table and head are the model's (DeepSeek-V3
    technical report 2024, section 2.2).
    """
    counts, blocks = count(job.model), job.model.mtp_layers
    if not blocks:
        return 0.0, 0.0
    experts = counts.expert_total / max(counts.moe_layers, 1)
    dense = (counts.mtp_params - experts) / np.asarray(tp)
    return blocks * dense, blocks * experts / (np.asarray(ep) * np.asarray(etp))


def with_prediction(job: Job, layers: Ints, head: Flags) -> Ints:
    """Layers of a stage and, where the loss head stands, of its prediction blocks."""
    blocks = job.model.mtp_layers
    return layers + np.where(head, blocks, 0) if blocks else layers


def _latent_parameters(model: Model) -> int:
    """Down-projections of one layer's multi-head latent attention (DeepSeek-V2, section 2.1)."""
    mla = model.mla
    if mla is None:
        return 0
    return model.hidden * ((mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim)


def expert_parameters(job: Job, layers: Ints | float, ep: Ints, etp: Ints | int) -> Array:
    """Routed experts' parameters of ``layers`` average layers on one GPU."""
    counts = count(job.model)
    held: Array = layers * counts.expert_total / counts.layers / (ep * np.asarray(etp))
    return held


def trained_parameters(
    job: Job, tp: Ints, layers: Ints | float, first: Flags, last: Flags
) -> Array:
    """Those of `stage_parameters` that have gradients: all, or the adapters' alone."""
    if job.training.lora is None:
        return stage_parameters(job, tp, layers, first, last)
    return adapters.replicated_adapters(job, tp, layers)


def held_parameters(job: Job, tp: Ints, layers: Ints | float, first: Flags, last: Flags) -> Array:
    """`stage_parameters` with the adapters beside them."""
    held = stage_parameters(job, tp, layers, first, last)
    if job.training.lora is None:
        return held
    return held + adapters.replicated_adapters(job, tp, layers)


def held_experts(job: Job, layers: Ints | float, ep: Ints, etp: Ints | int) -> Array:
    """`expert_parameters` with the adapters beside them."""
    held = expert_parameters(job, layers, ep, etp)
    if job.training.lora is None:
        return held
    return held + adapters.expert_adapters(job, layers, ep, etp)


def trained_experts(job: Job, layers: Ints | float, ep: Ints, etp: Ints | int) -> Array:
    """Those of `expert_parameters` that have gradients: all, or the adapters' alone."""
    if job.training.lora is None:
        return expert_parameters(job, layers, ep, etp)
    return adapters.expert_adapters(job, layers, ep, etp)


@dataclass(frozen=True)
class Gathers:
    """Traffic of ZeRO-2/3 for one average layer and one microbatch, seconds on the wire."""

    forward: Array
    backward: Array


def gather_seconds(
    job: Job,
    tp: Ints,
    pp: Ints,
    zero_stage: Ints,
    *,
    shard: Ints | None = None,
    reshard: Flags | bool = True,
    ep: Ints | int = 1,
    etp: Ints | int = 1,
    cp: Ints | int = 1,
) -> Gathers:
    """Weight gathers and gradient scatters that repeat for every layer and microbatch.

    Axes (tp, pp, zero_stage), for experts ep too, and cp with the pipeline inside. ZeRO-3 gathers
    a layer's 16-bit weights before the forward and, where they were re-sharded, before the
    backward pass, and scatters gradients after it; ZeRO-2 scatters alone. Source: Rajbhandari 2019,
    section 7; Zhao 2023, section 3.
    """
    size = job.gpus // (np.asarray(tp) * pp) if shard is None else shard
    ranks = placement.replicas(job, size, tp, pp, cp)
    no = np.asarray(False)
    parameters = held_parameters(job, tp, 1.0, no, no)
    trained = trained_parameters(job, tp, 1.0, no, no)
    gather = collectives.all_gather(ranks, 2.0 * parameters)
    scatter = collectives.reduce_scatter(ranks, job.software.gradient_bytes * trained)
    if job.model.moe is not None:
        shared = expert_shard(job, tp, pp, ep, etp, shard)
        replicas = placement.expert_replicas(job, pp, ep, etp, shared)
        experts = held_experts(job, 1.0, np.asarray(ep), etp)
        trained = trained_experts(job, 1.0, np.asarray(ep), etp)
        gather = gather + collectives.all_gather(replicas, 2.0 * experts)
        scatter = scatter + collectives.reduce_scatter(
            replicas, job.software.gradient_bytes * trained
        )
    z = np.asarray(zero_stage)
    forward = np.where(z == 3, gather, 0.0)
    backward = np.where((z == 3) & np.asarray(reshard), gather, 0.0) + np.where(
        z >= 2, scatter, 0.0
    )
    return Gathers(forward, backward)


def expert_shard(
    job: Job, tp: Ints, pp: Ints, ep: Ints | int, etp: Ints | int, shard: Ints | None
) -> Ints:
    """Ranks that ZeRO shards an expert over: its replicas, divided among as many groups as the
    dense weights' are (Megatron's optimizer instances; torchtitan's efsdp inside dp_replicate)."""
    replicas = placement.expert_copies(job, pp, ep, etp)
    if shard is None:
        return replicas
    groups = np.maximum(1, job.gpus // (np.asarray(tp) * pp) // shard)
    size: Ints = np.maximum(1, replicas // groups)
    return size
