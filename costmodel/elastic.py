"""What to run while nodes are missing: the same model on fewer replicas."""

from __future__ import annotations

from dataclasses import dataclass, replace

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import broken_rules, divisors


@dataclass(frozen=True)
class Restart:
    """A layout to go on with."""

    plan: Estimate
    global_batch: int
    gpus_idle: int
    """GPUs that are left and not used."""
    speed: float
    """Tokens a second over those of the whole job."""


@dataclass(frozen=True)
class Degraded:
    """What to restart with when ``nodes_lost`` nodes are gone and none replaces them."""

    nodes_lost: int
    gpus_left: int
    same_batch: Restart | None
    """With the same global batch; None: no fewer replicas are legal and fit."""
    smaller_batch: Restart | None
    """With the same work a replica, and so a smaller batch."""


def degraded(job: Job, whole: Estimate, nodes_lost: int) -> Degraded:
    """The fastest restarts on what is left that keep tp, cp and pp.

    A replica is tp x cp x pp GPUs, and a checkpoint can be read by fewer replicas as it is. Fewer
    replicas shard the optimizer's state less: where that no longer fits, more is recomputed.
    """
    layout = whole.layout
    left = max(0, job.gpus - nodes_lost * job.cluster.gpus_per_node)
    most = left // (layout.tp * layout.cp * layout.pp)

    def restart(found: tuple[Job, Estimate] | None) -> Restart | None:
        if found is None:
            return None
        smaller, plan = found
        batch = smaller.training.global_batch
        tokens = plan.step.tokens_per_s_per_gpu * smaller.gpus
        speed = tokens / (whole.step.tokens_per_s_per_gpu * job.gpus)
        return Restart(plan, batch, left - smaller.gpus, speed)

    return Degraded(
        nodes_lost=nodes_lost,
        gpus_left=left,
        same_batch=restart(_same_batch(job, layout, most)),
        smaller_batch=restart(_smaller_batch(job, layout, most)),
    )


def _same_batch(job: Job, layout: Layout, most: int) -> tuple[Job, Estimate] | None:
    """The largest number of replicas that divides the batch; microbatches make up for it."""
    batch = job.training.global_batch
    for dp in range(most, 0, -1):
        found = [
            plan
            for size in divisors(layout.micro_batch)
            if batch % (dp * size) == 0
            and (plan := _priced(job, layout, dp, size, batch // (dp * size))) is not None
        ]
        if found:
            return min(found, key=lambda pair: pair[1].step.time_s)
    return None


def _smaller_batch(job: Job, layout: Layout, most: int) -> tuple[Job, Estimate] | None:
    """All replicas that are left, each with the work it had."""
    for dp in range(most, 0, -1):
        batch = dp * layout.micro_batch * layout.microbatches
        training = job.training.model_copy(update={"global_batch": batch})
        smaller = replace(job, training=training)
        found = _priced(smaller, layout, dp, layout.micro_batch, layout.microbatches)
        if found is not None:
            return found
    return None


def _priced(
    job: Job, layout: Layout, dp: int, micro_batch: int, microbatches: int
) -> tuple[Job, Estimate] | None:
    """The layout on ``dp`` replicas, with no more recompute than it needs to fit; None where it is
    not legal or does not fit."""
    shard, ranks = layout.shard_degree, dp * layout.cp
    fewer = replace(
        layout,
        dp=dp,
        micro_batch=micro_batch,
        microbatches=microbatches,
        shard_degree=None if shard is None or ranks % shard else shard,
    )
    smaller = replace(job, gpus=fewer.gpus)
    for recompute in RECOMPUTE[RECOMPUTE.index(layout.recompute) :]:
        more = recompute != layout.recompute
        tried = replace(fewer, recompute=recompute, recompute_layers=None) if more else fewer
        if broken_rules(smaller, tried):
            return None
        plan = estimate(smaller, tried)
        if plan.memory.fits:
            return smaller, plan
    return None
