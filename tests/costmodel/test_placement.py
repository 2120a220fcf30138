"""The two orders of the axes, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutopt.costmodel import placement
from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.collectives import group, nested_group
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import PIPELINE_INSIDE, PIPELINE_LAST, Layout
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.software import software
from tests.costmodel.cases import EXPERTS, NETWORK, NETWORK_S, NVLINK, NVLINK_S, SMALL, job

INSIDE = placement.ordered(job(gpus=16), PIPELINE_INSIDE)
ONE = ints(1)


def test_an_order_without_a_price_counts_as_the_usual_one() -> None:
    assert placement.ordered(job(), "cp-tp-ep-dp-pp").axis_order == PIPELINE_LAST
    assert placement.ordered(job(), PIPELINE_LAST) is not None


def test_replicas_stand_together_or_a_pipeline_apart() -> None:
    """2 replicas of 8 stages on two servers: both in one server, or one in each of two."""
    usual = placement.replicas(job(gpus=16), ints(2), ONE, ints(8), 1)
    inside = placement.replicas(INSIDE, ints(2), ONE, ints(8), 1)
    assert (usual.bytes_per_s[0], usual.latency_s[0]) == (NVLINK, NVLINK_S)
    assert (inside.bytes_per_s[0], inside.latency_s[0]) == (NETWORK, NETWORK_S)


def test_stages_stand_apart_or_together() -> None:
    usual = placement.boundary(job(gpus=16), ONE, ONE, ints(8))
    inside = placement.boundary(INSIDE, ONE, ONE, ints(8))
    longer = placement.boundary(INSIDE, ints(2), ONE, ints(8))
    assert float(usual.bytes_per_s) == NETWORK
    assert (inside.bytes_per_s[0], inside.latency_s[0]) == (NVLINK, NVLINK_S)
    assert longer.bytes_per_s[0] == NETWORK  # 2 x 8 ranks: some stage leaves the server


def test_context_ranks_of_a_replica_stay_near() -> None:
    """cp 2 x dp 2 with a pipeline of 8 between the replicas: two of four ranks in a server, so
    that the ring leaves it over two adapters; 4 x 1/2 hops inside, the rest between servers."""
    ranks = placement.replicas(INSIDE, ints(4), ONE, ints(8), ints(2))
    assert ranks.bytes_per_s[0] == 2 * NETWORK
    assert ranks.latency_s[0] == pytest.approx(2 * NVLINK_S + NETWORK_S)


def test_a_nested_group_without_a_gap_is_a_plain_one() -> None:
    levels = machine(job()).levels
    near, far = ints([1, 2, 4, 8, 2]), ints([4, 4, 4, 2, 16])
    nested = nested_group(levels, near, ints(2), far, near * 2)
    plain = group(levels, near * far, ints(2))
    for name in ("bytes_per_s", "latency_s", "exchange_s_per_byte", "edge_bytes_per_s"):
        assert np.array_equal(getattr(nested, name), getattr(plain, name))


def test_an_order_moves_traffic_and_nothing_else() -> None:
    layout = Layout(pp=8, dp=2, microbatches=16)
    usual = estimate(job(gpus=16), layout)
    inside = estimate(job(gpus=16), replace(layout, axis_order=PIPELINE_INSIDE))
    changed = {
        name
        for name, seconds in usual.step.breakdown_s.items()
        if inside.step.breakdown_s[name] != seconds
    }
    assert {"pp_comm", "dp_comm"} <= changed <= {"pp_comm", "dp_comm", "pipeline_bubble", "other"}
    assert inside.step.breakdown_s["pp_comm"] < usual.step.breakdown_s["pp_comm"]
    assert inside.step.breakdown_s["dp_comm"] > usual.step.breakdown_s["dp_comm"]
    assert inside.memory == usual.memory
    assert inside.warnings == ()


def test_which_orders_a_framework_runs() -> None:
    layout = Layout(pp=2, dp=8, microbatches=2, zero_stage=0, axis_order=PIPELINE_INSIDE)
    for name, rules in (("generic", []), ("megatron", []), ("torchtitan", ["framework_orders"])):
        asked = job(gpus=16, software=software(name), global_batch=16)
        assert [one.rule for one in broken_rules(asked, layout)] == rules


def test_megatron_keeps_stages_whole() -> None:
    """Attention and experts have to have equally many replicas: cp 1, or ep x etp = tp x cp."""
    megatron = software("megatron")
    inside = Layout(axis_order=PIPELINE_INSIDE, pp=2, dp=4, microbatches=2)
    dense = job(SMALL, gpus=16, software=megatron, global_batch=8)
    experts = job(EXPERTS, gpus=16, software=megatron, global_batch=8)
    for asked, layout, fine in (
        (dense, replace(inside, cp=2), False),
        (dense, replace(inside, tp=2), True),
        (experts, replace(inside, cp=2, ep=4), False),
        (experts, replace(inside, cp=2, ep=2), True),
    ):
        found = [one.rule for one in broken_rules(asked, layout)]
        assert found == ([] if fine else ["order_keeps_stages_whole"])
