"""What data parallelism does once a step: gradients summed, weights gathered, the optimizer.

Terms like those of `terms.py`. Who takes part (`Replicas`) does not depend on what a stage holds
(`Held`): a search prices many numbers of layers with the same replicas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import collectives, compute, placement
from layoutopt.costmodel.axes import Array, Flags, Ints
from layoutopt.costmodel.collectives import Group
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.offload import adam_seconds
from layoutopt.costmodel.sharding import (
    expert_shard,
    stage_parameters,
    trained_experts,
    trained_parameters,
    with_prediction,
)


@dataclass(frozen=True)
class Sync:
    """Data-parallel traffic once a step, seconds on the wire."""

    reduce: Array
    gather: Array


@dataclass(frozen=True)
class Copies:
    """Ranks that hold the same weights, as communicators."""

    all: Group
    sharded: Group
    """Those that ZeRO shards over; all of them without a shard group of its own."""
    across: Group | None
    """One rank of each shard group (HSDP); None where all ranks are one group."""
    shard: Ints | None
    """How many ranks a shard group has; None where all are one."""


@dataclass(frozen=True)
class Replicas:
    """Who sums gradients and gathers weights once a step."""

    dense: Copies
    experts: Copies | None
    """None without routed experts."""
    whole: Flags
    """Where all replicas are one shard group."""


@dataclass(frozen=True)
class Held:
    """What a stage holds that is trained, in parameters on one GPU."""

    tp: Ints
    ends: tuple[Flags, Flags]
    """Whether it holds the embedding, and the loss head."""
    dense: Array
    """What data parallelism replicates: layers and ends."""
    layers: Array
    experts: Array | None
    """Routed experts; None without any."""


def replicas_of(
    job: Job,
    tp: Ints,
    pp: Ints,
    *,
    shard: Ints | None = None,
    group: Ints | None = None,
    ep: Ints | int = 1,
    etp: Ints | int = 1,
    cp: Ints | int = 1,
) -> Replicas:
    """Axes (tp, pp), and cp with the pipeline inside; for experts ep and etp.

    ``shard``: ranks of a shard group, all of them if None; ``group``: dp * cp, where it is known.
    """
    pp = np.asarray(pp)
    full = job.gpus // (np.asarray(tp) * pp)
    size = full if group is None else group
    everyone = placement.replicas(job, size, tp, pp, cp)
    sharded, across = everyone, None
    if shard is not None and not np.array_equal(shard, size):
        sharded = placement.replicas(job, shard, tp, pp, cp)
        across = placement.shard_groups(job, size // shard, shard, tp, pp)
    return Replicas(
        dense=Copies(everyone, sharded, across, None if across is None else shard),
        experts=None if job.model.moe is None else _expert_copies(job, tp, pp, ep, etp, shard),
        whole=np.asarray(True) if shard is None else np.asarray(shard) >= full,
    )


def _expert_copies(
    job: Job, tp: Ints, pp: Ints, ep: Ints | int, etp: Ints | int, shard: Ints | None
) -> Copies:
    everyone = placement.expert_copies(job, pp, ep, etp)
    size = expert_shard(job, tp, pp, ep, etp, shard)
    replicas = placement.expert_replicas(job, pp, ep, etp, everyone)
    if np.array_equal(size, everyone):
        return Copies(replicas, replicas, None, None)
    sharded = placement.expert_replicas(job, pp, ep, etp, size)
    across = placement.expert_replicas(job, pp, ep, etp, everyone // size, apart=size)
    return Copies(replicas, sharded, across, size)


def held_by(
    job: Job,
    tp: Ints,
    pp: Ints,
    stage_layers: Ints,
    *,
    ep: Ints | int = 1,
    etp: Ints | int = 1,
    first: Flags | bool = True,
    head: Flags | bool = False,
) -> Held:
    """What a stage of ``stage_layers`` layers holds. ``first``: the embedding too, as the first one
    of all does and the first one of another pool does not; ``head``: the loss head too, as a stage
    does alone; with it stand the prediction blocks."""
    ends, no = (np.asarray(first), (np.asarray(pp) == 1) | head), np.asarray(False)
    stage_layers = with_prediction(job, stage_layers, ends[1])
    experts = None
    if job.model.moe is not None:
        experts = trained_experts(job, stage_layers, np.asarray(ep), etp)
    return Held(
        tp=tp,
        ends=ends,
        dense=trained_parameters(job, tp, stage_layers, *ends),
        layers=trained_parameters(job, tp, stage_layers, no, no),
        experts=experts,
    )


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

    Axes (tp, pp, zero_stage), and cp with the pipeline inside; see `sync_of`.
    """
    replicas = replicas_of(job, tp, pp, shard=shard, group=group, ep=ep, etp=etp, cp=cp)
    held = held_by(job, tp, pp, stage_layers, ep=ep, etp=etp, first=first, head=head)
    return sync_of(job, replicas, zero_stage, held)


