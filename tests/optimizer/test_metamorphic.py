"""What must follow from a change of any question: of the machine, of the space, of its size.

Over random questions of every capability that widens the space (kinds of cp, etp, shard groups,
re-sharding, offload), and of uneven stages with their schedules, in every order of the axes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel.efficiency import efficiency_of
from layoutopt.costmodel.placement import PRICED
from layoutopt.costmodel.results import Estimate
from layoutopt.errors import InputError
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.inputs.request import read_solve
from layoutopt.optimizer.question import Pipeline, Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.space import space_of
from tests.builders import NARROW, extended, small_cluster, small_model, small_question
from tests.conftest import FULL
from tests.optimizer.drawn import drawn
from tests.optimizer.test_pipelining import pipelines

EXAMPLES = 40 if FULL else 2
RESOLUTION = 3e-6
"""Two answers, each exact to a millionth."""
ANY = (*NARROW, "pipelines")


def best(question: Question) -> Estimate | None:
    """The plan; None where nothing fits or no layout is legal."""
    try:
        return search(replace(question, top=0)).plan
    except InputError:
        return None


def on(question: Question, cluster: Cluster) -> Question:
    return replace(question, job=replace(question.job, cluster=cluster))


def faster_levels(cluster: Cluster) -> list[Cluster]:
    """The cluster with one level of its network faster."""
    found = []
    for number, level in enumerate(cluster.levels):
        rate = level.bytes_per_s_per_gpu_one_way * 1.5
        levels = list(cluster.levels)
        levels[number] = level.model_copy(update={"bytes_per_s_per_gpu_one_way": rate})
        found.append(cluster.model_copy(update={"levels": tuple(levels)}))
    return found


def better(cluster: Cluster) -> list[Cluster]:
    """The cluster with one part better: a level, memory, FLOP/s."""
    gpu = cluster.gpu
    flops = {name: rate * 1.5 for name, rate in gpu.peak_flops_per_s.items()}
    changes: tuple[dict[str, object], ...] = (
        {"memory_bytes": int(gpu.memory_bytes * 1.3)},
        {"peak_flops_per_s": flops},
    )
    gpus = [gpu.model_copy(update=change) for change in changes]
    return [*faster_levels(cluster), *(cluster.model_copy(update={"gpu": one}) for one in gpus)]


def asked(lifted: str) -> st.SearchStrategy[Question]:
    return pipelines() if lifted == "pipelines" else extended(lifted)


@pytest.mark.parametrize("lifted", ANY)
def test_a_better_machine_is_never_slower(lifted: str) -> None:
    @drawn(EXAMPLES)
    @given(asked(lifted))
    def check(question: Question) -> None:
        plan = best(question)
        if plan is None:
            return
        for cluster in better(question.job.cluster):
            other = best(on(question, cluster))
            assert other is not None
            assert other.run.wall_time_s <= plan.run.wall_time_s * (1 + RESOLUTION), cluster

    check()


@pytest.mark.parametrize("lifted", ANY)
def test_what_is_fixed_or_left_out_is_never_faster(lifted: str) -> None:
    """One axis at the answer's neighbour; the answer's own values change nothing."""

    @drawn(EXAMPLES)
    @given(asked(lifted), st.integers(0, 10**6))
    def check(question: Question, number: int) -> None:
        plan = best(question)
        if plan is None:
            return
        free = [axis for axis in ("tp", "cp", "pp", "zero_stage") if axis not in question.fix]
        axis = free[number % len(free)]
        asks = {
            value
            for value in (1, 2, 4, getattr(plan.layout, axis))
            if axis != "zero_stage" or value < 4
        }
        for value in sorted(asks):
            narrower = replace(question, fix={**question.fix, axis: value})
            other = best(narrower)
            if other is not None:
                assert other.run.wall_time_s >= plan.run.wall_time_s * (1 - RESOLUTION)
            if value == getattr(plan.layout, axis):
                assert other is not None
                assert other.run.wall_time_s <= plan.run.wall_time_s * (1 + RESOLUTION)
        even = best(replace(question, pipeline=replace(question.pipeline, splits="even")))
        if even is not None:
            assert even.run.wall_time_s >= plan.run.wall_time_s * (1 - RESOLUTION)

    check()


@pytest.mark.parametrize("order", PRICED)
def test_one_order_is_never_faster_than_all(order: str) -> None:
    question = replace(
        small_question(small_model(layers=5), gpus=8, batch=16), pipeline=Pipeline(), top=0
    )
    plan, fixed = best(question), best(replace(question, fix={"axis_order": order}))
    assert plan is not None
    assert fixed is not None
    assert fixed.run.wall_time_s >= plan.run.wall_time_s * (1 - RESOLUTION)


def halved(question: Question) -> Question:
    """Every rate doubled, every latency and overhead halved, and no failures."""
    job = question.job
    cluster, software = job.cluster, job.software
    reach = efficiency_of(cluster.gpu.architecture)
    gpu = cluster.gpu.model_copy(
        update={
            "peak_flops_per_s": {k: 2 * v for k, v in cluster.gpu.peak_flops_per_s.items()},
            "memory_bytes_per_s": 2 * cluster.gpu.memory_bytes_per_s,
            # As many watts for each FLOP/s (machine.power_share).
            "watts": cluster.gpu.watts and 2 * cluster.gpu.watts,
        }
    )
    levels = tuple(
        level.model_copy(
            update={
                "bytes_per_s_per_gpu_one_way": 2 * level.bytes_per_s_per_gpu_one_way,
                "latency_s": level.latency_s / 2,
            }
        )
        for level in cluster.levels
    )
    waits = [
        name
        for name in type(reach).model_fields
        if name.endswith("_s") and not name.endswith("_per_s")
    ]
    own = [name for name in type(software).model_fields if name.endswith("_s")]
    return replace(
        question,
        job=replace(
            job,
            cluster=cluster.model_copy(update={"gpu": gpu, "levels": levels}),
            software=software.model_copy(update={n: getattr(software, n) / 2 for n in own}),
            efficiency=reach.model_copy(update={n: getattr(reach, n) / 2 for n in waits}),
        ),
    )


@pytest.mark.parametrize("lifted", [one for one in ANY if not one.startswith("offload")])
def test_twice_the_machine_takes_half_the_step(lifted: str) -> None:
    """Without offload, whose link to the host is the node's and not the cluster's to change."""

    @drawn(EXAMPLES)
    @given(asked(lifted))
    def check(question: Question) -> None:
        cluster = question.job.cluster.model_copy(update={"failures_per_gpu_hour": 0.0})
        question = replace(on(question, cluster), objective="time")
        plan, twice = best(question), best(halved(question))
        assert (plan is None) == (twice is None)
        if plan is not None and twice is not None:
            assert twice.step.time_s == pytest.approx(plan.step.time_s / 2, rel=RESOLUTION)

    check()


EXTREMES: tuple[dict[str, object], ...] = (
    {"model": "124M", "gpus": 1},
    {"model": "124M", "gpus": 1, "global_batch": 1, "seq_len": 128},
    {"model": "70B", "gpus": 16, "global_batch": 8192},
    {"model": "10T", "gpus": 1_000_000},
)


@pytest.mark.parametrize("options", EXTREMES, ids=lambda one: f"{one['model']} on {one['gpus']}")
def test_extremes_are_proved_without_overflow(options: dict[str, object]) -> None:
    """1 GPU and 124M, 1,000,000 GPUs and 10T, steps from 52 ms to 4,500 s."""
    question = read_solve(options).question
    outcome = search(replace(question, top=0))
    assert outcome.status.value in ("optimal", "infeasible")
    if outcome.plan is not None:
        assert outcome.search.bound is not None
        assert 0 < outcome.search.bound <= outcome.plan.run.wall_time_s
        assert outcome.search.bound >= outcome.plan.run.wall_time_s * (1 - RESOLUTION)


def test_a_larger_space_is_never_slower() -> None:
    """A wider framework is never slower than one that can be told nothing."""
    question = replace(
        small_question(small_model(layers=4), gpus=4, cluster=small_cluster(2.0, per_node=2)),
        pipeline=Pipeline(),
        top=0,
    )
    narrow = question.job.software.model_copy(update=NARROW)
    less = replace(question, job=replace(question.job, software=narrow))
    assert space_of(less).candidates < space_of(question).candidates
    plan, other = best(question), best(less)
    assert plan is not None
    assert other is not None
    assert plan.run.wall_time_s <= other.run.wall_time_s * (1 + RESOLUTION)
