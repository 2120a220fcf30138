"""One layout on several pools, by hand and against the plain cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.costmodel.axes import Ints, ints
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.mixed import MixedPipeline, between_pools, pool_jobs, whole_job
from layoutopt.costmodel.rules import broken_rules
from layoutopt.hardware_profiles.schema import Cluster, Level
from tests.costmodel.cases import CLUSTER, EXPERTS, SMALL, job

LINK = 1e9


def part(name: str, nodes: int, speed: float = 1.0, **changes: object) -> Cluster:
    gpu = CLUSTER.gpu.model_copy(
        update={
            "peak_flops_per_s": {k: v * speed for k, v in CLUSTER.gpu.peak_flops_per_s.items()},
            "memory_bytes_per_s": CLUSTER.gpu.memory_bytes_per_s * speed,
        }
    )
    return CLUSTER.model_copy(update={"name": name, "gpu": gpu, "nodes": nodes, **changes})


POOLS = (part("fast", 4, usd_per_gpu_hour=4.0), part("slow", 2, 0.5, usd_per_gpu_hour=1.0))
MIXED = CLUSTER.model_copy(
    update={
        "pools": POOLS,
        "pool_link": Level(name="link", gpus=48, bytes_per_s_per_gpu_one_way=LINK, latency_s=1e-4),
    }
)
BOTH = Layout(
    tp=2,
    pp=3,
    dp=8,
    microbatches=8,
    layers_per_stage=(5, 5, 2),
    pools_per_stage=("fast", "fast", "slow"),
)


def asked(**changes: object) -> Job:
    return job(cluster=MIXED, gpus=48, **changes)  # type: ignore[arg-type]


def test_a_layout_on_one_pool_is_priced_as_on_that_pool_alone() -> None:
    """32 GPUs of the fast pool, all of it: the same figures, summed in another order. Alone, the
    stage with the loss head has the longest optimizer step: it holds a norm more (A20)."""
    layout = replace(BOTH, pp=2, layers_per_stage=(6, 6), pools_per_stage=("fast", "fast"))
    alone = estimate(job(cluster=POOLS[0], gpus=32), replace(layout, pools_per_stage=None))
    mixed = estimate(asked(), layout)
    told, whole = dict(mixed.step.breakdown_s), dict(alone.step.breakdown_s)
    assert told.pop("optimizer") == pytest.approx(whole.pop("optimizer"), rel=1e-3)
    assert told == pytest.approx(whole)
    assert mixed.step.mfu == pytest.approx(alone.step.mfu, rel=1e-4)
    assert mixed.run.wall_time_s == pytest.approx(alone.run.wall_time_s, rel=1e-4)
    assert mixed.run.cost_usd == pytest.approx(alone.run.cost_usd, rel=1e-4)
    assert [s.reserved for s in mixed.memory.stages] == [s.reserved for s in alone.memory.stages]


def test_the_pipeline_by_hand() -> None:
    """m t_max + the other stages once; a stage is its layers, its end and its slower boundary."""
    terms, plan = MixedPipeline(asked(), BOTH), estimate(asked(), BOTH)
    fast, slow = (float(terms.kinds[name].total[0]) for name in ("fast", "slow"))
    assert slow > fast
    crossing = 2 * float(terms.messages_s[1]) / 2
    times = [
        5 * fast + float(terms.ends_s[0]) + float(terms.messages_s[0]),
        5 * fast + crossing,
        2 * slow + float(terms.ends_s[2]) + crossing,
    ]
    once = max(float(sum(part[0] for part in terms.once_s(s, terms_layers(s)))) for s in (0, 2))
    assert plan.step.time_s == pytest.approx(7 * max(times) + sum(times) + once)


def terms_layers(stage: int) -> Ints:
    return ints([(BOTH.layers_per_stage or ())[stage]])


def test_messages_between_pools_take_their_link() -> None:
    """tokens 128 x hidden 64 x 2 bytes / tp 2 = 8,192 bytes, there and back, over 1 GB/s."""
    terms = MixedPipeline(asked(), BOTH)
    link = between_pools(asked())
    assert float(link.bytes_per_s) == LINK
    assert terms.messages_s[1] == pytest.approx(2 * (1e-4 + 8192 / LINK))
    assert terms.messages_s[1] == terms.messages_s[2] > terms.messages_s[0]


def test_prices_are_of_the_gpus_that_are_used() -> None:
    """Two stages at 4 dollars, one at 1: 3 dollars a GPU-hour on 48 GPUs."""
    whole = whole_job(asked(), BOTH)
    assert whole.gpus == 48
    assert whole.cluster.usd_per_gpu_hour == pytest.approx(3.0)
    run = estimate(asked(), BOTH).run
    assert run.cost_usd == pytest.approx(3.0 * 48 * run.wall_time_s / 3600)


def test_each_stage_has_its_own_pools_memory() -> None:
    small = part("slow", 2, 0.5)
    gpu = small.gpu.model_copy(update={"memory_bytes": small.gpu.memory_bytes // 2})
    cluster = MIXED.model_copy(update={"pools": (POOLS[0], small.model_copy(update={"gpu": gpu}))})
    memory = estimate(job(cluster=cluster, gpus=48), BOTH).memory
    assert [stage.pool for stage in memory.stages] == ["fast", "fast", "slow"]
    assert memory.stages[2].usable_bytes is not None
    assert memory.stages[0].usable_bytes is not None
    assert memory.stages[2].usable_bytes < memory.stages[0].usable_bytes


def test_pools_are_jobs_of_their_own() -> None:
    jobs = pool_jobs(asked())
    assert {name: one.gpus for name, one in jobs.items()} == {"fast": 32, "slow": 16}


@pytest.mark.parametrize(
    ("layout", "rule", "words"),
    [
        (replace(BOTH, pools_per_stage=None), "stages_stand_on_pools", "lists 0 stages"),
        (replace(BOTH, pools_per_stage=("fast",)), "stages_stand_on_pools", "lists 1 stages"),
        (replace(BOTH, pools_per_stage=("fast", "fast", "a")), "stages_stand_on_pools", "'a'"),
        (replace(BOTH, pools_per_stage=("slow", "slow", "fast")), "stages_fit_their_pool", "32"),
        (replace(BOTH, axis_order="tp-cp-ep-pp-dp"), "pools_run_plain_pipelines", "axis_order"),
        (replace(BOTH, schedule="gpipe"), "pools_run_plain_pipelines", "gpipe"),
    ],
)
def test_what_a_layout_on_pools_has_to_keep_to(layout: Layout, rule: str, words: str) -> None:
    found = {one.rule: one.message for one in broken_rules(asked(), layout)}
    assert rule in found
    assert words in found[rule]
    assert not broken_rules(asked(), BOTH)


def test_experts_and_plain_clusters_have_no_pools() -> None:
    rules = [one.rule for one in broken_rules(asked(model=EXPERTS), BOTH)]
    assert "pools_run_plain_pipelines" in rules
    plain = [one.rule for one in broken_rules(job(SMALL, gpus=48), BOTH)]
    assert "stages_stand_on_pools" in plain