def sync_of(job: Job, replicas: Replicas, zero_stage: Ints, held: Held) -> Sync:
    """Gradient reduction and weight gather of what a stage holds, once a step.

    ZeRO-0 all-reduces; ZeRO-1 scatters gradients and gathers weights; ZeRO-2/3 did both per
    microbatch: only the ends (embedding, head) are left here (A15). Where the shard group is a part
    of the replicas (HSDP) its shards are then summed across the parts. Expert weights reduce over
    their own group.
    """
    software, copies, z = job.software, replicas.dense, np.asarray(zero_stage)
    sharded = copies.sharded
    once = np.where(z >= 2, held.dense - held.layers, held.dense)
    pieces = collectives.buckets(once, sharded)
    reduce = collectives.reduce_scatter(sharded, software.gradient_bytes * once, pieces)
    all_reduce = collectives.all_reduce(copies.all, software.gradient_bytes * once)
    gathered = once
    if job.training.lora:
        # ZeRO-3 shards the frozen ends as well: gathered, never reduced.
        gathered = np.where(z == 3, stage_parameters(job, held.tp, 0.0, *held.ends), once)
        pieces = collectives.buckets(gathered, sharded)
    gather = collectives.all_gather(sharded, 2.0 * gathered, pieces)
    gather = gather + software.owner_s * np.where(sharded.size > 1, sharded.size, 0)
    if copies.across is not None and copies.shard is not None:
        shards = software.gradient_bytes * held.dense / copies.shard
        reduce = reduce + collectives.all_reduce(copies.across, shards)
    total_reduce, total_gather = np.where(z == 0, all_reduce, reduce), np.where(z == 0, 0.0, gather)
    if replicas.experts is not None and held.experts is not None:
        experts = _expert_sync(job, replicas.experts, z, held.experts)
        total_reduce, total_gather = total_reduce + experts.reduce, total_gather + experts.gather
    return Sync(total_reduce, total_gather)


def _expert_sync(job: Job, copies: Copies, zero_stage: Ints, experts: Array) -> Sync:
    """The same for routed experts, over the ranks that hold them: all of them under ZeRO-0, their
    shard group else, whose shards are then summed across groups."""
    each = job.software.gradient_bytes
    reduce = np.select(
        [zero_stage == 0, zero_stage == 1],
        [
            2 * collectives.reduce_scatter(copies.all, each * experts),
            collectives.reduce_scatter(copies.sharded, each * experts),
        ],
        0.0,
    )
    gather = np.where(zero_stage == 1, collectives.all_gather(copies.sharded, 2.0 * experts), 0.0)
    if copies.across is None or copies.shard is None:
        return Sync(reduce, gather)
    across = collectives.all_reduce(copies.across, each * experts / copies.shard)
    return Sync(reduce + np.where(zero_stage == 0, 0.0, across), gather)


def layers_share(replicas: Replicas, zero_stage: Ints, held: Held) -> Array:
    """Of what `sync_of` moves the share of the layers, by their parameters.

    None of it under ZeRO-2/3, whose layers move in every microbatch; but where shards are then
    summed across groups (HSDP) that takes the layers too.
    """
    everything, layers = held.dense, held.layers
    if held.experts is not None:
        everything, layers = everything + held.experts, layers + held.experts
    return np.where(
        (np.asarray(zero_stage) >= 2) & replicas.whole, 0.0, layers / np.maximum(everything, 1.0)
    )


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
    stage_layers = with_prediction(job, stage_layers, (pp == 1) | head)
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
