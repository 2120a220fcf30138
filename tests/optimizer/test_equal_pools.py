"""Two pools of equal GPUs, nodes and links are one cluster: equal prices, and no slower answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.pool_rules import broken_pool_rules
from layoutopt.costmodel.software import software
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.optimizer.exhaustive import every_layout
from layoutopt.optimizer.question import USUAL, Question
from layoutopt.optimizer.search import search
from tests.builders import NARROW, small_cluster, small_model, small_question
from tests.conftest import FULL
from tests.optimizer.drawn import drawn
from tests.optimizer.pool_twin import mixed

PRICES = 1000 if FULL else 150
ANSWERS = 60 if FULL else 6
PER_NODE = 2


def pair(nodes: tuple[int, int], network: float = 50e9, memory: float = 8.0) -> Cluster:
    """Two pools of the same servers on one network."""
    one = small_cluster(memory, PER_NODE, network)
    first, second = nodes
    named = {"a": first, "b": second}
    whole = mixed(
        *(one.model_copy(update={"name": name, "nodes": n}) for name, n in named.items()),
        link=network,
    )
    link = one.levels[-1].model_copy(update={"name": "between", "gpus": whole.all_gpus})
    return whole.model_copy(update={"pool_link": link})


@st.composite
def priced(draw: st.DrawFn) -> tuple[Question, Layout]:
    """A question on two pools, and a layout with stages on both."""
    tp, cp, dp = (draw(st.sampled_from(values)) for values in ((1, 2, 4), (1, 1, 2), (1, 2, 3, 4)))
    stages = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    split = tuple(draw(st.integers(1, 6)) for _ in range(sum(stages)))
    if draw(st.integers(0, 3)) == 0:
        split = (split[0],) * len(split)
    microbatches, micro_batch = draw(st.integers(1, 12)), draw(st.sampled_from((1, 2)))
    # Of one server alone messages stay inside, where those of one cluster take the farthest pair.
    nodes = tuple(max(2, -(-count * tp * cp * dp // PER_NODE)) for count in stages)
    model = small_model(
        layers=sum(split),
        vocab=draw(st.sampled_from((1024, 64_000))),
        tied_embeddings=draw(st.booleans()),
        mtp_layers=draw(st.sampled_from((0, 0, 1))),
    )
    question = small_question(
        model,
        gpus=sum(stages) * tp * cp * dp,
        batch=dp * micro_batch * microbatches,
        cluster=pair((nodes[0], nodes[1]), draw(st.sampled_from((1e8, 1e9, 50e9)))),
        framework=draw(st.sampled_from(("generic", "megatron-core", "torchtitan", "deepspeed"))),
    )
    layout = Layout(
        tp=tp,
        cp=cp,
        dp=dp,
        pp=sum(stages),
        micro_batch=micro_batch,
        microbatches=microbatches,
        zero_stage=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(RECOMPUTE)),
        sequence_parallel=draw(st.booleans()),
        layers_per_stage=split,
        pools_per_stage=("a",) * stages[0] + ("b",) * stages[1],
    )
    return question, layout


@drawn(PRICES)
@given(priced())
def test_equal_pools_have_the_prices_of_one_cluster(case: tuple[Question, Layout]) -> None:
    question, layout = case
    # A job on one server has no network between its stages.
    assume(layout.gpus > PER_NODE)
    pools = question.job.cluster.pools
    plain = pools[0].model_copy(update={"nodes": sum(pool.nodes or 0 for pool in pools)})
    alone = estimate(replace(question.job, cluster=plain), replace(layout, pools_per_stage=None))
    both = estimate(question.job, layout)
    assert both.step.breakdown_s == pytest.approx(alone.step.breakdown_s, rel=1e-9, abs=1e-15)
    assert both.step.mfu == pytest.approx(alone.step.mfu)
    assert both.run.wall_time_s == pytest.approx(alone.run.wall_time_s)
    assert [s.reserved for s in both.memory.stages] == [s.reserved for s in alone.memory.stages]
    assert both.memory.fits == alone.memory.fits


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """A small question on two pools, with a framework that has no more axes than pools have."""
    cluster = pair(
        (draw(st.integers(2, 3)), 2),
        draw(st.sampled_from((1e8, 5e9, 50e9))),
        draw(st.sampled_from((1.5, 2.0, 8.0))),
    )
    model = small_model(layers=draw(st.integers(2, 5)), vocab=draw(st.sampled_from((1024, 32_000))))
    question = small_question(
        model, cluster.all_gpus or 0, batch=draw(st.sampled_from((4, 8))), cluster=cluster
    )
    generic = software("generic").model_copy(update=NARROW)
    fix: dict[str, int | str] = {
        "zero_stage": draw(st.sampled_from((0, 1, 3))),
        "recompute": "none",
    }
    job = replace(question.job, software=generic)
    return replace(question, job=job, pipeline=USUAL, fix=fix)


@drawn(ANSWERS)
@given(questions())
def test_no_layout_of_one_cluster_that_fits_the_border_is_faster(question: Question) -> None:
    """Of all even layouts on all GPUs; the pools' own answer may split unevenly or use fewer."""
    job = question.job
    pools = job.cluster.pools
    plain = pools[0].model_copy(update={"nodes": sum(pool.nodes or 0 for pool in pools)})
    alone = replace(question, job=replace(job, cluster=plain))
    walls = []
    for layout in every_layout(alone):
        a_stage = layout.tp * layout.cp * layout.dp
        first = min((pools[0].all_gpus or 0) // a_stage, layout.pp)
        placed = replace(layout, pools_per_stage=("a",) * first + ("b",) * (layout.pp - first))
        if not broken_pool_rules(job, placed):
            plan = estimate(alone.job, layout)
            walls += [plan.run.wall_time_s] if plan.memory.fits else []
    answer = search(question).plan
    assert answer is not None or not walls
    if answer is not None and walls:
        assert answer.run.wall_time_s <= min(walls) * (1 + 1e-6)
