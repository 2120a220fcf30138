"""One layout on several pools of GPUs: each pipeline stage stands on one pool.

Everything of a stage is priced as on its own pool's GPUs and links; what joins the stages is the
pipeline (1F1B, one chunk a stage) and the link between pools. Dense models alone: an expert group
is not priced across pools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from layoutopt.costmodel import collectives, memory, once, stage_work
from layoutopt.costmodel.axes import Array, Axes, Ints, axes_of, ints
from layoutopt.costmodel.collectives import Group
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.results import BREAKDOWN
from layoutopt.costmodel.stages import Stages, stages_of
from layoutopt.costmodel.terms import EndTerms, message_bytes
from layoutopt.hardware_profiles.schema import Cluster


def pool_jobs(job: Job) -> dict[str, Job]:
    """The job as on each pool alone: its GPUs, its links, all of its nodes; derived once a job."""
    if "_pools" not in job.__dict__:
        jobs = {
            pool.name: replace(job, cluster=pool, gpus=pool.all_gpus or 0)
            for pool in job.cluster.pools
        }
        object.__setattr__(job, "_pools", jobs)
    found: dict[str, Job] = job.__dict__["_pools"]
    return found


def stages_on(layout: Layout) -> dict[str, int]:
    """How many stages of ``layout`` stand on each pool that it uses, in the order of stages."""
    pools = layout.pools_per_stage or ()
    return {name: pools.count(name) for name in dict.fromkeys(pools)}


def whole_job(job: Job, layout: Layout) -> Job:
    """The job on the GPUs that ``layout`` uses: prices, powers and failure rates are their means.

    GPU and nodes are those of the used pool with the largest nodes: the fewest writers of a
    checkpoint.
    """
    counts = stages_on(layout)
    used = [(pool, counts[pool.name]) for pool in job.cluster.pools if pool.name in counts]
    largest = max((pool for pool, _ in used), key=lambda pool: pool.gpus_per_node)

    def mean(figure: Callable[[Cluster], float | None]) -> float | None:
        values = [(figure(pool), count) for pool, count in used]
        if any(value is None for value, _ in values):
            return None
        return sum((value or 0.0) * count for value, count in values) / layout.pp

    cluster = job.cluster.model_copy(
        update={
            "gpu": largest.gpu,
            "gpus_per_node": largest.gpus_per_node,
            "levels": largest.levels,
            "failures_per_gpu_hour": mean(lambda pool: pool.failures_per_gpu_hour),
            "usd_per_gpu_hour": mean(lambda pool: pool.usd_per_gpu_hour),
            "watts_per_gpu": mean(lambda pool: pool.watts_per_gpu),
        }
    )
    return replace(job, cluster=cluster, gpus=layout.gpus)


def peak_flops(job: Job, layout: Layout) -> float:
    """Dense peak of all GPUs of ``layout`` together, in the job's precision."""
    pools, precision = pool_jobs(job), job.training.precision
    stages = stages_on(layout)
    a_stage = layout.gpus // layout.pp
    return sum(
        a_stage * count * pools[name].cluster.gpu.peak(precision) for name, count in stages.items()
    )


def between_pools(job: Job) -> Group:
    """Two GPUs of different pools: the link, at the share of it that the slower side reaches."""
    link = job.cluster.pool_link
    machines = [machine(one) for one in pool_jobs(job).values()]
    share = min(one.reach.scaleout for one in machines) / job.software.comm_factor
    rate = np.asarray((link.usable_bytes_per_s if link else np.inf) * share)
    setup = max(one.levels[0].setup_s for one in machines)
    latency = np.asarray((link.latency_s if link else 0.0) + setup)
    return Group(np.asarray(2), rate, latency, 0.5 / rate, rate, latency)


