"""The search on several pools against trying everything, and what it has to say."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.costmodel.mixed import pool_jobs
from layoutopt.costmodel.model import Moe
from layoutopt.costmodel.rules import broken_rules
from layoutopt.errors import InputError
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.pools import PoolSearch
from layoutopt.optimizer.question import Budget, Objective, Question
from layoutopt.optimizer.search import objective_of, search
from layoutopt.units import KIB
from tests.builders import small_model, small_question
from tests.conftest import FULL
from tests.optimizer.drawn import drawn
from tests.optimizer.pool_twin import cheapest, mixed, pool

EXAMPLES = 220 if FULL else 40
RESOLUTION = 1e-6
GIB = 2**30


def asked(cluster: Cluster, layers: int = 5, batch: int = 8, **changes: object) -> Question:
    gpus = cluster.all_gpus or 0
    model = small_model(layers=layers, vocab=4096)
    question = small_question(model, gpus=gpus, batch=batch, cluster=cluster)
    return replace(question, **changes)  # type: ignore[arg-type]


TWO_STAGES = {"tp": 1, "dp": 2, "cp": 1, "pp": 2}
TWO = mixed(pool("fast", 1), pool("slow", 1, speed=0.5))


@st.composite
def mixed_questions(draw: st.DrawFn) -> Question:
    pools = tuple(
        pool(
            name,
            draw(st.integers(1, 2)),
            speed=draw(st.sampled_from((0.3, 0.7, 1.0))),
            memory=draw(st.sampled_from((1.2, 1.5, 2.0, 8.0))),
            per_node=draw(st.sampled_from((1, 2))),
            usd=draw(st.sampled_from((1.0, 3.0))),
        )
        for name in ("one", "two")
    )
    cluster = mixed(*pools, link=draw(st.sampled_from((1e8, 5e9, 1e11))))
    fix: dict[str, int | str] = {
        "zero_stage": draw(st.sampled_from((0, 1, 1, 3))),
        "recompute": draw(st.sampled_from(("none", "none", "full"))),
    }
    if draw(st.booleans()):
        fix["micro_batch"] = 1
    return asked(
        cluster,
        layers=draw(st.integers(2, 4)),
        batch=draw(st.sampled_from((2, 4))),
        fix=fix,
        objective=draw(st.sampled_from(("time", "time", "cost"))),
    )


@drawn(EXAMPLES)
@given(mixed_questions())
def test_search_on_pools_equals_trying_everything(question: Question) -> None:
    outcome, slow = search(question), cheapest(question)
    if slow is None:
        assert outcome.status == Status.INFEASIBLE
        return
    assert outcome.status == Status.OPTIMAL
    assert outcome.plan is not None
    assert outcome.search.bound is not None
    value = objective_of(question, slow.run)
    assert objective_of(question, outcome.plan.run) <= value * (1 + RESOLUTION)
    assert outcome.search.bound <= value
    assert outcome.search.bound >= value * (1 - RESOLUTION)
    assert estimate(question.job, outcome.plan.layout) == outcome.plan


def test_the_faster_pool_holds_more_layers() -> None:
    plan = search(asked(TWO, fix=TWO_STAGES)).plan
    assert plan is not None
    assert plan.layout.pools_per_stage is not None
    assert plan.layout.layers_per_stage is not None
    held = dict(zip(plan.layout.pools_per_stage, plan.layout.layers_per_stage, strict=True))
    assert held["fast"] > held["slow"]


def test_a_slow_pool_behind_a_slow_link_is_left_out() -> None:
    cluster = mixed(pool("fast", 1), pool("slow", 1, speed=0.1), link=1e7)
    outcome = search(asked(cluster))
    assert outcome.plan is not None
    assert set(outcome.plan.layout.pools_per_stage or ()) == {"fast"}
    assert any("Pool slow is left out" in sentence for sentence in outcome.explain)


def test_pools_in_another_order_give_the_same() -> None:
    turned = TWO.model_copy(update={"pools": TWO.pools[::-1]})
    runs = [search(asked(cluster)).plan for cluster in (TWO, turned)]
    walls = [plan.run.wall_time_s for plan in runs if plan]
    assert walls[0] == pytest.approx(walls[1], rel=1e-9)


def test_a_faster_link_or_another_pool_is_never_slower() -> None:
    def wall(cluster: Cluster) -> float:
        plan = search(asked(cluster)).plan
        assert plan is not None
        return plan.run.wall_time_s

    fast, slow = pool("fast", 1), pool("slow", 1, speed=0.5)
    walls = [wall(mixed(fast, slow, link=rate)) for rate in (1e8, 1e9, 1e10)]
    assert walls == sorted(walls, reverse=True)
    third = mixed(fast, slow, pool("third", 1, speed=0.4), link=1e9)
    assert wall(third) <= walls[1] * (1 + RESOLUTION)


def test_memory_moves_layers() -> None:
    """The fast pool's GPUs cannot hold what their speed would give them."""
    free = search(asked(TWO, fix=TWO_STAGES)).plan
    assert free is not None
    most = max(stage.allocated for stage in free.memory.stages if stage.pool == "fast")
    gib = (shipped().context_bytes + most - KIB) / GIB
    tight = search(
        asked(
            mixed(pool("fast", 1, memory=gib), pool("slow", 1, speed=0.5)),
            fix=TWO_STAGES,
        )
    ).plan
    assert tight is not None
    assert tight.layout != free.layout
    assert tight.run.wall_time_s > free.run.wall_time_s


