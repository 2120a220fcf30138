"""What a better machine would be worth: the question asked again with one part of it improved.

Each answer is proved like the first one, and may have another layout: a tenth more bandwidth can
be worth nothing to the layout that was chosen without it, and a lot to another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from layoutopt.costmodel.results import Estimate
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.optimizer import orders
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.search import proved
from layoutopt.units import GIB, format_bytes

MORE_BANDWIDTH = 0.1
MORE_MEMORY_BYTES = 8 * GIB
LESS_FAILURES = 0.5


@dataclass(frozen=True)
class Worth:
    """One improvement, and the best run with it."""

    change: str
    estimate: Estimate | None
    """None: time was up before it was proved."""
    saved_s: float | None
    """Wall time that it saves; 0 where nothing is faster with it."""


def sensitivity(question: Question, plan: Estimate, budget: Budget) -> tuple[Worth, ...]:
    """What each improvement saves over ``plan``, the best layout of ``question`` as it is.

    A tenth more bandwidth on each level of the network, 8 GiB more memory per GPU, half the
    failures. Searches share what is left of ``budget``.
    """
    ends_at = time.monotonic() + budget.seconds
    return tuple(
        _worth(change, _with(question, plan, cluster), plan, budget, ends_at)
        for change, cluster in _improved(question.job.cluster)
    )


def _improved(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    for number, level in enumerate(cluster.levels):
        rate = level.bytes_per_s_per_gpu_one_way * (1 + MORE_BANDWIDTH)
        levels = list(cluster.levels)
        levels[number] = level.model_copy(update={"bytes_per_s_per_gpu_one_way": rate})
        name = f"{MORE_BANDWIDTH:.0%} more {level.name} bandwidth"
        yield name, cluster.model_copy(update={"levels": tuple(levels)})
    memory = cluster.gpu.memory_bytes + MORE_MEMORY_BYTES
    gpu = cluster.gpu.model_copy(update={"memory_bytes": memory})
    name = f"{format_bytes(MORE_MEMORY_BYTES)} more memory per GPU"
    yield name, cluster.model_copy(update={"gpu": gpu})
    rate = cluster.failures_per_gpu_hour * LESS_FAILURES
    yield "half the failures", cluster.model_copy(update={"failures_per_gpu_hour": rate})


def _with(question: Question, plan: Estimate, cluster: Cluster) -> Question:
    """The question at the plan's GPU count, for time, on another cluster."""
    job = replace(question.job, gpus=plan.layout.gpus, cluster=cluster)
    return replace(
        question,
        job=job,
        counts=None,
        batches=None,
        objective="time",
        deadline_s=None,
        budget_usd=None,
    )


def _worth(
    change: str, question: Question, plan: Estimate, budget: Budget, ends_at: float
) -> Worth:
    now = time.monotonic()
    space = orders.first_space(question)
    if space is None or now >= ends_at:
        return Worth(change, None, None)
    wall = plan.run.wall_time_s
    _, ended = proved(space, replace(budget, seconds=ends_at - now), now, wall)
    if not ended.proved:
        return Worth(change, None, None)
    best = ended.best.estimate if ended.best else plan
    return Worth(change, best, max(0.0, wall - best.run.wall_time_s))
