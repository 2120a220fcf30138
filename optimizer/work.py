"""Floors under every run of a job, to leave most of a range of GPU counts out unsearched.

The matrix work alone, spread over all GPUs without loss, bounds every count at once and puts a
range in order. A closer one looks at the shapes that one count divides into: their layers with
traffic inside a stage, and what their pipelines wait for.
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel import terms
from layoutopt.costmodel.axes import NONE, RING, Array, Ints, ints
from layoutopt.costmodel.checkpoint import checkpoint_bytes, run_wall_s
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.rules import divisors
from layoutopt.costmodel.step import jitter
from layoutopt.optimizer import choices
from layoutopt.optimizer.pricing import sequence_parallel
from layoutopt.optimizer.shapes import least_waits, unchunked
from layoutopt.optimizer.space import Space


def least_gpu_seconds(job: Job) -> float:
    """GPU-seconds of one step that no layout of any GPU count goes below.

    The layers' compute, with the degrees and micro_batch where a sequence takes least: stages
    that are unlike, bubbles, traffic, recomputation and the ends only add to it.
    """
    model, training = job.model, job.training
    experts = job.model.moe.experts if job.model.moe else 1
    width = job.model.moe.expert_ffn if job.model.moe and job.software.expert_tensor else 1
    numbers = (model.heads, training.seq_len, experts, training.global_batch, width)
    grids = np.meshgrid(*(ints(divisors(number)) for number in numbers), indexing="ij")
    columns = np.stack([grid.ravel() for grid in grids])
    tp, cp, ep, micro_batch, etp = columns[:, columns[0] % columns[4] == 0]
    layer = terms.layer_terms(job, tp, cp, ep, micro_batch, np.zeros_like(tp), etp=etp)
    each = tp * cp * layer.compute.total / micro_batch
    return float(training.global_batch * model.layers * np.min(each))


def least_wall_s(job: Job, gpu_seconds: float) -> float:
    """Wall time of the run on ``job.gpus`` GPUs that no layout goes below.

    With saves that cost nothing; a run's wall time never falls when a save takes longer.
    """
    return _wall_s(job, gpu_seconds / job.gpus)


def _wall_s(job: Job, seconds: float) -> float:
    fixed = job.software.step_overhead_s + machine(job).reach.optimizer_s
    step = (1 + jitter(job)) * (seconds + fixed)
    return float(run_wall_s(job, step, 0.0, 0.0, checkpoint_bytes(job)))


def least_wall_of_shapes_s(space: Space, *, plain: bool) -> float:
    """Wall time of the run that no layout of the space goes below, whatever it shards, recomputes
    or puts on a stage; ``plain``: see `shapes.least_waits`.

    Each shape with layers that keep everything, as many chunks as a stage has layers, and no
    traffic between stages or replicas.
    """
    job, rows = space.job, unchunked(space)
    _, _, pp, _, _, microbatches, _, _ = rows.T
    chunks = np.where(pp > 1, np.maximum((job.model.layers + 2) // pp, 1), 1)
    if space.keeps("interleave_whole_groups"):
        chunks = np.where(microbatches % pp == 0, chunks, 1)
    waits = np.minimum(
        least_waits(pp, chunks, microbatches, plain=plain),
        least_waits(pp, np.ones_like(chunks), microbatches, plain=plain),
    )
    pipeline = (microbatches / pp + waits) * _once_through_s(space, rows)
    pipeline = pipeline + microbatches * job.software.microbatch_overhead_s
    return _wall_s(job, float(np.min(pipeline)))


def _once_through_s(space: Space, rows: Ints) -> Array:
    """Seconds of one microbatch through all layers and ends of each row of SHAPE."""
    kinds, back = np.unique(rows[:, [0, 1, 4, 6]], axis=0, return_inverse=True)
    tp, cp, micro_batch, code = kinds.T
    held, sp = choices.experts(code), sequence_parallel(space, tp, cp)
    job, none = space.job, np.full_like(tp, NONE)
    layer = np.full(len(kinds), np.inf)
    for kind in {CP_KINDS.index(name) for name in job.software.cp_kinds} | {RING}:
        one = terms.layer_terms(
            job, tp, cp, held.ep, micro_batch, none, etp=held.etp, sp=sp, cp_kind=kind
        )
        layer = np.minimum(layer, one.total)
    ends = terms.embedding_seconds(job, tp, cp, micro_batch).total
    ends = ends + terms.head_seconds(job, tp, cp, micro_batch).total
    found: Array = (job.model.layers * layer + ends)[back.ravel()]
    return found
