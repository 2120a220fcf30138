"""Nearest misses and ways out, each tried on the question that it changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.software import software
from layoutopt.hardware_profiles.catalog import load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster
from layoutopt.optimizer.exhaustive import layouts_like, try_everything
from layoutopt.optimizer.lean import leanest
from layoutopt.optimizer.misses import limit_misses, meets_limits
from layoutopt.optimizer.outcome import Change, Miss, Outcome, Status
from layoutopt.optimizer.question import Limit, Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.space import layout_of, space_of
from layoutopt.optimizer.ways import fastest, something_fits
from layoutopt.units import DAY, GIB, parse_count, parse_seconds
from tests.builders import questions, small_cluster, small_model, small_question
from tests.conftest import FULL
from tests.optimizer.large import question as large_question
from tests.optimizer.solving import few_layouts

EXAMPLES = 150 if FULL else 8
TIGHT_GIB = 0.25
"""A quarter of a GiB beside context and workspaces: too little for the model below on two GPUs."""


def tight(gpus: int = 2, room_gib: float = TIGHT_GIB, **changes: object) -> Question:
    """A model of 50M parameters, 0.75 GiB of state, where only so much of it fits."""
    fixed = shipped().context_bytes + shipped().workspace_bytes
    cluster = small_cluster(room_gib + fixed / GIB, per_node=2)
    model = small_model(layers=8, heads=8, head_dim=64, vocab=32000)
    question = small_question(model, gpus, batch=16, seq_len=1024, cluster=cluster)
    return replace(question, **changes)  # type: ignore[arg-type]


def the_miss(outcome: Outcome, limit: str) -> Miss:
    assert outcome.status is Status.INFEASIBLE
    assert outcome.plan is None
    (miss,) = (one for one in outcome.misses if one.limit == limit)
    return miss


def by_option(miss: Miss) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in miss.changes:
        found.setdefault(change.option, []).append(change)
    return found


def allocated(one: Estimate) -> int:
    return max(stage.allocated for stage in one.memory.stages)


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, phases=[Phase.generate])
@given(questions().filter(few_layouts))
def test_leanest_and_fastest_are_those_of_all_layouts(question: Question) -> None:
    listed = [estimate(question.job, layout) for layout in layouts_like(question, Layout())]
    seen, best = leanest(space_of(question)), fastest(question)
    if not listed:
        assert seen is None
        assert best is None
        return
    assert seen is not None
    found = estimate(question.job, layout_of(question, seen.chosen))
    least = min(map(allocated, listed))
    assert allocated(found) == least
    tied = [one.step.time_s for one in listed if allocated(one) == least]
    assert found.step.time_s == pytest.approx(min(tied), rel=1e-9)
    walls = [one.run.wall_time_s for one in listed if one.memory.fits]
    assert (seen.over_kib == 0) == bool(walls)
    assert (best is not None) == bool(walls)
    if best is not None:
        assert best.run.wall_time_s == pytest.approx(min(walls), rel=1e-9)


def test_a_miss_names_the_stage_and_the_bytes() -> None:
    question = tight()
    miss = the_miss(search(question), "memory")
    memory = estimate(question.job, miss.layout).memory
    assert not memory.fits
    assert miss.stage == memory.worst.stage
    assert miss.over_bytes == memory.worst.reserved - memory.usable_bytes
    assert miss.over_s is None
    assert miss.over_usd is None


def test_the_gpus_suggested_are_the_fewest_that_do() -> None:
    """Every smaller number of whole nodes leaves nothing that fits; the step is the best one's."""
    question = tight()
    first = by_option(the_miss(search(question), "memory"))["gpus"][0]
    count = int(first.value)
    for fewer in range(2, count, 2):
        assert fastest(on(question, fewer)) is None
    plan = search(on(question, count)).plan
    assert plan is not None
    assert first.step_time_s == pytest.approx(plan.step.time_s)


def on(question: Question, gpus: int) -> Question:
    return replace(question, job=replace(question.job, gpus=gpus))


def test_memory_suggested_is_enough_and_less_is_not() -> None:
    """No known accelerator has a terabyte: how much it would take is said instead."""
    question = large_question("llama-3.1-405b", 8, batch=64)
    miss = the_miss(search(question), "memory")
    (change,) = by_option(miss)["gpu memory"]
    size = int(change.value.split()[0].replace(",", ""))
    assert something_fits(with_memory(question, size * GIB))
    assert not something_fits(with_memory(question, (size - 1) * GIB))


def with_memory(question: Question, size: int) -> Question:
    cluster = question.job.cluster
    gpu = cluster.gpu.model_copy(update={"memory_bytes": size})
    cluster = cluster.model_copy(update={"gpu": gpu})
    return replace(question, job=replace(question.job, cluster=cluster))


