"""Next best layouts and more memory over the whole space, against trying everything."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import assume, given

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.stages import even_split
from layoutopt.optimizer.alternatives import seen_of
from layoutopt.optimizer.every_pipeline import every_pipeline
from layoutopt.optimizer.explain import least_lacking, whole_difference
from layoutopt.optimizer.kinds import MORE_BYTES, roomier, with_what_it_lacks
from layoutopt.optimizer.orders import first_space
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.question import USUAL, Budget, Question
from layoutopt.optimizer.search import proved, search
from layoutopt.optimizer.space import layout_of, space_of
from layoutopt.optimizer.survey import KIND, Survey
from layoutopt.optimizer.verify import broken
from tests.builders import small_cluster, small_model, small_question
from tests.builders import with_memory as with_share
from tests.conftest import FULL
from tests.optimizer.drawn import drawn
from tests.optimizer.test_pipelining import MOST, RESOLUTION, pipelines

EXAMPLES = 120 if FULL else 4


def kind_of(one: Estimate) -> tuple[int, ...]:
    chosen = seen_of(one).chosen
    return tuple(chosen[axis] for axis in KIND)


def best_of_each_kind(question: Question) -> dict[tuple[int, ...], float]:
    """By pricing every pipeline."""
    best: dict[tuple[int, ...], float] = {}
    for layout in every_pipeline(question):
        one = estimate(question.job, layout)
        if one.memory.fits:
            wall = one.run.wall_time_s
            best[kind_of(one)] = min(wall, best.get(kind_of(one), wall))
    return best


def test_alternatives_are_the_best_of_their_kinds() -> None:
    """Nearly always: of a kind only so many choices are looked into."""
    seen: Counter[str] = Counter()

    @drawn(EXAMPLES)
    @given(pipelines())
    def check(question: Question) -> None:
        assume(question.pipeline.schedules is None)
        assume(space_of(replace(question, pipeline=USUAL)).candidates)
        question = replace(question, fix={"zero_stage": question.fix["zero_stage"]}, top=2)
        assume(sum(1 for _ in islice(every_pipeline(question), MOST + 1)) <= MOST)
        outcome = search(question)
        if outcome.status is not Status.OPTIMAL or outcome.plan is None:
            return
        best = best_of_each_kind(question)
        others = [one.estimate for one in outcome.alternatives]
        walls = [one.run.wall_time_s for one in others]
        assert walls == sorted(walls)
        for one in others:
            assert broken(question, one) == []
            wall, least = one.run.wall_time_s, best[kind_of(one)]
            assert wall >= least * (1 - RESOLUTION)
            kinds = {kind_of(other) for other in others if other.run.wall_time_s < wall}
            if kind_of(one) not in {kind_of(outcome.plan), *kinds}:
                seen["first of its kind"] += 1
                seen["best of its kind"] += wall <= least * (1 + RESOLUTION)

    check()
    assert seen["first of its kind"] >= EXAMPLES / 2, seen
    assert seen["best of its kind"] >= 0.9 * seen["first of its kind"], seen


def test_an_uneven_alternative_comes_before_an_even_one() -> None:
    """A heavy loss head: on two stages the first takes more of the four layers."""
    model = small_model(4, 8, 128, 128256)
    question = small_question(model, 2, 8, 2048, small_cluster(64.0))
    fix: dict[str, int | str | bool] = {"tp": 1, "cp": 1, "vpp": 1, "zero_stage": 0}
    fix |= {"offload_optimizer": False, "offload_activations": False, "recompute": "none"}
    question = replace(question, fix=fix, top=1)
    even = search(question)
    wide = search(replace(question, pipeline=replace(USUAL, splits="any", schedules=None)))
    (before,), (after,) = even.alternatives, wide.alternatives
    assert before.estimate.layout.layers_per_stage is None
    assert after.estimate.layout.layers_per_stage == (3, 1)
    assert after.estimate.run.wall_time_s < before.estimate.run.wall_time_s
    assert any(one.startswith("Next best: looked for") for one in wide.explain)
    assert not any(one.startswith("Next best") for one in even.explain)


def test_memory_that_changes_the_choice_is_the_least_that_was_tried() -> None:
    """With it a layout of the plan's kind fits that is as much faster; with less there is none."""
    model = small_model(6, 8, 128, 32000)
    question = small_question(model, 4, 16, 16384, small_cluster(8.0), "generic")
    fix: dict[str, int | str | bool] = {"tp": 1, "cp": 1, "pp": 2, "zero_stage": 1, "vpp": 1}
    fix |= {"offload_optimizer": False, "offload_activations": False}
    question = replace(question, fix=fix, pipeline=replace(USUAL, splits="any", schedules=None))
    question = with_share(question, 0.2)
    space = first_space(question)
    assert space is not None
    rounds, ended = proved(space, Budget(), time.monotonic())
    assert ended.best is not None
    plan = ended.best.estimate
    most = plan.run.wall_time_s * 0.995
    other = roomier(rounds, seen_of(plan), most)
    assert other is not None
    lacks = other.memory.worst.reserved - other.memory.usable_bytes
    assert 0 < lacks <= max(MORE_BYTES)
    assert other.run.wall_time_s < most
    told = search(with_memory(question, lacks)).plan
    assert told is not None
    assert told.run.wall_time_s == pytest.approx(other.run.wall_time_s, rel=RESOLUTION)


