"""A job on a scheduler's fragment: nodes under a tree of switches, unequal numbers under each.

The job's nodes stand in rank order in chunks: so many consecutive nodes under one switch of each
tier, and chunks of a tier made of whole chunks of the tier below. Then the usual formulas hold with
a chunk in place of a domain (A14): a group that chunks cut unevenly is priced as it is cut worst.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.rules import divisors
from layoutopt.hardware_profiles.schema import Cluster, Switch
from layoutopt.hardware_profiles.switch_file import tiers

Chunks = tuple[int, ...]
"""Nodes of a chunk, for each tier from the innermost out; each divides the next."""


def roots(cluster: Cluster) -> tuple[Switch, ...]:
    """The outermost switches that a job may have to cross: one over all is none."""
    found = cluster.switches
    while len(found) == 1 and found[0].switches:
        found = found[0].switches
    return found


def held(switch: Switch, chunks: Chunks) -> int:
    """How many chunks of the outermost of ``chunks`` fit under one switch."""
    if not switch.switches:
        return len(switch.nodes) // chunks[-1]
    inner = sum(held(one, chunks[:-1]) for one in switch.switches)
    return inner // (chunks[-1] // chunks[-2])


def fits(cluster: Cluster, chunks: Chunks, nodes: int) -> bool:
    """``nodes`` nodes can be chosen in such chunks."""
    if not chunks:
        return nodes <= sum(len(one.all_nodes) for one in cluster.switches)
    return sum(held(one, chunks) for one in roots(cluster)) * chunks[-1] >= nodes


def best_chunks(cluster: Cluster, nodes: int) -> tuple[Chunks, ...]:
    """The chunks in which ``nodes`` nodes can stand, without those that others make needless.

    Chunks that divide others tier by tier are needless: every group has at least as many ranks in
    a domain of the larger ones, and levels run from fast to slow. In rising order.
    """
    found = [one for one in _all(tiers(cluster.switches), nodes) if fits(cluster, one, nodes)]
    return tuple(
        one
        for one in found
        if not any(
            other != one and all(b % a == 0 for a, b in zip(one, other, strict=True))
            for other in found
        )
    )


def _all(count: int, nodes: int) -> Iterator[Chunks]:
    """Every chain of divisors of ``nodes``, each dividing the next; rising."""
    if count == 0:
        yield ()
        return
    for inner in _all(count - 1, nodes):
        for size in divisors(nodes):
            if size % (inner[-1] if inner else 1) == 0:
                yield (*inner, size)


def placed(job: Job, chunks: Chunks) -> Job:
    """The job with its nodes in such chunks: the levels over switches hold as many GPUs."""
    cluster = job.cluster
    inner = len(cluster.levels) - len(chunks) - 1
    levels = list(cluster.levels)
    for tier, nodes in enumerate(chunks):
        gpus = nodes * cluster.gpus_per_node
        levels[inner + tier] = levels[inner + tier].model_copy(update={"gpus": gpus})
    return replace(job, cluster=cluster.model_copy(update={"levels": tuple(levels)}))


def node_count(job: Job) -> int:
    """Nodes that the job takes, whole ones."""
    return -(-job.gpus // job.cluster.gpus_per_node)


def chunks_of(job: Job) -> Chunks:
    """The chunks of a job that `placed` made, read back from its levels."""
    cluster, count = job.cluster, tiers(job.cluster.switches)
    levels = cluster.levels[len(cluster.levels) - count - 1 : -1]
    return tuple(level.gpus // cluster.gpus_per_node for level in levels)


def best_place(job: Job, layout: Layout) -> Job:
    """The job placed as is best for ``layout``; as it is on a cluster without switches.

    Equal steps go to the largest chunks.
    """
    if not job.cluster.switches:
        return job
    jobs = [placed(job, chunks) for chunks in best_chunks(job.cluster, node_count(job))]
    return min(reversed(jobs), key=lambda one: estimate(one, layout).step.time_s)
