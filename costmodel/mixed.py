"""One layout on several pools of GPUs: each pipeline stage stands on one pool.

Everything of a stage is priced as on its own pool's GPUs and links; what joins the stages is the
pipeline (1F1B, one chunk a stage) and the link between pools, by the formulas of one pool
(pipeline.py, once.py). Dense models alone: an expert group is not priced across pools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from layoutopt.costmodel import collectives, memory, once, placement, stage_work
from layoutopt.costmodel.axes import Array, Axes, Ints, axes_of, ints
from layoutopt.costmodel.collectives import Group
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.pipeline import Work, one_f_one_b_seconds
from layoutopt.costmodel.results import BREAKDOWN
from layoutopt.costmodel.stages import Stages, given_stages, stages_of
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


def whole_pool(job: Job, layout: Layout) -> Job | None:
    """The job on one pool alone, where all stages stand on it and take all of its GPUs: there a
    layout is priced as on any cluster of one type, with all that has a price there."""
    names = set(layout.pools_per_stage or ())
    alone = pool_jobs(job).get(names.pop()) if len(names) == 1 else None
    return alone if alone is not None and alone.gpus == layout.gpus else None


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
    """Two GPUs of different pools: the link, at the share of it that messages of the slower side
    reach."""
    link = job.cluster.pool_link
    machines = [machine(one) for one in pool_jobs(job).values()]
    share = min(one.reach.scaleout for one in machines)
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
        return self.ends_of(lambda end: end.total) + self.predicting * self.layer_s

    def ends_of(self, part: Callable[[EndTerms], Array]) -> Array:
        """A part of the embedding on the first stage and of the head on the last."""
        seconds = np.zeros(self.layout.pp)
        first, last = self.jobs[0], self.jobs[-1]
        seconds[0] += float(part(stage_work.end_seconds(first, self.axes).parts[0])[0])
        seconds[-1] += float(part(stage_work.end_seconds(last, self.axes).parts[1])[0])
        return seconds

    @cached_property
    def forward_s(self) -> Array:
        """The forward pass of one layer and microbatch on each stage, shape (stages,)."""
        names = self.layout.pools_per_stage or ()
        return np.array([float(self.kinds[name].terms.forward[0]) for name in names])

    @cached_property
    def predicting(self) -> Ints:
        """Multi-token-prediction blocks on each stage, shape (stages,)."""
        blocks = np.zeros(self.layout.pp, dtype=np.int64)
        blocks[-1] = self.job.model.mtp_layers
        return blocks

    @cached_property
    def edges_s(self) -> Array:
        """There and back over each stage boundary for one microbatch, on the wire; shape
        (stages - 1,)."""
        names = self.layout.pools_per_stage or ()
        a, sp = self.axes, self.axes.sequence_parallel
        pools = pool_jobs(self.job)
        size = message_bytes(self.job, a.tp, a.cp, a.micro_batch, sp=sp)
        inside = {
            name: collectives.send(placement.boundary(pools[name], a.tp, a.cp, a.pp), size)
            for name in stages_on(self.layout)
        }
        across = collectives.send(between_pools(self.job), size)
        edges = [inside[one] if one == other else across for one, other in pairwise(names)]
        return np.array([2 * float(sent[0]) for sent in edges])

    @cached_property
    def messages_s(self) -> Array:
        """What holds a stage up at the slower of its boundaries; shape (stages,)."""
        edges = (1 - self.job.software.overlap_pp) * self.edges_s
        return np.maximum([0.0, *edges], [*edges, 0.0])

    @cached_property
    def late_s(self) -> float:
        """Messages that could hide and have nothing to hide behind while the pipeline fills: one
        over each boundary (`pipeline.late_messages`)."""
        return self.job.software.overlap_pp * float(np.sum(self.edges_s))

    @cached_property
    def fixed_s(self) -> Array:
        """What a microbatch costs a stage beside layers and ends; shape (stages,)."""
        return self.messages_s + self.job.software.microbatch_overhead_s

    @cached_property
    def alike(self) -> bool:
        """Whether all stages stand on equal GPUs and links, as on one pool."""
        clusters = [job.cluster for job in self.jobs]
        kinds = [(one.gpu, one.gpus_per_node, one.levels) for one in clusters]
        return all(kind == kinds[0] for kind in kinds)

    def held_once(self, stage: int, layers: Ints) -> tuple[Array, Array]:
        """What a stage with so many layers has left of its once-a-step traffic when its own passes
        are done, and its optimizer step."""
        layers = ints(layers)[:, None]
        index = np.full_like(layers, stage)
        held = Stages(index, layers, index == 0, index == self.layout.pp - 1)
        job, blocks = self.jobs[stage], self.job.model.mtp_layers
        kind = self.kinds[(self.layout.pools_per_stage or ())[stage]]
        mixed = stage_work.Mixed(
            (kind,),
            (layers,),
            (self.job.model.layers,),
            blocks * held.last.astype(np.int64),
            blocks,
        )
        left = once.left_alone(job, self.axes, held, mixed)
        return left, once.longest_optimizer(job, self.axes, held)

    def once_s(self, layers: Ints) -> tuple[float, float]:
        """What the whole step waits for of them, as in `once.held_once`: the traffic of the stage
        that has most left when the pipeline is done, and the longest optimizer step."""
        each = [self.held_once(s, layers[s : s + 1]) for s in range(self.layout.pp)]
        left, optimizer = (np.concatenate(values) for values in zip(*each, strict=True))
        if self.alike and once.splits_alike(self.job, given_stages(tuple(layers.tolist()))):
            return float(left[0]), float(optimizer.max())
        work = layers * self.layer_s + self.ends_s
        return float(once.last_left(self.axes, left, work)[0]), float(optimizer.max())

    def pipeline_s(self, layers: Ints) -> float:
        """All microbatches through the stages, `pipeline.one_f_one_b_seconds`."""
        stage = layers * self.layer_s + self.ends_s + self.fixed_s
        if self.layout.pp == 1:
            return self.layout.microbatches * float(stage[0])
        work = Work(
            stage=stage[None],
            forward=((layers + self.predicting) * self.forward_s)[None],
            before=(np.cumsum(stage) - stage)[None],
            place=np.arange(self.layout.pp)[None],
            everything=np.sum(stage, keepdims=True),
        )
        pp, microbatches = ints(self.layout.pp), ints(self.layout.microbatches)
        return float(one_f_one_b_seconds(work, pp, microbatches)[0])

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

    `step.step_parts` with each stage's own machine: layers, ends and messages of the slowest stage,
    what it waits for, and what the last stage to be done has left of its traffic (A20).
    """
    terms, stages = MixedPipeline(job, layout), stages_of(layout, job.model.layers)
    layers, m = stages.layers[0], layout.microbatches
    stage = layers * terms.layer_s + terms.ends_s + terms.fixed_s
    worst = int(np.argmax(stage))
    kind = terms.kinds[(layout.pools_per_stage or ())[worst]]
    sync, optimizer = terms.once_s(layers)
    at_worst = m * float(layers[worst] + terms.predicting[worst])
    ends = terms.ends_of(lambda end: end.compute.total)[worst]
    ends_comm = terms.ends_of(lambda end: end.tp_comm.total)[worst]
    parts = {
        "compute": at_worst * float(kind.terms.compute.total[0]) + m * float(ends),
        "recompute": at_worst * float(kind.terms.recompute[0]),
        "tp_comm": at_worst * float(kind.terms.tp_comm.total[0]) + m * float(ends_comm),
        "cp_comm": at_worst * float(kind.terms.cp_comm.total[0]),
        "ep_comm": 0.0,
        "pp_comm": m * float(terms.messages_s[worst]) + terms.late_s,
        "pipeline_bubble": terms.pipeline_s(layers) - m * float(stage[worst]),
        "dp_comm": at_worst * float(kind.repeated[0]) + sync + terms.tied_s,
        "optimizer": optimizer,
    }
    host = m * job.software.microbatch_overhead_s + job.software.step_overhead_s
    parts["other"] = host + terms.jitter * (sum(parts.values()) + host)
    return {name: parts.get(name, 0.0) for name in BREAKDOWN}
