"""The search against trying everything, on random small questions."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given

from layoutopt.costmodel.layout import Layout
from layoutopt.errors import InputError
from layoutopt.optimizer.exhaustive import try_everything
from layoutopt.optimizer.outcome import Outcome
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.rounds import Rounds
from layoutopt.optimizer.search import objective_of, search
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.verify import broken
from tests.builders import NARROW, extended, questions
from tests.conftest import FULL
from tests.optimizer.drawn import drawn

EXAMPLES = 320 if FULL else 24
WIDER = 200 if FULL else 5
RESOLUTION = 1e-6


def test_search_equals_trying_everything() -> None:
    """At least a quarter of the questions infeasible, and a quarter bound by memory."""
    seen: Counter[str] = Counter()

    @drawn(EXAMPLES)
    @given(questions())
    def check(question: Question) -> None:
        slow = try_everything(question)
        seen["asked"] += 1
        if not slow.search.candidates:
            seen["infeasible"] += 1
            with pytest.raises(InputError, match=r"legal|layout"):
                search(question)
            return
        for hints in (True, False):
            compare(question, search(question, Budget(use_hints=hints)), slow)
        if slow.plan is None:
            seen["infeasible"] += 1
        elif faster_without_memory(question, slow):
            seen["bound by memory"] += 1

    check()
    assert seen["asked"] >= EXAMPLES * 0.9
    assert seen["infeasible"] >= seen["asked"] / 4
    assert seen["bound by memory"] >= seen["asked"] / 4


@pytest.mark.parametrize("lifted", NARROW)
def test_search_equals_trying_everything_in_a_wider_space(lifted: str) -> None:
    """A few questions a capability of the framework, 200 in full; some choose what it adds."""
    used: Counter[bool] = Counter()

    @drawn(WIDER)
    @given(extended(lifted))
    def check(question: Question) -> None:
        slow = try_everything(question)
        if not slow.search.candidates:
            return
        hints = Budget(use_hints=sum(used.values()) % 2 == 0)
        fast = search(question, hints)
        compare(question, fast, slow)
        used[fast.plan is not None and uses(lifted, fast.plan.layout)] += 1

    check()
    assert sum(used.values()) >= WIDER * 0.8
    assert used[True] >= 2 or not FULL


def test_offload_alone_equals_trying_everything() -> None:
    """Megatron moves activations without a pipeline and recomputation alone: with one stage, whole
    layers, or it keeps them. Recompute is free in full."""
    used: Counter[bool] = Counter()

    @drawn(WIDER)
    @given(extended("offload_activations"))
    def check(question: Question) -> None:
        job, fix = question.job, {**question.fix, "offload_optimizer": False}
        fix["recompute"] = "none"
        if FULL:
            del fix["recompute"]
        told = {"framework": "megatron", "offload_activations_alone": True}
        profile = job.software.model_copy(update=told)
        alone = replace(question, job=replace(job, software=profile), fix=fix)
        slow = try_everything(alone)
        if not slow.search.candidates:
            return
        fast = search(alone, Budget(use_hints=sum(used.values()) % 2 == 0))
        compare(alone, fast, slow)
        used[fast.plan is not None and fast.plan.layout.offload_activations] += 1

    check()
    assert used[True]
    assert used[False]


def uses(lifted: str, layout: Layout) -> bool:
    """The layout has what a framework without ``lifted`` could not be told."""
    return {
        "cp_kinds": layout.cp > 1 and layout.cp_kind != "ring",
        "expert_tensor": layout.etp > 1,
        "shard_group_stages": layout.shard_degree is not None,
        "reshard_choice": layout.zero_stage == 3 and not layout.reshard,
        "offload_optimizer": layout.offload_optimizer,
        "offload_activations": layout.offload_activations,
    }[lifted]


def compare(question: Question, fast: Outcome, slow: Outcome) -> None:
    assert fast.status == slow.status
    assert fast.search.candidates == slow.search.candidates
    if slow.plan is None or fast.plan is None:
        assert fast.misses
        return
    value = objective_of(question, slow.plan.run)
    assert objective_of(question, fast.plan.run) <= value * (1 + RESOLUTION)
    assert fast.search.bound is not None
    assert fast.search.bound <= value * (1 + 1e-12)
    assert fast.search.bound >= value * (1 - 3 * RESOLUTION)
    assert broken(question, fast.plan) == []
    assert all(broken(question, other.estimate) == [] for other in fast.alternatives)
    best = objective_of(question, fast.plan.run)
    assert all(
        objective_of(question, other.estimate.run) >= best * (1 - RESOLUTION)
        for other in fast.alternatives
    )


def faster_without_memory(question: Question, outcome: Outcome) -> bool:
    """Memory binds: were it unlimited, another layout would win."""
    free = space_of(question, {"every_stage_fits"})
    best = Rounds(free, Budget(), time.monotonic()).run().best
    assert best is not None
    assert outcome.plan is not None
    return best.estimate.run.wall_time_s < outcome.plan.run.wall_time_s * (1 - RESOLUTION)
