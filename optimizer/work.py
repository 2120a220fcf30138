"""A floor under every run of a job: the matrix work alone, spread over all GPUs without loss.

The same work bounds every GPU count at once, so that a range of counts can be put in order, and
most of it left out, before any of it is searched.
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel import terms
from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.checkpoint import checkpoint_bytes, run_wall_s
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.rules import divisors
from layoutopt.costmodel.step import jitter


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
    step = (1 + jitter(job)) * (gpu_seconds / job.gpus + job.software.step_overhead_s)
    return float(run_wall_s(job, step, 0.0, 0.0, checkpoint_bytes(job)))
