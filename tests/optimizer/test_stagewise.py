"""The inner problem against every choice of rows, and bounds of outer choices against layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest

from layoutopt.costmodel.estimate import estimate
from layoutopt.optimizer import stagewise
from layoutopt.optimizer.inner import layout_from, problems_of
from layoutopt.optimizer.pipelining import Pipelines
from layoutopt.optimizer.question import Budget, Pipeline, Question
from layoutopt.optimizer.rounds import Rounds
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.stagewise import Chain, Chosen, Late, Row, Stagewise, best_rows
from layoutopt.optimizer.stagewise_labels import least_rows
from layoutopt.optimizer.stagewise_start import good_rows
from tests.builders import small_cluster, small_model, small_question
from tests.conftest import FULL

DRAWN = 400 if FULL else 60


def drawn(seed: int) -> Stagewise:
    """A few stages with tables of their own; some of them alike."""
    number = random.Random(seed)
    stages, most = number.randint(1, 4), number.randint(2, 4)
    first = tuple(
        Row(n, k, n + 0.3 * k + number.random(), number.random())
        for n in range(1, most + 1)
        for k in range(number.randint(0, 1) + 1)
    )
    tables = [first]
    for _ in range(stages - 1):
        own = tuple(Row(n, 0, n * number.choice((1.0, 1.5)), 0.1 * n) for n in range(1, most + 1))
        tables.append(number.choice((own, tables[-1])))
    return Stagewise(number.randint(stages, stages * most), number.uniform(1, 20), tuple(tables))


def late(seed: int) -> Stagewise:
    """The same where stages have traffic left, of which those after the first may have most."""
    problem, number = drawn(seed), random.Random(seed)
    tables = tuple(
        tuple(
            replace(row, left_s=left, cost_s=row.cost_s + (left if stage == 0 else 0.0))
            for row in table
            for left in [row.layers * number.choice((1.0, 5.0))]
        )
        for stage, table in enumerate(problem.tables)
    )
    return replace(
        problem, tables=tables, late=Late(number.choice((0.0, 0.25, 1.0)), (0.1,) * len(tables))
    )


def pathed(seed: int) -> Stagewise:
    """The same with paths through a schedule that stay long on one stage, and tails."""
    problem, number = late(seed), random.Random(seed)
    tables = tuple(
        tuple(
            replace(row, forward_s=row.seconds * number.random(), tail_s=number.random())
            for row in table
        )
        for table in problem.tables
    )
    stages = range(len(tables))
    chains = tuple(
        Chain(
            number.choice((0.0, 0.0, 2.0)),
            tuple(8.0 if at == stage else before if at < stage else after for at in stages),
            tuple(-less if at == stage else 0.0 for at in stages),
            (0.0,) * len(tables),
        )
        for stage in stages
        for before, after, less in ((1.0, 1.0, 0.0), (1.0, 2.0, 0.0), (1.0, 1.0, 3.0))
    )
    return replace(problem, tables=tables, chains=chains, factor=number.choice((0.0, 1.0)))


def test_what_a_later_stage_is_late_by() -> None:
    """2 + 6 layers; 1 s of traffic a layer, the first stage's pass of 3 s half of which counts: 6 -
    1.5 - 2 more than the first one's own. An even split has none."""
    table = tuple(Row(n, 0, 1.5 * n, 0.0, left_s=float(n)) for n in (2, 4, 6))
    problem = Stagewise(8, 1.0, (table, table), late=Late(0.5, (0.0, 0.0)))
    short, even, long = table
    assert problem.late_s((short, long)) == 2.5
    assert problem.late_s((long, short)) == 0.0
    assert problem.late_s((even, even)) == 0.0
    assert problem.value_s((short, long)) == pytest.approx(9.0 + 2.5)


