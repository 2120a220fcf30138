"""The planner's napkin: 6 N D at 40% of the dense peak, whatever the layout."""

from __future__ import annotations

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job

MFU = 0.40
"""Share of the dense peak that planners write down for a well-tuned run."""


def napkin_step_s(job: Job) -> float:
    """Seconds a step takes: 6 * active parameters * tokens / (GPUs * 0.40 * dense peak).

    6 FLOPs a parameter and token: 2 forward, 4 backward (Kaplan 2020, section 2.1).
    """
    flops = 6 * count(job.model).active * job.training.tokens_per_step
    peak = job.cluster.gpu.peak(job.training.precision)
    return flops / (job.gpus * MFU * peak)