def test_a_larger_gpu_is_named_where_one_is_large_enough() -> None:
    """The 8B model with ZeRO 0 on one H100: 16 bytes x 8.03B = 120 GiB; an H200 has 140."""
    question = replace(large_question("llama-3.1-8b", 1, batch=1), fix={"zero_stage": 0})
    (change,) = by_option(the_miss(search(question), "memory"))["gpu"]
    assert change.value == "h200-sxm-141gb"
    cluster = default_cluster(load_gpu(change.value), 1)
    plan = search(replace(question, job=replace(question.job, cluster=cluster))).plan
    assert plan is not None
    assert change.step_time_s == pytest.approx(plan.step.time_s)


def test_what_was_fixed_is_set_free_one_axis_at_a_time() -> None:
    """Either sharding or recomputation would do; the step time is that of the best layout then."""
    question = tight(4, 0.5, fix={"recompute": "none", "zero_stage": 0, "tp": 1, "pp": 1, "cp": 1})
    ways = by_option(the_miss(search(question), "memory"))
    freed = {axis for axis in question.fix if axis in ways}
    assert freed
    for axis in question.fix:
        fix = {other: value for other, value in question.fix.items() if other != axis}
        plan = try_everything(replace(question, fix=fix)).plan
        assert (plan is not None) == (axis in freed)
        if plan is not None:
            (change,) = ways[axis]
            assert change.value == str(getattr(plan.layout, axis))
            assert change.step_time_s == pytest.approx(plan.step.time_s)


def test_a_limit_is_set_free_like_a_fixed_axis() -> None:
    question = tight(8, 0.3, limits=(Limit("zero_stage", "<=", 0), Limit("tp", "<=", 8)))
    limits = (Limit("tp", "<=", 1), Limit("pp", "<=", 1), Limit("zero_stage", "<=", 0))
    question = replace(question, limits=limits)
    ways = by_option(the_miss(search(question), "memory"))
    freed = [axis for axis in ("tp", "pp", "zero_stage") if axis in ways]
    for axis in ("tp", "pp", "zero_stage"):
        rest = tuple(limit for limit in limits if limit.axis != axis)
        plan = try_everything(replace(question, limits=rest)).plan
        assert (plan is not None) == (axis in freed)
    assert freed


def test_all_axes_are_set_free_where_one_is_not_enough() -> None:
    """With tp, pp and sharding all refused, no single one of them suffices."""
    fix: dict[str, int | str] = {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 0, "recompute": "none"}
    question = tight(16, 0.1, fix=fix)
    ways = by_option(the_miss(search(question), "memory"))
    assert not set(fix) & set(ways)
    (change,) = ways["fix"]
    freed = dict(pair.split("=") for pair in change.value.split(","))
    assert 2 <= len(freed) <= 5
    numbers = {axis: int(value) for axis, value in freed.items() if axis != "recompute"}
    words = {axis: value for axis, value in freed.items() if axis == "recompute"}
    again = search(replace(question, fix={**fix, **numbers, **words})).plan
    assert again is not None
    assert change.step_time_s == pytest.approx(again.step.time_s)


def test_a_shorter_sequence_is_suggested_where_activations_do_not_fit() -> None:
    question = replace(
        large_question("llama-3.1-8b", 8, batch=8, seq_len=131072), fix={"cp": 1, "tp": 1}
    )
    (change,) = by_option(the_miss(search(question), "memory"))["seq_len"]
    for length, fits in ((int(change.value), True), (2 * int(change.value), False)):
        training = question.job.training.model_copy(update={"seq_len": length})
        changed = replace(question, job=replace(question.job, training=training))
        assert something_fits(changed) is fits


def test_no_shorter_sequence_is_suggested_where_the_state_does_not_fit() -> None:
    assert "seq_len" not in by_option(the_miss(search(tight()), "memory"))


def test_a_framework_that_shards_is_suggested() -> None:
    """Megatron of 2021 shards nothing: 70B on 16 x 77 GiB fits with ZeRO 3 only."""
    question = with_memory(large_question("llama-3.1-70b", 16, batch=64), 77 * GIB)
    megatron = replace(question, job=replace(question.job, software=software("megatron-2021")))
    (change,) = by_option(the_miss(search(megatron), "memory"))["framework"]
    assert change.value == "torchtitan"
    sharded = replace(question, job=replace(question.job, software=software("torchtitan")))
    best = search(sharded).plan
    assert best is not None
    assert change.step_time_s == pytest.approx(best.step.time_s)


def test_405b_on_8_gpus_has_a_way_out() -> None:
    miss = the_miss(search(large_question("llama-3.1-405b", 8, batch=2048)), "memory")
    counts = [int(change.value) for change in by_option(miss)["gpus"]]
    assert counts == sorted(counts)
    # 405.9B x 16 bytes over 78 GiB: 78 GPUs for the state alone, and not many times as many.
    assert 78 <= counts[0] <= 128
    best = search(large_question("llama-3.1-405b", counts[0], batch=2048))
    assert best.status is Status.OPTIMAL


