"""Which ranks are neighbours: the order of the axes, and the links that groups then cross.

tp is innermost and cp next to it. Either the replicas of a stage stand together and stages apart
(tp-cp-ep-dp-pp), or the stages of a pipeline stand together and replicas apart (tp-cp-ep-pp-dp).
Source of the two: Megatron-LM, core/parallel_state.py, RankGenerator's ``order``, and
--use-tp-pp-dp-mapping in training/arguments.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layoutopt.costmodel import collectives
from layoutopt.costmodel.axes import Ints
from layoutopt.costmodel.collectives import Group
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import PIPELINE_INSIDE, PIPELINE_LAST, Layout
from layoutopt.costmodel.machine import machine

PRICED = (PIPELINE_LAST, PIPELINE_INSIDE)
"""Orders that have a price of their own; others are taken as the first (A18)."""


def ordered(job: Job, axis_order: str) -> Job:
    """``job`` with its ranks in that order; an order without a price counts as the usual one."""
    known = axis_order if axis_order in PRICED else PIPELINE_LAST
    return job if job.axis_order == known else replace(job, axis_order=known)


def replicas(job: Job, size: Ints, tp: Ints, pp: Ints, cp: Ints | int) -> Group:
    """``size`` of the dp * cp ranks that hold the same dense weights, nearest first.

    Neighbours stand tp GPUs apart; with the pipeline inside, so do the cp ranks of one replica
    alone, and replicas stand tp * cp * pp apart.
    """
    levels = machine(job).shard_levels
    if job.axis_order != PIPELINE_INSIDE:
        return collectives.group(levels, size, tp)
    near = np.gcd(size, cp)
    return collectives.nested_group(levels, near, tp, size // near, np.asarray(tp) * cp * pp)


def shard_groups(job: Job, count: Ints, shard: Ints, tp: Ints, pp: Ints) -> Group:
    """``count`` ranks with the same shard, one of each group of ``shard`` replicas (HSDP)."""
    stride = np.asarray(tp) * shard
    inside = job.axis_order == PIPELINE_INSIDE
    return collectives.group(machine(job).shard_levels, count, stride * pp if inside else stride)


def expert_copies(job: Job, pp: Ints, ep: Ints | int, etp: Ints | int) -> Ints:
    """How many ranks hold the same experts: gpus / (ep * etp * pp)."""
    width = np.asarray(ep * np.asarray(etp), dtype=np.int64)
    copies: Ints = np.maximum(1, job.gpus // (np.asarray(pp) * width))
    return copies


def expert_replicas(
    job: Job, pp: Ints, ep: Ints | int, etp: Ints | int, count: Ints, apart: Ints | int = 1
) -> Group:
    """``count`` of the ranks that hold the same experts, ``apart`` of them from one to the next:
    a set of experts' ranks each."""
    width = np.asarray(ep * np.asarray(etp), dtype=np.int64) * apart
    stride = width * pp if job.axis_order == PIPELINE_INSIDE else width
    return collectives.group(machine(job).shard_levels, count, stride)


def boundary(job: Job, tp: Ints, cp: Ints, pp: Ints) -> Group:
    """Two neighbouring stages, those that stand farthest apart: that pair sets the pace.

    Where pp is outermost, some pair crosses the outermost level of the job (A5).
    """
    levels = machine(job).levels
    if job.axis_order != PIPELINE_INSIDE:
        return collectives.farthest(levels, job.gpus)
    stages = collectives.group(levels, pp, np.asarray(tp) * cp)
    latency = stages.edge_latency_s + levels[0].setup_s
    # A pipeline of one stage sends nothing: any finite rate will do.
    rate = np.where(np.isfinite(stages.edge_bytes_per_s), stages.edge_bytes_per_s, 1.0)
    return Group(np.asarray(2), rate, latency, 0.5 / rate, rate, latency)


def order_is_accepted(job: Job, axis_order: str) -> bool:
    """The framework numbers ranks this way (Software.axis_orders); generic has no such rule."""
    return job.software.framework == "generic" or axis_order in job.software.axis_orders


def order_keeps_stages_whole(job: Job, layout: Layout) -> bool:
    """With the pipeline inside, attention and experts have to cut the ranks into equal stages.

    Megatron-LM, core/parallel_state.py: "When not using pp-last rank ordering, the data parallel
    size of the attention and moe layers must be the same"; a dense model counts there as experts
    with ep = 1 and etp = tp, so that cp has to be 1.
    """
    if (
        layout.axis_order != PIPELINE_INSIDE
        or layout.pp == 1
        or job.software.framework
        not in (
            "megatron",
            "nemo",
        )
    ):
        return True
    if job.model.moe is None:
        return layout.cp == 1
    return layout.ep * layout.etp == layout.tp * layout.cp
