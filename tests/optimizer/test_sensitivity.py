"""What a better machine is worth: each question solved again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.sensitivity import MORE_MEMORY_BYTES, sensitivity
from tests.builders import small_cluster, small_model, small_question


def question(memory_gib: float) -> Question:
    """Enough layers for memory to decide, on two levels of network."""
    model = small_model(layers=8, heads=16, head_dim=128)
    return small_question(model, batch=32, cluster=small_cluster(memory_gib, 4, 3e9))


@pytest.mark.parametrize("memory_gib", [2.5, 60.0])
def test_each_is_what_the_changed_question_answers(memory_gib: float) -> None:
    asked = question(memory_gib)
    plan = search(asked).plan
    assert plan is not None
    worth = {one.change: one for one in sensitivity(asked, plan, Budget())}
    assert list(worth) == [
        "10% more node bandwidth",
        "10% more network bandwidth",
        "8 GiB more memory per GPU",
        "half the failures",
    ]
    gpu = asked.job.cluster.gpu
    larger = gpu.model_copy(update={"memory_bytes": gpu.memory_bytes + MORE_MEMORY_BYTES})
    cluster = asked.job.cluster.model_copy(update={"gpu": larger})
    again = search(replace(asked, job=replace(asked.job, cluster=cluster))).plan
    memory = worth["8 GiB more memory per GPU"]
    assert again is not None
    assert memory.saved_s == pytest.approx(
        plan.run.wall_time_s - again.run.wall_time_s, abs=1e-6 * plan.run.wall_time_s
    )
    assert memory.saved_s is not None
    assert (memory.saved_s > 0) == (memory_gib < 4)
    assert all(one.saved_s is not None and one.saved_s >= 0 for one in worth.values())
    assert worth["10% more network bandwidth"].saved_s != 0


def test_without_time_nothing_is_claimed() -> None:
    asked = question(2.5)
    plan = search(asked).plan
    assert plan is not None
    found = sensitivity(asked, plan, Budget(seconds=0.0))
    assert [one.saved_s for one in found] == [None] * 4
