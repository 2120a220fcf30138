"""Sentences about a choice: each figure is one that the cost model gives."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import Estimate
from layoutopt.optimizer.alternatives import seen_of
from layoutopt.optimizer.explain import Around, difference, explain
from layoutopt.optimizer.outcome import Outcome, Status
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.survey import Found
from layoutopt.units import GIB, format_bytes
from tests.builders import small_cluster, small_model, small_question
from tests.optimizer.large import question as large_question


@pytest.fixture(scope="module")
def tight() -> Question:
    """70B on 64 GPUs: there are faster layouts than what fits."""
    return large_question("llama-3.1-70b", 64, batch=512)


@pytest.fixture(scope="module")
def answer(tight: Question) -> Outcome:
    outcome = search(tight)
    assert outcome.status is Status.OPTIMAL
    return outcome


def sentence(outcome: Outcome, start: str) -> str:
    (found,) = (one for one in outcome.explain if one.startswith(start))
    return found


def plan_of(outcome: Outcome) -> Estimate:
    assert outcome.plan is not None
    return outcome.plan


def test_memory_that_binds_is_as_much_as_would_change_the_choice(
    tight: Question, answer: Outcome
) -> None:
    """With as much more memory, rounded up, the search takes a run as short as was said.

    An uneven pipeline may do with less: what is named is the even layout that would be taken.
    """
    text = sentence(answer, "More memory would change")
    match = re.search(r"choice: ([\d.]+) (MiB|GiB) more on stage (\d+)", text)
    shorter = re.search(r"would make the run ([\d.]+)% shorter", text)
    assert match is not None
    assert shorter is not None
    # Three digits are printed: half of the last one may be missing.
    more = float(match[1]) * (GIB if match[2] == "GiB" else 2**20) * 1.006
    plan = search(with_memory(tight, int(more))).plan
    assert plan is not None
    gain = 1 - plan.run.wall_time_s / plan_of(answer).run.wall_time_s
    assert gain >= float(shorter[1]) / 100 - 0.0006


def with_memory(question: Question, more: int) -> Question:
    cluster = question.job.cluster
    gpu = cluster.gpu.model_copy(update={"memory_bytes": cluster.gpu.memory_bytes + more})
    cluster = cluster.model_copy(update={"gpu": gpu})
    return replace(question, job=replace(question.job, cluster=cluster))


def test_memory_does_not_bind_where_all_that_is_faster_fits() -> None:
    question = small_question(cluster=small_cluster(80.0))
    assert "would not change the choice" in sentence(search(question), "More memory")


def test_a_truncated_survey_claims_no_more_than_it_saw() -> None:
    question = small_question(cluster=small_cluster(80.0))
    plan = plan_of(search(question))
    text = explain(question, plan, Around(Found((), True), Found((), False)))[1]
    assert "no layout was found" in text


def test_what_binds_is_what_a_tenth_more_shortens_most(answer: Outcome, tight: Question) -> None:
    text, plan = sentence(answer, "Binds:"), plan_of(answer)
    cluster = tight.job.cluster
    gpu = cluster.gpu
    peaks = {name: rate * 1.1 for name, rate in gpu.peak_flops_per_s.items()}
    faster = cluster.model_copy(update={"gpu": gpu.model_copy(update={"peak_flops_per_s": peaks})})
    other = estimate(replace(tight.job, cluster=faster), plan.layout)
    share = 1 - other.step.time_s / plan.step.time_s
    assert f"matrix FLOP/s {share:.1%}" in text
    shares = [float(found) for found in re.findall(r"([\d.]+)%[,.]", text)]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) == 2 + len(cluster.levels)


def test_a_slow_network_is_what_binds() -> None:
    """A gigabit network, and a layout that has to cross it in every step."""
    cluster = small_cluster(8.0, per_node=2, network_bytes_per_s=1e8)
    question = replace(small_question(cluster=cluster), fix={"tp": 1, "pp": 1, "cp": 1})
    assert sentence(search(question), "Binds:").startswith("Binds: network bandwidth.")


def test_each_neighbour_has_its_price_and_whether_it_fits(answer: Outcome, tight: Question) -> None:
    text, plan = sentence(answer, "One change at a time"), plan_of(answer)
    parts = text.removeprefix("One change at a time: ").rstrip(".").split("; ")
    assert len(parts) >= 3
    layout = plan.layout
    assert layout.zero_stage > 0
    lower = estimate(tight.job, replace(layout, zero_stage=layout.zero_stage - 1))
    (said,) = (part for part in parts if part.startswith(f"ZeRO {layout.zero_stage - 1}"))
    assert f"{abs(lower.step.time_s / plan.step.time_s - 1):.1%}" in said
    assert (" over on stage " in said) == (not lower.memory.fits)
    if not lower.memory.fits:
        over = lower.memory.worst.reserved - lower.memory.usable_bytes
        assert f"{format_bytes(over)} over on stage {lower.memory.worst.stage}" in said
    # Whatever is shorter does not fit: otherwise it were the plan.
    assert all("over on stage" in part for part in parts if "% shorter" in part)


def test_what_was_fixed_is_marked_where_it_costs_something() -> None:
    question = replace(
        small_question(cluster=small_cluster(8.0)), fix={"tp": 4, "recompute": "full"}
    )
    text = sentence(search(question), "One change at a time")
    assert "recompute selective (your --fix or --limit)" in text
    assert "tp 2 (your --fix or --limit)" in text


def test_a_difference_leaves_out_what_follows() -> None:
    plan = Layout(tp=2, dp=4, microbatches=4)
    other = Layout(tp=4, dp=2, microbatches=8, recompute="full")
    assert difference(other, plan) == "tp 4, recompute full instead of tp 2, recompute none"


def test_layouts_that_take_exactly_as_long_are_a_tie() -> None:
    """On one GPU nothing is sharded: the ZeRO stages are one and the same."""
    question = small_question(small_model(layers=2), gpus=1, batch=2)
    outcome = search(question)
    text = sentence(outcome, "A tie:")
    number = int(text.split()[2])
    plan = plan_of(outcome)
    equal = [
        one
        for one in search(replace(question, top=50)).alternatives
        if one.estimate.run.wall_time_s <= plan.run.wall_time_s * (1 + 1e-9)
    ]
    assert number == len(equal) >= 1
    assert all(one.reason.startswith("A tie") for one in equal)
    assert seen_of(plan).chosen["sharding"] == 0


def test_without_a_tie_none_is_named(answer: Outcome) -> None:
    assert not any(one.startswith("A tie") for one in answer.explain)


def test_an_unproved_answer_says_what_it_can(tight: Question) -> None:
    """Time for the warm start alone."""
    outcome = search(tight, Budget(seconds=1e-3))
    assert outcome.status in (Status.FEASIBLE, Status.OPTIMAL)
    if outcome.status is Status.FEASIBLE:
        assert outcome.alternatives == ()
        assert not any(one.startswith("More memory") for one in outcome.explain)
    assert outcome.explain[0].startswith("Binds:")