@pytest.fixture(scope="module")
def usual() -> Question:
    return large_question("llama-3.1-8b", 64, batch=512)


@pytest.fixture(scope="module")
def best(usual: Question) -> Estimate:
    plan = search(usual).plan
    assert plan is not None
    return plan


def test_a_deadline_that_is_met_changes_nothing(usual: Question, best: Estimate) -> None:
    question = replace(usual, deadline_s=best.run.wall_time_s * 1.001)
    assert search(question).plan == best


def test_a_deadline_that_is_missed_says_by_how_much_and_what_would_meet_it(
    usual: Question, best: Estimate
) -> None:
    question = replace(usual, deadline_s=best.run.wall_time_s * 0.6)
    miss = the_miss(search(question), "deadline")
    assert miss.over_s == pytest.approx(best.run.wall_time_s * 0.4)
    assert miss.over_bytes is None
    for change in miss.changes:
        plan = search(changed_by(question, change)).plan
        assert plan is not None, change
        assert change.step_time_s == pytest.approx(plan.step.time_s)
    assert [change.option for change in miss.changes] == ["deadline", "tokens", "gpus"]


def test_no_smaller_whole_number_of_nodes_meets_the_deadline(usual: Question) -> None:
    """A batch of 504 divides by 7 and 9 as well, so that counts in between work."""
    training = usual.job.training.model_copy(update={"global_batch": 504})
    question = replace(usual, job=replace(usual.job, training=training, gpus=56))
    plan = search(question).plan
    assert plan is not None
    question = replace(question, deadline_s=plan.run.wall_time_s * 0.8)
    change = by_option(the_miss(search(question), "deadline"))["gpus"][0]
    assert int(change.value) < 2 * 56
    for fewer in range(64, int(change.value), 8):
        found = fastest(on(question, fewer))
        assert found is None or not meets_limits(question, found.run)


def changed_by(question: Question, change: Change) -> Question:
    """The question as the change's option makes it."""
    if change.option == "deadline":
        return replace(question, deadline_s=parse_seconds(change.value))
    if change.option == "budget":
        return replace(question, budget_usd=float(change.value))
    if change.option == "gpus":
        return on(question, int(change.value))
    assert change.option == "tokens"
    tokens = parse_count(change.value, allow_fraction=True)
    training = question.job.training.model_copy(update={"tokens": tokens})
    return replace(question, job=replace(question.job, training=training))


def test_tokens_suggested_are_nearly_all_that_can_be_had(usual: Question, best: Estimate) -> None:
    question = replace(usual, deadline_s=best.run.wall_time_s * 0.6)
    (change,) = by_option(the_miss(search(question), "deadline"))["tokens"]
    tokens = parse_count(change.value, allow_fraction=True)
    more = Change("tokens", str(int(tokens * 1.05)), None)
    assert search(changed_by(question, more)).plan is None


def test_a_budget_that_is_missed_says_by_how_much_and_what_would_meet_it(
    usual: Question, best: Estimate
) -> None:
    assert best.run.cost_usd is not None
    question = replace(usual, budget_usd=best.run.cost_usd * 0.999)
    miss = the_miss(search(question), "budget")
    assert miss.over_usd == pytest.approx(best.run.cost_usd * 0.001)
    for change in miss.changes:
        plan = search(changed_by(question, change)).plan
        assert plan is not None, change
        assert change.step_time_s == pytest.approx(plan.step.time_s)
    # Fewer GPUs lose less to traffic: the same tokens for less money.
    assert {"budget", "tokens", "gpus"} == set(by_option(miss))


def test_missing_both_limits_names_both(usual: Question, best: Estimate) -> None:
    question = replace(usual, deadline_s=best.run.wall_time_s / 2, budget_usd=1.0)
    outcome = search(question)
    assert [miss.limit for miss in outcome.misses] == ["deadline", "budget"]
    assert "gpus" not in by_option(outcome.misses[0])


def test_a_budget_without_a_price_is_not_met(usual: Question, best: Estimate) -> None:
    question = replace(usual, budget_usd=1e9)
    run = replace(best.run, cost_usd=None)
    assert not meets_limits(question, run)
    (miss,) = limit_misses(question, replace(best, run=run))
    assert miss.over_usd is None
    assert miss.changes == ()


def test_long_deadlines_are_suggested_in_days(usual: Question, best: Estimate) -> None:
    run = replace(best.run, wall_time_s=30.01 * DAY)
    question = replace(usual, deadline_s=29 * DAY)
    changes = limit_misses(question, replace(best, run=run))[0].changes
    assert changes[0].value == "30.1d"
    assert math.isclose(parse_seconds(changes[0].value), 30.1 * DAY)


def test_the_same_question_gets_the_same_ways_out() -> None:
    assert search(tight()).misses == search(tight()).misses
