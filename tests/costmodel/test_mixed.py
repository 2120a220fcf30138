"""One layout on several pools, by hand and against the plain cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.mixed import MixedPipeline, between_pools, pool_jobs, whole_job
from layoutopt.costmodel.rules import broken_rules
from layoutopt.hardware_profiles.schema import Cluster, Level
from tests.costmodel.cases import (
    CLUSTER,
    EXPERTS,
    NETWORK,
    NETWORK_S,
    NVLINK,
    NVLINK_S,
    SMALL,
    job,
    soft,
)

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


@pytest.mark.parametrize("split", [(6, 6), (5, 7), (9, 3)])
def test_a_layout_on_one_pool_is_priced_as_on_that_pool_alone(split: tuple[int, int]) -> None:
    """32 GPUs of the fast pool, all of it: the same figures, summed in another order."""
    layout = replace(BOTH, pp=2, layers_per_stage=split, pools_per_stage=("fast", "fast"))
    alone = estimate(job(cluster=POOLS[0], gpus=32), replace(layout, pools_per_stage=None))
    mixed = estimate(asked(), layout)
    assert mixed.step.breakdown_s == pytest.approx(alone.step.breakdown_s)
    assert mixed.step.mfu == pytest.approx(alone.step.mfu)
    assert mixed.run.wall_time_s == pytest.approx(alone.run.wall_time_s)
    assert mixed.run.cost_usd == pytest.approx(alone.run.cost_usd)
    assert [s.reserved for s in mixed.memory.stages] == [s.reserved for s in alone.memory.stages]


def stage_times() -> tuple[list[float], list[float]]:
    """One microbatch on each stage of BOTH without messages, and what its messages add."""
    terms = MixedPipeline(asked(), BOTH)
    fast, slow = (float(terms.kinds[name].total[0]) for name in ("fast", "slow"))
    work = [5 * fast + float(terms.ends_s[0]), 5 * fast, 2 * slow + float(terms.ends_s[2])]
    # 8,192 bytes there and back: inside the fast pool over its network, across over the link.
    inside, across = 2 * (NETWORK_S + 8192 / NETWORK), 2 * (1e-4 + 8192 / LINK)
    return work, [inside, across, across]


def test_the_pipeline_by_hand() -> None:
    """The longest path through 8 microbatches on 3 stages, over each stage in turn."""
    terms, (work, messages) = MixedPipeline(asked(), BOTH), stage_times()
    a, b, c = (w + message for w, message in zip(work, messages, strict=True))
    forward = [5 * float(terms.kinds["fast"].terms.forward[0])] * 2
    paths = [
        8 * a + max(0.0, b + c - 2 * forward[0], 2 * (b + c) - 2 * a),
        a + 8 * b + max(0.0, c - forward[1], 2 * c - b),
        a + b + 8 * c,
    ]
    assert terms.pipeline_s(ints(BOTH.layers_per_stage)) == pytest.approx(max(paths))
    parts = estimate(asked(), BOTH).step.breakdown_s
    in_pipeline = ("compute", "tp_comm", "pp_comm", "pipeline_bubble")
    assert sum(parts[name] for name in in_pipeline) == pytest.approx(max(paths))


@pytest.mark.parametrize("slower", [1.0, 1000.0])
def test_the_step_waits_for_the_stage_that_has_most_traffic_left(slower: float) -> None:
    """Parameters on a GPU: 5 layers of 30,848 (half of 61,568 but the norms' 128) and a table of
    32,768; 5 layers; 2 layers, a table and a norm. 8 ranks reduce 4 bytes of each and gather 2,
    with 7 hops. The last stage is done earlier by what the two before it
    take, and counts where its network is slow enough."""
    slow = part("slow", 2, 0.5)
    levels = (
        slow.levels[0],
        slow.levels[1].model_copy(update={"bytes_per_s_per_gpu_one_way": NETWORK / slower}),
    )
    pools = (POOLS[0], slow.model_copy(update={"levels": levels}))
    on = job(cluster=MIXED.model_copy(update={"pools": pools}), gpus=48)
    a_layer = (61_568 - 128) / 2 + 128
    held = [5 * a_layer + 32_768, 5 * a_layer, 2 * a_layer + 32_768 + 64]
    # tp 2: a ring leaves a server over the adapters of its four ranks there.
    networks = [NETWORK, NETWORK, NETWORK / slower]
    hops = 6 * NVLINK_S + 1 * NETWORK_S
    wires = [
        2 * hops + 7 / 8 * (4 + 2) * n / min(NVLINK, 4 * rate)
        for n, rate in zip(held, networks, strict=True)
    ]
    terms, (work, _) = MixedPipeline(on, BOTH), stage_times()
    left = [float(terms.held_once(s, ints(n))[0][0]) for s, n in enumerate((5, 5, 2))]
    assert left == pytest.approx(wires)
    starts = [0.0, work[0], work[0] + work[1]]
    most = max(one - start for one, start in zip(left, starts, strict=True))
    sync, optimizer = terms.once_s(ints(BOTH.layers_per_stage))
    assert sync == pytest.approx(most)
    assert (most > left[0]) == (slower > 1)
    assert optimizer == max(
        float(terms.held_once(s, ints(n))[1][0]) for s, n in enumerate((5, 5, 2))
    )


def test_messages_that_could_hide_have_nothing_to_hide_behind_at_first() -> None:
    """Half of each message hides, but once over each of two boundaries, there and back."""
    half = job(cluster=MIXED, gpus=48, software=soft(overlap_pp=0.5))
    _, (inside, across, _) = stage_times()
    assert MixedPipeline(half, BOTH).late_s == pytest.approx((inside + across) / 2)
    assert MixedPipeline(half, BOTH).messages_s == pytest.approx(
        [inside / 2, across / 2, across / 2]
    )
    assert MixedPipeline(asked(), BOTH).late_s == 0.0


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
