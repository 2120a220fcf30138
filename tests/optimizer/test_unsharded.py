"""What is cut before choices are sharded, and rooms of whole chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from layoutopt.costmodel.axes import ints
from layoutopt.optimizer.asked import recompute_of, schedules_of
from layoutopt.optimizer.bounded import bounds_of
from layoutopt.optimizer.choices import mode
from layoutopt.optimizer.outer import Variant, groups_of
from layoutopt.optimizer.pipelining import Pipelines
from layoutopt.optimizer.question import Budget, Pipeline, Question
from layoutopt.optimizer.rooms import whole_chunks
from layoutopt.optimizer.rounds import Rounds
from layoutopt.optimizer.shapes import shapes_of, with_every_chunk
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.unsharded import worth_sharding
from tests.builders import narrow, small_cluster, small_model, small_question

Choice = tuple[object, ...]


@pytest.mark.parametrize("chunks", [1, 2, 3, 5])
@pytest.mark.parametrize("ends", [0, 1])
def test_whole_chunks_are_the_most_that_chunks_hold_alike(chunks: int, ends: int) -> None:
    for layers in range(20):
        legal = [n for n in range(layers + 1) if n % chunks == 0 or (n + ends) % chunks == 0]
        found = whole_chunks(np.array([float(layers)]), ints([chunks]), ends)
        assert found.tolist() == [max(legal)]


def asked(memory_gib: float, schedule: str | None) -> Question:
    question = small_question(
        small_model(layers=6, heads=4, vocab=32000),
        gpus=8,
        batch=16,
        seq_len=4096,
        cluster=small_cluster(memory_gib),
    )
    pipeline = Pipeline("any", None if schedule is None else (schedule,))  # type: ignore[arg-type]
    return Question(question.job, pipeline=pipeline)


@pytest.mark.parametrize("schedule", [None, "zbv"])
@pytest.mark.parametrize("memory_gib", [1.2, 2.0, 30.0])
@pytest.mark.parametrize("times", [1.02, 1.3, math.inf])
def test_what_is_cut_before_it_is_sharded_has_no_bound(
    memory_gib: float, schedule: str | None, times: float
) -> None:
    """With a limit from just above the fastest pipeline's bound to none at all."""
    space = space_of(asked(memory_gib, schedule))
    rounds = Rounds(space, Budget(), 0.0)
    search = Pipelines(space, rounds.tables, rounds.clock, Budget(), math.inf)
    wide = with_every_chunk(space)
    schedules = schedules_of(space.question)
    every = shapes_of(wide, rounds.tables, math.inf, plain=False)

    def walls(limit: float, worth: Callable[..., object] | None) -> dict[Choice, float]:
        found = {}
        for group in groups_of(wide, every, schedules, recompute_of(space.question), worth):  # type: ignore[arg-type]
            for place, wall in enumerate(bounds_of(search, group, limit).walls.tolist()):
                if math.isfinite(wall):
                    choice = (group.schedule, group.variant, *group.chosen(place).items())
                    found[choice] = wall
        return found

    least = min(walls(math.inf, None).values(), default=math.inf)
    limit = least * times
    most = search.objective_s(limit, (0.0, 0.0))
    told = walls(limit, lambda group: worth_sharding(wide, group, most))
    assert told == walls(limit, None)
    assert told or math.isinf(least)


def test_what_one_variant_alone_may_offload_is_cut_from_that_variant() -> None:
    """Megatron offloads what a layer saves without a pipeline and without recomputation alone."""
    question = narrow(asked(30.0, None))
    told = {"framework": "megatron", "offload_activations": True, "offload_activations_alone": True}
    profile = question.job.software.model_copy(update=told)
    space = space_of(replace(question, job=replace(question.job, software=profile)))
    every = shapes_of(space, Rounds(space, Budget(), 0.0).tables, math.inf, plain=False)

    def ways(
        able: str, worth: Callable[..., object] | None
    ) -> list[tuple[Variant, dict[str, int]]]:
        groups = groups_of(space, every, ("1f1b",), able, worth)  # type: ignore[arg-type]
        return [
            (group.variant, group.chosen(place)) for group in groups for place in range(len(group))
        ]

    for able in ("same", "whole"):
        found = ways(able, lambda group: np.ones(len(group), dtype=bool))
        assert found == ways(able, None)
        moved = {chosen["pp"] for _, chosen in found if mode(chosen["mode"]).offload}
        assert moved == ({1} if able == "whole" else set())
