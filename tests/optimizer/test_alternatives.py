"""The next best layouts, against a list of everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import BREAKDOWN, Estimate
from layoutopt.optimizer.alternatives import seen_of, why_it_loses
from layoutopt.optimizer.exhaustive import layouts_like
from layoutopt.optimizer.floors import floors_of
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.survey import KIND, TIE, VARIANT, Survey
from layoutopt.optimizer.tables import tables_of
from layoutopt.optimizer.wall import Clock
from tests.builders import questions, small_cluster, small_question
from tests.conftest import FULL
from tests.optimizer.solving import few_layouts

EXAMPLES = 150 if FULL else 8


def survey_of(question: Question) -> Survey:
    space = space_of(question)
    tables = tables_of(space)
    return Survey(space, floors_of(space, tables), Clock(space.job, tables))


def everything(question: Question) -> list[Estimate]:
    """All legal layouts of a question, fitting or not, the shortest run first."""
    priced = [estimate(question.job, layout) for layout in layouts_like(question, Layout())]
    return sorted(priced, key=lambda one: one.run.wall_time_s)


def values(one: Estimate, axes: tuple[str, ...]) -> tuple[int, ...]:
    """The solver's own codes of a layout."""
    return tuple(seen_of(one).chosen[axis] for axis in axes)


def best_of_other_kinds(listed: list[Estimate], plan: Estimate) -> list[float]:
    """Wall times of the best layout of each other kind that fits, rising."""
    best: dict[tuple[int, ...], float] = {}
    for one in listed:
        kind = values(one, KIND)
        if one.memory.fits and kind != values(plan, KIND):
            best.setdefault(kind, one.run.wall_time_s)
    return sorted(best.values())


def plan_of(listed: list[Estimate]) -> Estimate | None:
    """The best that fits; ties in the order of AXES."""
    fitting = [one for one in listed if one.memory.fits]
    if not fitting:
        return None
    least = fitting[0].run.wall_time_s * (1 + TIE)
    tied = [one for one in fitting if one.run.wall_time_s <= least]
    return min(tied, key=lambda one: tuple(seen_of(one).chosen.values()))


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, phases=[Phase.generate])
@given(questions().filter(few_layouts))
def test_a_survey_lists_what_trying_everything_lists(question: Question) -> None:
    listed = everything(question)
    if not listed:
        return
    survey, plan = survey_of(question), plan_of(listed)
    if plan is None:
        assert survey.fitting(3).layouts == ()
        return
    first = survey.fitting(1).layouts[0]
    assert first.wall_s == pytest.approx(plan.run.wall_time_s, rel=1e-9)
    the_best_of_each_other_kind_comes_next(survey, listed, plan)
    too_few_kinds_are_filled_up_with_other_variants(survey, listed, plan)
    faster_layouts_that_do_not_fit_are_all_found(survey, listed, plan)


def the_best_of_each_other_kind_comes_next(
    survey: Survey, listed: list[Estimate], plan: Estimate
) -> None:
    wanted = 4
    found = survey.fitting(wanted, seen_of(plan))
    walls = best_of_other_kinds(listed, plan)[:wanted]
    assert found.complete
    assert [one.wall_s for one in found.layouts][: len(walls)] == pytest.approx(walls, rel=1e-9)
    ties = [
        one
        for one in listed
        if one.memory.fits and one.run.wall_time_s <= plan.run.wall_time_s * (1 + TIE)
    ]
    assert found.ties == len(ties) - 1


def too_few_kinds_are_filled_up_with_other_variants(
    survey: Survey, listed: list[Estimate], plan: Estimate
) -> None:
    """As many are found as there are variants, no two alike, none of them the plan's."""
    found = survey.fitting(10**4, seen_of(plan))
    fitting = [one for one in listed if one.memory.fits]
    variants = {values(one, VARIANT) for one in fitting} - {values(plan, VARIANT)}
    chosen = [tuple(one.chosen[axis] for axis in VARIANT) for one in found.layouts]
    assert len(chosen) == len(variants)
    assert set(chosen) == variants


def faster_layouts_that_do_not_fit_are_all_found(
    survey: Survey, listed: list[Estimate], plan: Estimate
) -> None:
    wall = plan.run.wall_time_s
    found = survey.faster_misfits(wall)
    expected = [
        one.run.wall_time_s for one in listed if not one.memory.fits and one.run.wall_time_s < wall
    ]
    assert found.complete
    assert [one.wall_s for one in found.layouts] == pytest.approx(expected, rel=1e-9)
    assert all(one.over_kib > 0 for one in found.layouts)


@pytest.mark.parametrize("top", [0, 1, 5])
def test_a_search_lists_as_many_as_asked_for(top: int) -> None:
    outcome = search(replace(small_question(gpus=8), top=top))
    assert outcome.plan is not None
    assert len(outcome.alternatives) == top
    walls = [one.estimate.run.wall_time_s for one in outcome.alternatives]
    assert walls == sorted(walls)
    assert all(wall >= outcome.plan.run.wall_time_s * (1 - 1e-9) for wall in walls)
    kinds = {values(one.estimate, KIND) for one in outcome.alternatives}
    assert len(kinds | {values(outcome.plan, KIND)}) == top + 1


def test_alternatives_keep_to_what_was_fixed() -> None:
    question = replace(small_question(gpus=8), fix={"tp": 2, "cp": 1, "pp": 2}, top=3)
    outcome = search(question)
    assert outcome.status is Status.OPTIMAL
    for other in outcome.alternatives:
        assert values(other.estimate, ("tp", "cp", "pp")) == (2, 1, 2)
    assert len(outcome.alternatives) == 3


def test_the_reason_gives_the_difference_of_every_large_part() -> None:
    """The signs and the seconds are those of the two estimates."""
    job = small_question(gpus=8, cluster=small_cluster(network_bytes_per_s=3e9)).job
    plan = estimate(job, Layout(dp=8, microbatches=2, zero_stage=1))
    other = estimate(job, Layout(tp=4, pp=2, microbatches=16, zero_stage=1))
    if other.run.wall_time_s < plan.run.wall_time_s:
        plan, other = other, plan
    reason = why_it_loses(other, plan)
    parts = {name: other.step.breakdown_s[name] - plan.step.breakdown_s[name] for name in BREAKDOWN}
    largest = max(parts, key=lambda name: abs(parts[name]))
    assert f"{other.run.wall_time_s / plan.run.wall_time_s - 1:.1%} slower" in reason
    first = reason.split(": ")[1].split(", ")[0]
    assert first.startswith("+" if parts[largest] > 0 else "-")
    named = {"tp_comm": "tensor-parallel", "dp_comm": "data-parallel", "compute": "compute"}
    assert named[largest] in first


def test_equal_runs_are_called_a_tie() -> None:
    job = small_question(gpus=8).job
    plan = estimate(job, Layout(dp=8, microbatches=2, zero_stage=1))
    assert why_it_loses(plan, plan).startswith("A tie")


def test_a_longer_save_is_named_where_the_step_is_as_long() -> None:
    job = small_question(gpus=8).job
    plan = estimate(job, Layout(dp=8, microbatches=2, zero_stage=1))
    save = replace(plan.checkpoint, stall_s=plan.checkpoint.stall_s + 100)
    run = replace(plan.run, wall_time_s=plan.run.wall_time_s * 1.05)
    reason = why_it_loses(replace(plan, checkpoint=save, run=run), plan)
    assert reason.startswith("5.0% longer run")
    assert "checkpoints" in reason