def test_an_answer_is_no_slower_than_that_of_one_pool_alone() -> None:
    """Alone a pool has its whole space: here interleaving, which has no price on two."""
    cluster = mixed(pool("fast", 4), pool("slow", 1, speed=0.1), link=1e7)
    question = asked(cluster, layers=8, fix={"pp": 2, "vpp": 2})
    plan = search(question).plan
    assert plan is not None
    assert plan.layout.vpp == 2
    job = pool_jobs(question.job)[(plan.layout.pools_per_stage or ())[0]]
    alone = search(replace(question, job=job)).plan
    assert alone is not None
    assert plan.layout == replace(alone.layout, pools_per_stage=plan.layout.pools_per_stage)
    assert plan.step == alone.step
    assert plan.run == alone.run
    assert not broken_rules(replace(question.job, gpus=plan.layout.gpus), plan.layout)
    part = replace(plan.layout, dp=plan.layout.dp // 2, micro_batch=2 * plan.layout.micro_batch)
    refused = broken_rules(replace(question.job, gpus=part.gpus), part)
    assert "vpp" in [one.field for one in refused]
    assert {one.rule for one in refused} == {"pools_run_plain_pipelines"}


def test_experts_stay_on_one_pool() -> None:
    model = small_model(layers=4, moe=Moe(experts=4, top_k=2, expert_ffn=256, layers=4))
    question = small_question(model, gpus=4, batch=8, cluster=TWO)
    outcome = search(question)
    assert outcome.status == Status.OPTIMAL
    assert outcome.plan is not None
    assert len(set(outcome.plan.layout.pools_per_stage or ())) == 1
    walls = [
        plan.run.wall_time_s
        for job in pool_jobs(question.job).values()
        if (plan := search(replace(question, job=job)).plan)
    ]
    assert outcome.plan.run.wall_time_s == pytest.approx(min(walls), rel=1e-9)
    assert any("no price on several pools" in sentence for sentence in outcome.explain)


@pytest.mark.parametrize("objective", ["time", "cost", "energy"])
def test_floors_are_near_what_they_bound(objective: Objective) -> None:
    """In the objective's own unit: floors that are far below the best cut nothing."""
    found = PoolSearch(asked(TWO, objective=objective, fix=TWO_STAGES), Budget(), time.monotonic())
    found.run()
    assert found.best is not None
    best = found.value(found.best)
    assert 0.5 * best < found.choices.below(best * 1.001)[0].floor <= best


@pytest.mark.parametrize("field", ["deadline", "budget"])
def test_what_pools_do_not_take_is_refused(field: str) -> None:
    limits = {"deadline": {"deadline_s": 1.0}, "budget": {"budget_usd": 1.0}}
    with pytest.raises(InputError, match="pools") as refused:
        search(replace(asked(TWO), **limits[field]))  # type: ignore[arg-type]
    assert refused.value.field == field