@pytest.mark.parametrize(("made", "labels"), [(drawn, 0), (late, 0), (pathed, 0), (pathed, 10**6)])
@pytest.mark.parametrize("seed", range(DRAWN))
def test_the_best_rows_are_those_of_all_choices(
    seed: int, made: Callable[[int], Stagewise], labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By labels where there are paths through a schedule, or by CP-SAT, where they are too many."""
    monkeypatch.setattr(stagewise, "MOST_LABELS", labels)
    problem = made(seed)
    values = [
        problem.value_s(rows)
        for rows in product(*problem.tables)
        if sum(row.layers for row in rows) == problem.layers
    ]
    worst = max((problem.value_s(rows) for rows in product(*problem.tables)), default=0.0)
    got = best_rows(problem, worst, Budget(), 10.0)
    assert got.proved
    if not values:
        assert got.rows is None
        return
    assert got.rows is not None
    assert sum(row.layers for row in got.rows) == problem.layers
    assert problem.value_s(got.rows) == pytest.approx(min(values), rel=1e-8)
    assert problem.least_s() <= min(values) * (1 + 1e-12)
    below = best_rows(problem, min(values) * (1 - 1e-6), Budget(), 10.0)
    assert below.proved
    assert below.rows is None


@pytest.mark.parametrize("made", [drawn, late, pathed])
@pytest.mark.parametrize("seed", range(DRAWN))
def test_labels_find_the_best_rows_of_all(seed: int, made: Callable[[int], Stagewise]) -> None:
    problem = made(seed)
    told = problem.late

    def value_s(rows: tuple[Row, ...]) -> float:
        later = [told.value_s(rows, stage) for stage in range(len(rows))] if told else [0.0]
        return problem.relaxed_s(rows) + max(later)

    values = [
        value_s(rows)
        for rows in product(*problem.tables)
        if sum(row.layers for row in rows) == problem.layers
    ]
    rows, proved = least_rows(problem, float("inf"), float("inf"))
    assert proved
    assert (rows is None) == (not values)
    if rows is not None:
        assert sum(row.layers for row in rows) == problem.layers
        assert value_s(rows) == pytest.approx(min(values), rel=1e-12)
        assert least_rows(problem, min(values), float("inf"))[0] is not None
        assert least_rows(problem, min(values) * (1 - 1e-6), float("inf")) == (None, True)
        assert least_rows(problem, min(values), 0.0) == (None, False)


def asked(schedule: str | None, memory_gib: float, framework: str = "generic") -> Question:
    """Six layers and a large vocabulary on four GPUs."""
    question = small_question(
        small_model(layers=6, heads=4, vocab=128256),
        gpus=4,
        batch=8,
        seq_len=8192,
        cluster=small_cluster(memory_gib),
        framework=framework,
    )
    pipeline = Pipeline("any", None if schedule is None else (schedule,))  # type: ignore[arg-type]
    return Question(question.job, pipeline=pipeline)


@pytest.mark.parametrize("schedule", [None, "zbv", "gpipe", "zb-h1"])
@pytest.mark.parametrize("memory_gib", [3.0, 5.0, 30.0])
def test_no_layout_of_an_outer_choice_beats_its_bound(
    schedule: str | None, memory_gib: float
) -> None:
    """Any rows that fit, at random, of a sample of outer choices; a choice without a bound has
    none, and rooms hold every row that fits."""
    question = asked(schedule, memory_gib)
    space = space_of(question)
    rounds = Rounds(space, Budget(), 0.0)
    search = Pipelines(space, rounds.tables, rounds.clock, Budget(), np.inf)
    number, seen = random.Random(0), 0
    for bounded in search.bounded(np.inf):
        for place in number.sample(range(len(bounded.group)), min(25, len(bounded.group))):
            pp = int(bounded.group.axes.pp[place])
            every = np.full(pp, question.job.model.layers)
            for problem in problems_of(space, bounded.group, place, every):
                drawn_rows = (
                    tuple(number.choice(table) for table in problem.tables) for _ in range(60)
                )
                whole = (
                    rows for rows in drawn_rows if sum(row.layers for row in rows) == problem.layers
                )
                for rows in islice(whole, 3):
                    priced = estimate(question.job, layout_from(space, bounded.group, place, rows))
                    assert priced.memory.fits
                    assert priced.run.wall_time_s >= bounded.walls[place] * (1 - 1e-12)
                    room = bounded.rooms(place, priced.run.wall_time_s)
                    assert all(row.layers <= most for row, most in zip(rows, room, strict=True))
                    seen += 1
    assert seen >= 3 or memory_gib < 4


def value_of_best(problem: Stagewise) -> float:
    """Of every choice of rows that holds all layers."""
    return min(
        (
            problem.value_s(rows)
            for rows in product(*problem.tables)
            if sum(row.layers for row in rows) == problem.layers
        ),
        default=np.inf,
    )


@pytest.mark.parametrize("memory_gib", [3.5, 5.0, 8.0])
def test_a_number_of_recomputed_layers_is_dropped_for_its_bound_alone(memory_gib: float) -> None:
    """Megatron recomputes as many layers on every stage: a number whose best rows are within a
    limit is never left out; within no time all are."""
    space = space_of(asked(None, memory_gib, "megatron-core"))
    rounds = Rounds(space, Budget(), 0.0)
    search = Pipelines(space, rounds.tables, rounds.clock, Budget(), np.inf)
    kept = 0
    for bounded in search.bounded(np.inf):
        if bounded.group.variant.counts != "same":
            continue
        for place in random.Random(1).sample(range(len(bounded.group)), 40):
            every = np.full(int(bounded.group.axes.pp[place]), space.job.model.layers)
            where = (space, bounded.group, place, every)
            problems = list(problems_of(*where))
            for problem in problems:
                best = value_of_best(problem)
                found = list(problems_of(*where, best)) if best < np.inf else [problem]
                assert problem in found
                kept += len(found)
            assert not list(problems_of(*where, 0.0))
    assert kept


@pytest.mark.parametrize("made", [drawn, late])
@pytest.mark.parametrize("seed", range(DRAWN))
def test_rows_to_start_from_hold_all_layers(seed: int, made: Callable[[int], Stagewise]) -> None:
    problem = made(seed)
    rows = good_rows(problem)
    if rows is None:
        return
    assert sum(row.layers for row in rows) == problem.layers
    assert all(row in table for row, table in zip(rows, problem.tables, strict=True))
    best = best_rows(problem, problem.value_s(rows), Budget(), 10.0)
    assert best.rows is not None
    assert problem.value_s(best.rows) <= problem.value_s(rows) * (1 + 1e-8)


def test_rows_to_start_from_move_layers_where_that_helps() -> None:
    """Six layers on two stages, of which the second works at half the price: filled up to the
    slowest stage first, then moved over."""
    dear, cheap = (tuple(Row(n, 0, float(n), price * n) for n in range(1, 6)) for price in (2, 1))
    rows = good_rows(Stagewise(6, 0.1, (dear, cheap)))
    assert rows is not None
    assert [row.layers for row in rows] == [1, 5]


def test_out_of_time_the_rows_to_start_from_are_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = Chosen(None, proved=False)
    monkeypatch.setattr("layoutopt.optimizer.stagewise._best", lambda *_: nothing)
    table = tuple(Row(n, 0, float(n), 0.0) for n in range(1, 6))
    problem = Stagewise(6, 1.0, (table, table))
    found = best_rows(problem, 100.0, Budget(), 10.0)
    assert not found.proved
    assert found.rows is not None
    assert [row.layers for row in found.rows] == [3, 3]
    assert best_rows(problem, 2.0, Budget(), 10.0) == nothing
