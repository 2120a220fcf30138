"""The order of the axes as a decision. Random questions against trying everything: as always
(test_random_questions), since the twin tries both orders."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.costmodel.layout import PIPELINE_INSIDE, PIPELINE_LAST
from layoutopt.optimizer.orders import orders_of
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.search import search
from tests.builders import small_cluster, small_model, small_question

SLOW_NETWORK = replace(
    small_question(
        small_model(layers=8), gpus=8, batch=1024, cluster=small_cluster(network_bytes_per_s=1e9)
    ),
    fix={"tp": 1, "cp": 1, "pp": 4, "dp": 2},
)
"""Two servers of four GPUs: a pipeline of four fits into one."""


def step_s(question: Question) -> float:
    plan = search(question).plan
    assert plan is not None
    return plan.step.time_s


def test_a_pipeline_stays_in_a_server_where_messages_are_dear() -> None:
    outcome = search(SLOW_NETWORK)
    assert outcome.plan is not None
    assert outcome.plan.layout.axis_order == PIPELINE_INSIDE
    usual = replace(SLOW_NETWORK, fix={**SLOW_NETWORK.fix, "axis_order": PIPELINE_LAST})
    assert outcome.plan.step.time_s < 0.9 * step_s(usual)
    assert outcome.search.candidates == 2 * search(usual).search.candidates


def test_a_fixed_order_is_kept() -> None:
    for order in (PIPELINE_LAST, PIPELINE_INSIDE):
        fixed = replace(SLOW_NETWORK, fix={**SLOW_NETWORK.fix, "axis_order": order})
        plan = search(fixed).plan
        assert plan is not None
        assert plan.layout.axis_order == order


def test_only_orders_that_a_framework_runs_are_searched() -> None:
    assert orders_of(small_question(framework="torchtitan")) == (PIPELINE_LAST,)
    assert orders_of(small_question(framework="megatron-core")) == (PIPELINE_LAST, PIPELINE_INSIDE)


def test_more_bandwidth_is_never_slower() -> None:
    steps = [
        step_s(small_question(gpus=8, batch=64, cluster=small_cluster(network_bytes_per_s=rate)))
        for rate in (1e8, 1e9, 1e10, 1e11)
    ]
    assert steps == sorted(steps, reverse=True)
