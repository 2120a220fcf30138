"""What leaves shapes of pipelines out before they are priced: floors, and chunks that add up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.efficiency import efficiency_of
from layoutopt.costmodel.estimate import estimate
from layoutopt.errors import InputError
from layoutopt.optimizer.every_pipeline import every_pipeline
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.pipelining import least_of_pipelines_s
from layoutopt.optimizer.question import Budget, Limit, Pipeline, Question
from layoutopt.optimizer.rounds import Rounds
from layoutopt.optimizer.search import search
from layoutopt.optimizer.shapes import least_waits, shapes_of, with_every_chunk
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.tables import tables_of
from tests.builders import small_cluster, small_model, small_question

SCHEDULES = (None, ("1f1b",), ("zbv",), ("gpipe",), ("zb-h1", "1f1b"))


def asked(layers: int, batch: int, schedules: object, gpus: int = 4) -> Question:
    """Few layers on few GPUs with memory to spare, and an optimizer step that takes no longer than
    its size asks for: floors leave the rest of it out."""
    model = small_model(layers=layers, vocab=1000)
    cluster = small_cluster(64.0, per_node=2)
    question = small_question(model, gpus=gpus, batch=batch, seq_len=2048, cluster=cluster)
    reach = efficiency_of("hopper").model_copy(update={"optimizer_s": 0.0})
    return replace(
        question,
        job=replace(question.job, efficiency=reach),
        fix={"tp": 1, "cp": 1, "zero_stage": 0},
        limits=(Limit("micro_batch", "<", 3), Limit("pp", ">", 1)),
        pipeline=Pipeline("any", schedules),  # type: ignore[arg-type]
    )


def questions() -> Iterator[Question]:
    """From fewer microbatches than stages to many more of them."""
    sizes = ((4, 2), (4, 4), (5, 8), (3, 4), (5, 1))
    for (layers, batch), schedules in zip(sizes, SCHEDULES, strict=True):
        yield asked(layers, batch, schedules)
        if schedules:
            yield asked(layers, batch, None)


@pytest.mark.parametrize("question", list(questions()))
def test_no_pipeline_is_below_the_floor_of_its_space(question: Question) -> None:
    space, rng = space_of(question), random.Random(0)
    layouts = list(every_pipeline(question))
    layouts = rng.sample(layouts, min(len(layouts), 60))
    walls = [estimate(question.job, layout).run.wall_time_s for layout in layouts]
    assert walls
    floor = least_of_pipelines_s(space)
    assert 0.1 * min(walls) < floor <= min(walls) * (1 + 1e-12)


@pytest.mark.parametrize("question", list(questions()))
def test_a_shape_is_left_out_only_above_the_limit(question: Question) -> None:
    """Each layout's own step, taken as the limit, keeps the layout's shape."""
    wide = with_every_chunk(space_of(question))
    tables = tables_of(space_of(question))
    plain = question.pipeline.schedules in (None, ("1f1b",))
    layouts = list(every_pipeline(question))
    for layout in random.Random(1).sample(layouts, min(len(layouts), 15)):
        step = estimate(question.job, layout).step.time_s
        kept = shapes_of(wide, tables, step, plain=plain)
        mine = [layout.pp, layout.dp, layout.micro_batch, layout.vpp]
        assert mine in kept[:, [2, 3, 4, 7]].tolist()


@pytest.mark.parametrize("layers", [13, 20])
def test_chunks_that_are_tried_are_those_that_some_split_has(layers: int) -> None:
    """Every split over two and three stages, and every number of chunks."""

    def whole(split: tuple[int, ...], v: int) -> bool:
        ends = (0, len(split) - 1)
        return all(n % v == 0 or (s in ends and (n + 1) % v == 0) for s, n in enumerate(split))

    splits: list[tuple[int, ...]] = [(n, layers - n) for n in range(1, layers)]
    splits += [(a, b, layers - a - b) for a in range(1, layers - 1) for b in range(1, layers - a)]
    having = {v for v in range(1, layers // 2 + 2) if any(whole(split, v) for split in splits)}
    wide = with_every_chunk(space_of(asked(layers, 4, None)))
    assert having <= set(wide.values["vpp"])
    assert len(wide.values["vpp"]) < layers // 2 + 1


def test_waits_of_even_stages_are_those_of_the_schedule() -> None:
    """(p - 1) / p with many microbatches, a v-th of it with v chunks, nothing on one stage."""
    waits = least_waits(ints([4, 4, 1]), ints([1, 3, 1]), ints([16, 16, 16]), plain=True)
    assert waits.tolist() == [0.75, 0.25, 0.0]
    # As many microbatches as stages or fewer: (m - 1) / (2 p - m + 1) + 1 - m / p.
    few = least_waits(ints([4, 4, 4]), ints([1]), ints([4, 2, 1]), plain=True)
    assert few == pytest.approx(np.array([3 / 5, 1 / 7 + 1 / 2, 3 / 4]))
    assert least_waits(ints([4]), ints([1]), ints([16]), plain=False) == 0


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_out_of_time_there_is_a_bound_and_a_gap(seconds: float) -> None:
    question = asked(5, 8, None)
    best, cut = search(question), search(question, Budget(seconds=seconds))
    assert best.plan is not None
    if cut.status is Status.OPTIMAL:
        return
    assert cut.status is Status.FEASIBLE
    assert cut.search.bound is not None
    assert 0.3 * best.plan.run.wall_time_s < cut.search.bound <= best.plan.run.wall_time_s
    assert cut.search.gap is not None
    assert 0 < cut.search.gap < 1


def test_bounds_of_pipelines_hold_for_even_ones_that_came_to_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is said to be proved, but little is left open."""
    question, whole = asked(5, 8, None), Rounds.run
    best = search(question)
    monkeypatch.setattr(Rounds, "run", lambda rounds: replace(whole(rounds), proved=False))
    cut = search(question)
    assert cut.status is Status.FEASIBLE
    assert cut.plan == best.plan
    assert cut.search.gap is not None
    assert 0 < cut.search.gap < 1e-5


def test_no_layout_is_still_an_input_error() -> None:
    with pytest.raises(InputError):
        search(replace(asked(5, 8, None), fix={"tp": 3}))
