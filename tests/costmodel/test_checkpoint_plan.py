"""The checkpoint plan by hand, and against simulated runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutopt.costmodel.checkpoint import checkpoint_bytes
from layoutopt.costmodel.checkpoint_plan import (
    FLAT_SHARE,
    bytes_by_part,
    checkpoint_plan,
    spare_nodes,
    wall_quantiles_s,
)
from layoutopt.costmodel.elastic import degraded
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.models.catalog import load_model
from layoutopt.costmodel.reliability import interval_wall_s
from layoutopt.costmodel.software import software
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.catalog import load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster
from layoutopt.simulation.failures import Failures, Spares
from layoutopt.simulation.runs import RunPlan, simulate_runs
from layoutopt.simulation.tiers import Tier


def llama(framework: str = "megatron-core", failures_per_gpu_hour: float | None = None) -> Job:
    cluster = default_cluster(load_gpu("h100-sxm-80gb"))
    if failures_per_gpu_hour is not None:
        cluster = cluster.model_copy(update={"failures_per_gpu_hour": failures_per_gpu_hour})
    return Job(
        model=load_model("llama-3.1-70b"),
        cluster=cluster,
        training=Training(seq_len=8192, global_batch=512, tokens=2 * 10**12),
        software=software(framework),
        gpus=2048,
    )


LAYOUT = Layout(tp=8, pp=4, dp=64, micro_batch=1, microbatches=8, recompute="full")


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan"])
def test_the_parts_of_a_checkpoint_are_all_of_it(framework: str) -> None:
    """16-bit weights beside a master copy, or fp32 weights that are one."""
    parts = bytes_by_part(llama(framework))
    assert sum(parts.values()) == checkpoint_bytes(llama(framework))
    assert ("master_weights" in parts) == (framework == "megatron-core")


def test_megatrons_trillion_parameters_weigh_13_8_terabytes() -> None:
    """Narayanan et al. 2021, section 5.10: 13.8 TB, within 3%."""
    model = load_model("megatron-1t")
    job = replace(llama(), model=model, gpus=3072)
    assert sum(bytes_by_part(job).values()) == pytest.approx(13.8e12, rel=0.03)


def test_the_flat_region_ends_where_it_says() -> None:
    job = llama()
    one = estimate(job, LAYOUT)
    plan, save = checkpoint_plan(job, one), one.checkpoint

    def wall(k: int) -> float:
        mtbf = plan.mtbf_s or 0.0
        recovery = plan.recovery_s
        fixed = (save.write_s, save.stall_s, mtbf, recovery)
        return float(interval_wall_s(one.step.time_s, one.run.steps, k, *fixed))

    best, (first, last) = wall(save.interval_steps), plan.flat_steps
    assert first <= save.interval_steps <= last
    assert max(wall(first), wall(last)) <= best * (1 + FLAT_SHARE)
    assert min(wall(first - 1), wall(last + 1)) > best * (1 + FLAT_SHARE)
    half = wall(save.interval_steps // 2)
    assert plan.half_interval_share == pytest.approx(half / best - 1)
    assert plan.double_interval_share == pytest.approx(wall(2 * save.interval_steps) / best - 1)


def test_quantiles_are_those_of_simulated_runs() -> None:
    """4,000 runs of about 130 failures each."""
    job = llama()
    one = estimate(job, LAYOUT)
    plan, save = checkpoint_plan(job, one), one.checkpoint
    tier = Tier("shared", save.interval_steps, save.write_s, save.stall_s, plan.load_s)
    recovery = plan.recovery_s - plan.load_s
    failures = Failures(plan.mtbf_s or 0.0)
    runs = simulate_runs(
        RunPlan(one.step.time_s, one.run.steps, (tier,), failures, 0.0, recovery, None, 0.0, 0.112),
        4000,
    )
    overhead = one.run.wall_time_s - one.run.ideal_s
    for name, share in (("p05", 0.05), ("p50", 0.5), ("p95", 0.95)):
        seen = float(np.quantile(runs.wall_s, share))
        assert plan.wall_time_quantiles_s[name] == pytest.approx(seen, abs=0.06 * overhead)


def test_quantiles_by_hand() -> None:
    """100 failures of 300 s and half of 600 s: E[c^2] = 300^2 + 300 x 600 + 600^2 / 3 = 390,000;
    deviation sqrt(39,000,000) = 6,245 s."""
    found = wall_quantiles_s(1e6, 9e5, 1e4, 300.0, 600.0)
    assert found["p50"] == 1e6
    assert found["p95"] - 1e6 == pytest.approx(1.6449 * 6245, rel=1e-3)
    assert wall_quantiles_s(1e6, 9.95e5, 1e4, 300.0, 600.0)["p05"] == 9.95e5
    assert set(wall_quantiles_s(10.0, 10.0, float("inf"), 0.0, 1.0).values()) == {10.0}


def test_spares_by_hand() -> None:
    """One node in repair in the mean, 100 nodes: P(N > S) is .632 .264 .080 .019 .0037 .00059, so
    S + 100 P is 63, 27.4, 10.0, 4.9, 4.37, 5.06: four. Without failures none."""
    assert spare_nodes(86400.0, 86400.0, 100) == 4
    assert spare_nodes(float("inf"), 86400.0, 100) == 0


def test_spares_that_are_worth_holding_waste_least_in_simulated_runs() -> None:
    """Nodes that stand still or wait, for each number of spares, from simulated runs."""
    nodes, mtbf, repair = 100, 40_000.0, 80_000.0
    told = spare_nodes(mtbf, repair, nodes)
    tier = Tier("shared", 100, 1.0, 1.0, 0.0)

    def wasted(spares: int) -> float:
        plan = RunPlan(10.0, 400_000, (tier,), Failures(mtbf), 0.0, 0.0, spares, repair)
        seen = simulate_runs(plan, 100, seed=2)
        return spares + nodes * float(np.mean(seen.waiting_s / seen.wall_s))

    costs = {spares: wasted(spares) for spares in range(told - 3, told + 4)}
    assert costs[told] <= min(costs.values()) + 1.0
    assert Spares.of(1, told, repair).ready_s.shape == (1, told)


def test_tiers_nest_and_save_more_often_where_it_is_cheaper() -> None:
    plan = checkpoint_plan(llama(), estimate(llama(), LAYOUT))
    host, peer, shared = plan.tiers
    assert host.interval_steps <= peer.interval_steps <= shared.interval_steps
    assert peer.interval_steps % host.interval_steps == 0
    assert shared.interval_steps % peer.interval_steps == 0
    assert host.write_s <= peer.write_s <= shared.write_s
    assert host.bytes_per_node * 256 == pytest.approx(sum(plan.bytes_by_part.values()), rel=1e-6)


def test_nothing_fails() -> None:
    job = llama(failures_per_gpu_hour=0.0)
    plan = checkpoint_plan(job, estimate(job, LAYOUT))
    assert plan.mtbf_s is None
    assert plan.spare_nodes == 0
    assert plan.lost_per_failure_s == 0


def test_fewer_replicas_take_over() -> None:
    """Four nodes of eight are one replica of tp 8 x pp 4: 63 are left. 512 sequences divide by 32
    replicas at most, or the batch shrinks to 63 x 8."""
    job = llama()
    whole = estimate(job, LAYOUT)
    found = degraded(job, whole, nodes_lost=4)
    assert found.gpus_left == 2016
    assert found.same_batch is not None
    assert found.smaller_batch is not None
    same, smaller = found.same_batch, found.smaller_batch
    assert (same.plan.layout.dp, same.plan.layout.microbatches, same.gpus_idle) == (32, 16, 992)
    assert (smaller.plan.layout.dp, smaller.global_batch, smaller.gpus_idle) == (63, 504, 0)
    assert same.speed == pytest.approx(whole.step.time_s / same.plan.step.time_s)
    assert 0.95 < smaller.speed < 1 > same.speed > 0.5


def test_too_few_nodes_are_left() -> None:
    job = llama()
    found = degraded(job, estimate(job, LAYOUT), nodes_lost=253)
    assert found.gpus_left == 24
    assert found.same_batch is found.smaller_batch is None