def with_memory(question: Question, more: int) -> Question:
    cluster = question.job.cluster
    gpu = cluster.gpu.model_copy(update={"memory_bytes": cluster.gpu.memory_bytes + more})
    cluster = cluster.model_copy(update={"gpu": gpu})
    return replace(question, job=replace(question.job, cluster=cluster))


def test_the_words_for_another_recompute_and_split() -> None:
    """Six layers, even 3+3: two of them recompute on each stage, then one on the first."""
    job = small_question(gpus=2).job
    plain = Layout(pp=2, microbatches=16, recompute="full")
    plan = estimate(job, replace(plain, recompute_layers=(2, 2)))
    other = estimate(job, replace(plain, recompute_layers=(1, 0), layers_per_stage=(4, 2)))
    assert even_split(6, 2) == (3, 3)
    words = whole_difference(job, other, plan)
    assert words == "full recompute of 1 layers instead of 4, another split of the layers"


def test_what_the_nearest_even_layout_lacks_lets_through_its_best_split() -> None:
    """Every split and recompute of it, with as much memory as the even one needs."""
    model = small_model(4, 8, 128, 32000)
    question = small_question(model, 2, 8, 16384, small_cluster(8.0), "generic")
    fix: dict[str, int | str | bool] = {"tp": 1, "cp": 1, "pp": 2, "zero_stage": 1, "vpp": 1}
    fix |= {"offload_optimizer": False, "offload_activations": False}
    question = replace(question, fix=fix, pipeline=replace(USUAL, splits="any"))
    question = with_share(question, 0.2)
    space = first_space(question)
    assert space is not None
    rounds, ended = proved(space, Budget(), time.monotonic())
    assert ended.best is not None
    mine = seen_of(ended.best.estimate)
    survey = Survey(space, rounds.floors, rounds.clock)
    even = least_lacking(survey.faster_misfits(mine.wall_s), mine.wall_s)
    assert even is not None
    found = with_what_it_lacks(rounds, even, mine.wall_s)
    assert found is not None
    assert found.run.wall_time_s <= even.wall_s * (1 + RESOLUTION)
    lacked = estimate(question.job, layout_of(question, even.chosen)).memory
    more = lacked.worst.reserved - lacked.usable_bytes
    alone = {axis: even.chosen[axis] for axis in ("pp", "micro_batch", "microbatches", "vpp")}
    alike = replace(question, fix={**question.fix, **alone})
    listed = [estimate(question.job, layout) for layout in every_pipeline(alike)]
    walls = [
        one.run.wall_time_s
        for one in listed
        if one.memory.worst.reserved - one.memory.usable_bytes <= more
    ]
    assert found.run.wall_time_s == pytest.approx(min(walls), rel=RESOLUTION)
