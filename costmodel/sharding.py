"""Data parallelism and what it shards: parameters a GPU holds, their traffic, the optimizer step.

Terms like those of `terms.py`: seconds per GPU, each a function of the axes that it depends on.
With G GPUs, dp * cp = G / (tp * pp), so whatever depends on the data-parallel group depends on
(tp, pp) alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import adapters, collectives, compute, placement
from layoutopt.costmodel.axes import Array, Flags, Ints
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.offload import adam_seconds
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


def _with_prediction(job: Job, layers: Ints, head: Flags) -> Ints:
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


@dataclass(frozen=True)
class Sync:
    """Data-parallel traffic once a step, seconds on the wire."""

    reduce: Array
    gather: Array


def sync_seconds(
    job: Job,
    tp: Ints,
    pp: Ints,
    zero_stage: Ints,
    stage_layers: Ints,
    *,
    shard: Ints | None = None,
    group: Ints | None = None,
    ep: Ints | int = 1,
    etp: Ints | int = 1,
    first: Flags | bool = True,
    head: Flags | bool = False,
    cp: Ints | int = 1,
) -> Sync:
    """Gradient reduction and weight gather of the first stage, once a step.

    Axes (tp, pp, zero_stage), and cp with the pipeline inside. ZeRO-0 all-reduces; ZeRO-1 scatters
    gradients and gathers weights; ZeRO-2/3 did both per microbatch: only the ends (embedding, head)
    are left here (A15). Where the shard group is a part of the replicas (HSDP) its shards are then
    summed across the parts. Expert weights reduce over their own group. ``head``: the first stage
    holds the loss head too, as it does alone; ``first``: it holds the embedding, as the first one
    of all does and the first one of another pool does not.
    """
    software = job.software
    z, pp = np.asarray(zero_stage), np.asarray(pp)
    size = job.gpus // (np.asarray(tp) * pp) if group is None else group
    ranks = placement.replicas(job, size, tp, pp, cp)
    sharded = ranks if shard is None else placement.replicas(job, shard, tp, pp, cp)
    stage_layers = _with_prediction(job, stage_layers, (pp == 1) | head)
    ends, no = (np.asarray(first), (pp == 1) | head), np.asarray(False)
    dense = trained_parameters(job, tp, stage_layers, *ends)
    layers = trained_parameters(job, tp, stage_layers, no, no)
    once = np.where(z >= 2, dense - layers, dense)
    pieces = collectives.buckets(once, sharded)
    reduce = collectives.reduce_scatter(sharded, software.gradient_bytes * once, pieces)
    all_reduce = collectives.all_reduce(ranks, software.gradient_bytes * once)
    gathered = once
    if job.training.lora:
        # ZeRO-3 shards the frozen ends as well: gathered, never reduced.
        gathered = np.where(z == 3, stage_parameters(job, tp, 0.0, *ends), once)
        pieces = collectives.buckets(gathered, sharded)
    gather = collectives.all_gather(sharded, 2.0 * gathered, pieces)
    gather = gather + software.owner_s * np.where(sharded.size > 1, sharded.size, 0)
    if shard is not None:
        replicas = placement.shard_groups(job, size // shard, shard, tp, pp)
        across = collectives.all_reduce(replicas, software.gradient_bytes * dense / shard)
        reduce = reduce + across
    total_reduce, total_gather = np.where(z == 0, all_reduce, reduce), np.where(z == 0, 0.0, gather)
    if job.model.moe is not None:
        experts = _expert_sync(job, tp, pp, z, stage_layers, shard, ep, etp)
        total_reduce, total_gather = total_reduce + experts.reduce, total_gather + experts.gather
    return Sync(total_reduce, total_gather)


def layers_share(
    job: Job,
    tp: Ints,
    pp: Ints,
    zero_stage: Ints,
    stage_layers: Ints,
    *,
    shard: Ints,
    ep: Ints | int = 1,
    etp: Ints | int = 1,
    first: Flags | bool = True,
    head: Flags | bool = False,
) -> Array:
    """Of what `sync_seconds` moves the share of the layers, by their parameters.

    None of it under ZeRO-2/3, whose layers move in every microbatch; but where shards are then
    summed across groups (HSDP) that takes the layers too.
    """
    pp, none = np.asarray(pp), np.asarray(False)
    last = (pp == 1) | np.asarray(head)
    stage_layers = _with_prediction(job, stage_layers, last)
    held = trained_parameters(job, tp, stage_layers, np.asarray(first), last)
    layers = trained_parameters(job, tp, stage_layers, none, none)
    if job.model.moe is not None:
        experts = trained_experts(job, stage_layers, np.asarray(ep), etp)
        held, layers = held + experts, layers + experts
    whole = np.asarray(shard) >= job.gpus // (np.asarray(tp) * pp)
    return np.where((np.asarray(zero_stage) >= 2) & whole, 0.0, layers / np.maximum(held, 1.0))


def _expert_sync(
    job: Job,
    tp: Ints,
    pp: Ints,
    zero_stage: Ints,
    stage_layers: Ints,
    shard: Ints | None,
    ep: Ints | int,
    etp: Ints | int,
) -> Sync:
    """The same for routed experts, over the ranks that hold them: all of them under ZeRO-0, their
    shard group else, whose shards are then summed across groups."""
    each = job.software.gradient_bytes
    experts = trained_experts(job, stage_layers, np.asarray(ep), etp)
    everyone = placement.expert_copies(job, pp, ep, etp)
    size = expert_shard(job, tp, pp, ep, etp, shard)
    replicas = placement.expert_replicas(job, pp, ep, etp, everyone)
    sharded = placement.expert_replicas(job, pp, ep, etp, size)
    reduce = np.select(
        [zero_stage == 0, zero_stage == 1],
        [
            2 * collectives.reduce_scatter(replicas, each * experts),
            collectives.reduce_scatter(sharded, each * experts),
        ],
        0.0,
    )
    gather = np.where(zero_stage == 1, collectives.all_gather(sharded, 2.0 * experts), 0.0)
    if shard is None:
        return Sync(reduce, gather)
    groups = placement.expert_replicas(job, pp, ep, etp, everyone // size, apart=size)
    across = collectives.all_reduce(groups, each * experts / size)
    return Sync(reduce + np.where(zero_stage == 0, 0.0, across), gather)


def tied_embedding_seconds(job: Job, tp: Ints, pp: Ints, cp: Ints | int = 1) -> Array:
    """Sum of the shared table's gradient between first and last stage: axes (tp, pp). A frozen
    table has none."""
    if not job.model.tied_embeddings or job.training.lora:
        return np.zeros(np.broadcast(tp, pp).shape)
    link = placement.boundary(job, tp, np.asarray(cp), pp)
    size = job.software.gradient_bytes * job.model.vocab * job.model.hidden / np.asarray(tp)
    return np.where(np.asarray(pp) > 1, collectives.all_reduce(link, size), 0.0)


def optimizer_seconds(
    job: Job,
    tp: Ints,
    pp: Ints,
    zero_stage: Ints,
    stage_layers: Ints,
    *,
    shard: Ints | None = None,
    ep: Ints | int = 1,
    etp: Ints | int = 1,
    first: Flags | bool = True,
    head: Flags | bool = False,
    offload: Flags | bool = False,
) -> Array:
    """Optimizer step of the first stage: axes (tp, pp, zero_stage).

    ``first`` and ``head`` as in sync_seconds; ``offload``: in host memory.
    """
    z, pp = np.asarray(zero_stage), np.asarray(pp)
    size = job.gpus // (np.asarray(tp) * pp) if shard is None else shard
    stage_layers = _with_prediction(job, stage_layers, (pp == 1) | head)
    dense = trained_parameters(job, tp, stage_layers, np.asarray(first), (pp == 1) | head)
    held = dense / np.where(z >= 1, size, 1)
    if job.model.moe is not None:
        experts = trained_experts(job, stage_layers, np.asarray(ep), etp)
        held = held + experts / np.where(z >= 1, expert_shard(job, tp, pp, ep, etp, shard), 1)
    here = compute.optimizer_seconds(job, machine(job), held)
    if not np.any(offload):
        return here
    fixed = machine(job).reach.optimizer_s
    return np.where(offload, adam_seconds(job, held) + fixed, here)
