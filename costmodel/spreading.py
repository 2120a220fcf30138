"""Rules of how sequences, experts and shards are spread: by arithmetic, and by the framework."""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel.axes import HIERARCHICAL, ULYSSES, Flags, Ints
from layoutopt.costmodel.broken import Broken, divisors, nearest_of
from layoutopt.costmodel.context import ranks_inside
from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS, Layout


def context_parallel_fits(job: Job, cp: int) -> bool:
    """The sequence splits into 2 cp causal halves (Megatron, torchtitan)."""
    return cp == 1 or job.training.seq_len % (2 * cp) == 0


def context_kind_splits_heads(job: Job, tp: Ints, cp: Ints, kind: Ints | int) -> Flags:
    """Ulysses gives every one of tp * cp ranks whole heads, and key-value heads or copies of them;
    ``hierarchical`` does so inside a domain, and leaves a ring of more than one rank outside.

    Axes as arrays or numbers, ``kind`` by its code. Anything goes where cp is 1.
    """
    model, kinds = job.model, np.asarray(kind)
    inside = np.where(kinds == ULYSSES, cp, ranks_inside(job, tp, cp))
    ranks = np.asarray(tp) * inside
    whole = (model.heads % ranks == 0) & (
        (model.kv_heads % ranks == 0) | (ranks % model.kv_heads == 0)
    )
    both = (inside > 1) & (inside < np.asarray(cp))
    good: Flags = np.select(
        [kinds == ULYSSES, kinds == HIERARCHICAL], [whole, whole & both], np.asarray(True)
    )
    return np.asarray(good | (np.asarray(cp) == 1), dtype=bool)


def shards_divide_replicas(
    job: Job, tp: Ints, pp: Ints, ep: Ints, etp: Ints, degree: Ints
) -> Flags:
    """``degree`` ranks of ZeRO's shard groups divide dp * cp = gpus / (tp * pp), and as many groups
    divide the ranks that hold the same experts."""
    group = job.gpus // (np.asarray(tp) * pp)
    groups = group // degree
    divides = group % degree == 0
    if job.model.moe is not None:
        replicas = job.gpus // (np.asarray(pp) * ep * etp)
        divides = divides & (replicas % np.maximum(groups, 1) == 0)
    return np.asarray(divides, dtype=bool)


def broken_context(job: Job, layout: Layout) -> list[Broken]:
    """What is wrong with how the ranks of a sequence share it."""
    cp, tp, kind, seq = layout.cp, layout.tp, layout.cp_kind, job.training.seq_len
    code = CP_KINDS.index(kind)

    def splits(degree: int) -> bool:
        if degree == 1 or code not in (ULYSSES, HIERARCHICAL):
            return True  # Anything goes; asked here because it is quicker than arrays of one.
        return bool(context_kind_splits_heads(job, np.asarray(tp), np.asarray(degree), code))

    if context_parallel_fits(job, cp) and splits(cp):
        return []
    legal = [d for d in divisors(seq) if context_parallel_fits(job, d) and splits(d)]
    message = f"cp {cp}: {kind} needs seq_len {seq} to divide by 2 x cp = {2 * cp}"
    if kind == "ulysses":
        message += f" and {job.model.heads} heads by tp x cp"
    if kind == "hierarchical":
        inside = int(ranks_inside(job, tp, cp))
        message += (
            f", {job.model.heads} heads by tp and the {inside} ranks of cp in a domain, and ranks "
            "of cp outside it"
        )
    nearest = nearest_of(legal, cp)
    return [Broken("context_halves_the_sequence", "cp", cp, message, nearest)]


def _framework_exchanges(job: Job, layout: Layout) -> list[Broken]:
    """The framework has this way of context parallelism."""
    kinds = job.software.cp_kinds
    if layout.cp == 1 or layout.cp_kind in kinds:
        return []
    framework = job.software.framework
    message = f"{framework} has no cp_kind {layout.cp_kind}, but {', '.join(kinds)}"
    return [Broken("framework_exchanges", "cp_kind", layout.cp_kind, message, tuple(kinds))]