@dataclass(frozen=True)
class MixedPipeline:
    """The terms of one layout, stage by stage; layers may still be free (`layers` arguments)."""

    job: Job
    layout: Layout

    @cached_property
    def axes(self) -> Axes:
        """The layout's axes; they are the same on all pools."""
        return axes_of([self.layout])

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """Each stage's job."""
        pools = pool_jobs(self.job)
        return tuple(pools[name] for name in self.layout.pools_per_stage or ())

    @cached_property
    def kinds(self) -> dict[str, stage_work.LayerKind]:
        """One layer and microbatch on each pool that is used."""
        pools = pool_jobs(self.job)
        return {
            name: stage_work.layer_kind(pools[name], self.axes, self.axes.recompute)
            for name in stages_on(self.layout)
        }

    @cached_property
    def layer_s(self) -> Array:
        """Seconds of one layer and microbatch on each stage, shape (stages,)."""
        names = self.layout.pools_per_stage or ()
        return np.array([float(self.kinds[name].total[0]) for name in names])

    @cached_property
    def ends_s(self) -> Array:
        """Embedding on the first stage, loss head and prediction blocks on the last; shape
        (stages,)."""
        seconds: Array = self.ends_of(lambda end: end.total)
        seconds[-1] += self.job.model.mtp_layers * self.layer_s[-1]
        return seconds

    def ends_of(self, part: Callable[[EndTerms], Array]) -> Array:
        """A part of the embedding on the first stage and of the head on the last."""
        seconds = np.zeros(self.layout.pp)
        first, last = self.jobs[0], self.jobs[-1]
        seconds[0] += float(part(stage_work.end_seconds(first, self.axes).parts[0])[0])
        seconds[-1] += float(part(stage_work.end_seconds(last, self.axes).parts[1])[0])
        return seconds

    @cached_property
    def messages_s(self) -> Array:
        """The slower of each stage's boundaries, both directions; shape (stages,)."""
        stages = self.layout.pp
        if stages == 1:
            return np.zeros(1)
        names = self.layout.pools_per_stage or ()
        pools = {
            name: float(stage_work.message_seconds(pool_jobs(self.job)[name], self.axes)[0])
            for name in stages_on(self.layout)
        }
        size = message_bytes(
            self.job,
            self.axes.tp,
            self.axes.cp,
            self.axes.micro_batch,
            sp=self.axes.sequence_parallel,
        )
        sent = collectives.send(between_pools(self.job), size)
        crossing = 2 * float(sent[0]) * (1 - self.job.software.overlap_pp)
        edges = [pools[one] if one == other else crossing for one, other in pairwise(names)]
        return np.maximum([0.0, *edges], [*edges, 0.0])

    @cached_property
    def fixed_s(self) -> Array:
        """What a microbatch costs a stage beside layers and ends; shape (stages,)."""
        return self.messages_s + self.job.software.microbatch_overhead_s

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first stage of each pool: they end the step, and the slowest of them sets its end."""
        names = self.layout.pools_per_stage or ()
        return tuple(names.index(name) for name in stages_on(self.layout))

    def once_s(self, stage: int, layers: Ints) -> tuple[Array, Array]:
        """Exposed once-a-step traffic and the optimizer of a stage with so many layers."""
        layers = ints(layers)[:, None]
        index = np.full_like(layers, stage)
        held = Stages(index, layers, index == 0, index == self.layout.pp - 1)
        job = self.jobs[stage]
        mixed = stage_work.mixed_layers(job, self.axes, held)
        return once.held_once(job, self.axes, held, mixed)

    def allocated_kib(self, layers: Ints) -> Ints:
        """What tensors hold on each stage with so many layers; ``layers`` (stages, any number)."""
        shape = layers.shape
        index = np.broadcast_to(np.arange(shape[0], dtype=np.int64)[:, None], shape).reshape(1, -1)
        flat = Stages(index, layers.reshape(1, -1), index == 0, index == shape[0] - 1)
        names = np.array(self.layout.pools_per_stage or ())
        found = np.zeros(shape, dtype=np.int64)
        for name in stages_on(self.layout):
            parts = memory.stage_bytes(pool_jobs(self.job)[name], self.axes, flat)
            here = names == name
            found[here] = np.broadcast_to(parts.allocated, flat.layers.shape).reshape(shape)[here]
        return found

    @cached_property
    def largest_kib(self) -> Ints:
        """What tensors may hold on each stage, shape (stages,)."""
        return ints([memory.largest_allocation_kib(job) for job in self.jobs])

    @cached_property
    def tied_s(self) -> float:
        """Sum of a shared table's gradient between the first and the last stage."""
        frozen = self.job.training.lora is not None
        if not self.job.model.tied_embeddings or self.layout.pp == 1 or frozen:
            return 0.0
        first, last = self.jobs[0], self.jobs[-1]
        same = first.cluster.name == last.cluster.name
        levels = machine(first).levels
        link = collectives.farthest(levels, first.gpus) if same else between_pools(self.job)
        table = self.job.model.vocab * self.job.model.hidden / self.layout.tp
        return float(collectives.all_reduce(link, self.job.software.gradient_bytes * table))

    @cached_property
    def jitter(self) -> float:
        """Relative time of stragglers (A8), the worst of the used pools'."""
        reach = max(machine(job).reach.jitter for job in self.jobs)
        return reach * float(np.log2(max(1.0, self.layout.gpus / 8)))


def step_breakdown(job: Job, layout: Layout) -> dict[str, float]:
    """Where the seconds of a step go; keys are results.BREAKDOWN.

    m t_max + (sum of t - t_max), as in `pipeline.pipeline_seconds`, then the slowest pool's first
    stage (A20).
    """
    terms, stages = MixedPipeline(job, layout), stages_of(layout, job.model.layers)
    layers, m = stages.layers[0], layout.microbatches
    stage = layers * terms.layer_s + terms.ends_s + terms.fixed_s
    worst = int(np.argmax(stage))
    kind = terms.kinds[(layout.pools_per_stage or ())[worst]]
    once = [terms.once_s(start, layers[start : start + 1]) for start in terms.starts]
    sync, optimizer = max(once, key=lambda pair: float(pair[0][0] + pair[1][0]))
    here = layers[worst] + (job.model.mtp_layers if worst == layout.pp - 1 else 0)
    at_worst = m * float(here)
    ends = terms.ends_of(lambda end: end.compute.total)[worst]
    ends_comm = terms.ends_of(lambda end: end.tp_comm.total)[worst]
    parts = {
        "compute": at_worst * float(kind.terms.compute.total[0]) + m * float(ends),
        "recompute": at_worst * float(kind.terms.recompute[0]),
        "tp_comm": at_worst * float(kind.terms.tp_comm.total[0]) + m * float(ends_comm),
        "cp_comm": at_worst * float(kind.terms.cp_comm.total[0]),
        "ep_comm": 0.0,
        "pp_comm": m * float(terms.messages_s[worst]),
        "pipeline_bubble": float(np.sum(stage) - stage[worst]),
        "dp_comm": at_worst * float(kind.repeated[0]) + float(sync[0]) + terms.tied_s,
        "optimizer": float(optimizer[0]),
    }
    host = m * job.software.microbatch_overhead_s + job.software.step_overhead_s
    parts["other"] = host + terms.jitter * (sum(parts.values()) + host)
    return {name: parts.get(name, 0.0) for name in BREAKDOWN}
