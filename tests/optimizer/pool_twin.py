"""Small pools, and trying everything on them: its own loops, prices by ``estimate``, rules of the
cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.mixed import pool_jobs
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import broken_rules
from layoutopt.hardware_profiles.schema import Cluster, Level
from layoutopt.optimizer.exhaustive import try_everything
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.search import objective_of
from tests.builders import small_cluster


def pool(
    name: str,
    nodes: int,
    speed: float = 1.0,
    memory: float = 8.0,
    per_node: int = 2,
    usd: float = 2.0,
) -> Cluster:
    """Servers of small GPUs that are ``speed`` times as fast as the usual small one."""
    cluster = small_cluster(memory, per_node)
    gpu = cluster.gpu.model_copy(
        update={
            "memory_bytes_per_s": cluster.gpu.memory_bytes_per_s * speed,
            "peak_flops_per_s": {k: v * speed for k, v in cluster.gpu.peak_flops_per_s.items()},
        }
    )
    return cluster.model_copy(
        update={"name": name, "gpu": gpu, "nodes": nodes, "usd_per_gpu_hour": usd}
    )


def mixed(*pools: Cluster, link: float = 25e9) -> Cluster:
    """Those pools on one link."""
    gpus = sum(one.all_gpus or 0 for one in pools)
    between = Level(name="between", gpus=gpus, bytes_per_s_per_gpu_one_way=link, latency_s=1e-5)
    return pools[0].model_copy(update={"name": "mixed", "pools": pools, "pool_link": between})


def cheapest(question: Question) -> Estimate | None:
    """The best layout that fits, of pools alone too; None where none does."""
    priced = (estimate(question.job, layout) for layout in every_layout(question))
    fitting = [plan for plan in priced if plan.memory.fits]
    for job in pool_jobs(question.job).values():
        alone = try_everything(replace(question, job=job)).plan
        fitting += [alone] if alone is not None else []
    return min(fitting, key=lambda plan: objective_of(question, plan.run), default=None)


def every_layout(question: Question) -> Iterator[Layout]:
    """Every legal layout: any part of any pool, pools one after another, any whole layers."""
    job = question.job
    sizes = {pool.name: pool.all_gpus or 0 for pool in job.cluster.pools}
    most, batch = max(sizes.values()), job.training.global_batch
    for tp, cp, dp in product(range(1, most + 1), repeat=3):
        if tp * cp * dp > most:
            continue
        for micro_batch in range(1, batch + 1):
            microbatches, rest = divmod(batch, dp * micro_batch)
            if rest:
                continue
            shape = Layout(tp=tp, cp=cp, dp=dp, micro_batch=micro_batch, microbatches=microbatches)
            for zero_stage, recompute in product(range(4), RECOMPUTE):
                layout = replace(shape, zero_stage=zero_stage, recompute=recompute)
                for placed in _placed(question, layout, sizes):
                    alone = replace(job, gpus=placed.gpus)
                    if not broken_rules(alone, placed):
                        yield placed


def _placed(question: Question, layout: Layout, sizes: dict[str, int]) -> Iterator[Layout]:
    if any(getattr(layout, axis) != value for axis, value in question.fix.items()):
        return
    stage, layers = layout.tp * layout.cp * layout.dp, question.job.model.layers
    for counts in product(*(range(size // stage + 1) for size in sizes.values())):
        pp = sum(counts)
        if not 1 <= pp <= layers:
            continue
        defaults = default_layout_values(question.job.software, tp=layout.tp, pp=pp)
        used = [(name, n) for name, n in zip(sizes, counts, strict=True) if n]
        for order in permutations(used):
            stands = tuple(name for name, n in order for _ in range(n))
            for split in _splits(layers, pp):
                yield replace(
                    layout,
                    pp=pp,
                    sequence_parallel=defaults.sequence_parallel,
                    reshard=defaults.reshard,
                    layers_per_stage=split,
                    pools_per_stage=stands,
                )


def _splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """All ways of writing ``layers`` as a sum of so many numbers of 1 or more."""
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in _splits(layers - first, stages - 1):
            yield (first, *rest)