def broken_spreading(job: Job, layout: Layout) -> list[Broken]:
    """What the framework cannot be told, and shard groups that do not come out even."""
    found = _framework_exchanges(job, layout)
    if layout.etp > 1 and not job.software.expert_tensor:
        message = f"{job.software.framework} does not cut experts over tensor ranks (etp)"
        found.append(Broken("framework_cuts_experts", "etp", layout.etp, message, (1,)))
    usual = default_layout_values(job.software, tp=layout.tp, pp=layout.pp).reshard
    if layout.zero_stage == 3 and layout.reshard != usual and not job.software.reshard_choice:
        message = f"{job.software.framework} does not let gathered weights be kept or dropped"
        found.append(Broken("framework_reshards", "reshard", layout.reshard, message, (usual,)))
    found += _offload(job, layout)
    return found + _shard_groups(job, layout)


def offload_fits(job: Job, zero_stage: int) -> bool:
    """Whether the framework offloads the optimizer with this ZeRO stage: a sharded one alone, but
    for a framework without rules."""
    software = job.software
    return software.framework == "generic" or (software.offload_optimizer and zero_stage > 0)


def activations_fit(job: Job, recompute: str) -> bool:
    """Whether the framework offloads what is saved with this recompute: DeepSpeed moves the
    checkpoints of full recompute alone, Megatron nothing beside recomputation."""
    software = job.software
    if software.framework == "generic":
        return True
    alone = software.offload_activations_alone and recompute != "none"
    return (
        software.offload_activations
        and not alone
        and (software.framework != "deepspeed" or recompute == "full")
    )


def pipeline_fits(job: Job, pp: int) -> bool:
    """Whether the framework offloads activations with so many stages."""
    return pp == 1 or not job.software.offload_activations_alone


def _offload(job: Job, layout: Layout) -> list[Broken]:
    found, framework = [], job.software.framework
    if layout.offload_optimizer and not offload_fits(job, layout.zero_stage):
        beside = f" with zero_stage {layout.zero_stage}" if job.software.offload_optimizer else ""
        message = f"{framework} does not offload the optimizer{beside}"
        found.append(Broken("framework_offloads", "offload_optimizer", True, message, (False,)))
    if not layout.offload_activations:
        return found
    message = f"{framework} does not offload activations"
    if not activations_fit(job, layout.recompute):
        message += f" with recompute {layout.recompute}" if job.software.offload_activations else ""
        found.append(Broken("framework_offloads", "offload_activations", True, message, (False,)))
    elif not pipeline_fits(job, layout.pp):
        message += f" with pp {layout.pp}"
        found.append(Broken("framework_offloads", "offload_activations", True, message, (False,)))
    return found


def _shard_groups(job: Job, layout: Layout) -> list[Broken]:
    found, shard, group = [], layout.shard_degree, layout.dp * layout.cp
    if shard is None:
        return []
    degrees = (layout.tp, layout.pp, layout.ep, layout.etp)

    def divide(degree: int) -> bool:
        return bool(shards_divide_replicas(job, *map(np.asarray, (*degrees, degree))))

    if not divide(shard):
        message = f"shard_degree {shard} does not divide dp x cp = {group}"
        if group % shard == 0:
            message = (
                f"shard_degree {shard} makes {group // shard} groups of dp x cp = {group}, which "
                "do not divide the ranks that hold the same experts"
            )
        nearest = nearest_of([d for d in divisors(group) if divide(d)], shard)
        found.append(Broken("shards_divide_replicas", "shard_degree", shard, message, nearest))
    stages = job.software.shard_group_stages
    if shard < group and layout.zero_stage > 0 and layout.zero_stage not in stages:
        message = (
            f"{job.software.framework} spreads shards over a part of the replicas with zero_stage "
            f"{', '.join(map(str, stages))}, not {layout.zero_stage}"
        )
        if not stages:
            message = f"{job.software.framework} spreads no shards over a part of the replicas"
        found.append(Broken("framework_groups_shards", "shard_degree", shard, message, (group,)))
    return found
