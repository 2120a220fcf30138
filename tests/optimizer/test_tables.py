"""The integer model says what the cost model says: entry by entry, floor by floor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.optimizer.cuts import without_hopeless
from layoutopt.optimizer.exhaustive import layouts_like
from layoutopt.optimizer.floors import Floors, floors_of
from layoutopt.optimizer.pricing import complete, price, row
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.score import entries, step_quanta
from layoutopt.optimizer.space import Space, chosen_of, layout_of, space_of
from layoutopt.optimizer.tables import SHARE_OF_STEP, Tables, mesh, tables_of
from layoutopt.optimizer.wall import Clock
from layoutopt.optimizer.warmstart import FREE
from tests.builders import questions
from tests.conftest import FULL
from tests.optimizer.large import LARGE, large

SAMPLE = 150


def sample(space: Space, seed: int = 0) -> Iterator[dict[str, int]]:
    """Legal layouts drawn at random."""
    drawn = random.Random(seed)
    free = {
        axis: np.array([drawn.choice(space.values[axis]) for _ in range(60_000)]) for axis in FREE
    }
    columns = complete(space, free)
    for place in range(min(SAMPLE, len(columns["tp"]))):
        yield row(columns, place)


@pytest.mark.parametrize("name", LARGE)
def test_integer_steps_are_the_cost_models(name: str) -> None:
    """Within delta, which is a quarter of a millionth of the fastest conceivable step."""
    space = space_of(large(name))
    tables = tables_of(space)
    clock = Clock(space.job, tables)
    allowed = clock.scale * tables.seconds(tables.delta)
    for chosen in sample(space):
        quanta = step_quanta(space, tables, chosen)
        seconds = estimate(space.job, layout_of(space.question, chosen)).step.time_s
        assert clock.step_s(quanta) == pytest.approx(seconds, rel=1e-9, abs=allowed)
    least = int(floors_of(space, tables).shape.columns["step"].min())
    assert tables.delta <= 1.05 * SHARE_OF_STEP * least + 3


def test_prediction_blocks_are_in_both() -> None:
    """Blocks of a last stage: the integer model, its floors and the cost model know them alike."""
    asked = large("1T on 16,384")
    model = asked.job.model.model_copy(update={"mtp_layers": 2})
    space = space_of(replace(asked, job=replace(asked.job, model=model)))
    tables = tables_of(space)
    clock, shape = Clock(space.job, tables), floors_of(space, tables).shape
    allowed = clock.scale * tables.seconds(tables.delta)
    for chosen in islice(sample(space), 40):
        quanta = step_quanta(space, tables, chosen)
        seconds = estimate(space.job, layout_of(space.question, chosen)).step.time_s
        assert clock.step_s(quanta) == pytest.approx(seconds, rel=1e-9, abs=allowed)
        assert entries(shape, chosen)["step"] <= quanta


@pytest.mark.parametrize("name", LARGE)
def test_floors_are_below_every_layout(name: str) -> None:
    space = space_of(large(name))
    tables = tables_of(space)
    floors = floors_of(space, tables)
    layers = {tuple(r): place for place, r in enumerate(tables.layer.rows.tolist())}
    shards = {tuple(r): place for place, r in enumerate(tables.shard.rows.tolist())}
    for chosen in sample(space, seed=1):
        floor = entries(floors.shape, chosen)["step"]
        floor += int(floors.layer_above[layers[tuple(chosen[a] for a in tables.layer.axes)]])
        floor += int(floors.shard_above[shards[tuple(chosen[a] for a in tables.shard.axes)]])
        quanta = step_quanta(space, tables, chosen)
        assert floor <= quanta
        if estimate(space.job, layout_of(space.question, chosen)).memory.fits:
            assert entries(floors.shape, chosen)["tight"] <= quanta


@settings(
    derandomize=True,
    database=None,
    max_examples=100 if FULL else 10,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(questions())
def test_shapes_that_are_called_too_full_never_fit(question: Question) -> None:
    space = space_of(question)
    if not space.candidates:
        return
    floors = floors_of(space, tables_of(space))
    for layout in layouts_like(question, Layout()):
        chosen = {
            "tp": layout.tp,
            "cp": layout.cp,
            "pp": layout.pp,
            "micro_batch": layout.micro_batch,
            "experts": chosen_of(layout)["experts"],
        }
        place = int(np.flatnonzero((floors.shape.rows == list(chosen.values())).all(axis=1))[0])
        full = [
            floors.too_full.get((axis, chosen_of(layout)[axis])) for axis in ("mode", "sharding")
        ]
        if any(flags is not None and flags[place] for flags in full):
            assert not estimate(question.job, layout).memory.fits


def test_cuts_keep_whatever_is_within_them() -> None:
    """No layout of at most the cut-off that fits loses a row, and rows are cut at all."""
    space = space_of(large("1T on 16,384"))
    tables = tables_of(space)
    floors = floors_of(space, tables)
    chosen = list(sample(space, seed=2))
    steps = [step_quanta(space, tables, one) for one in chosen]
    most = sorted(steps)[len(steps) // 3]
    kept, kept_floors = without_hopeless(tables, floors, most)
    assert _rows(kept, kept_floors) < _rows(tables, floors)
    for one, step in zip(chosen, steps, strict=True):
        fits = estimate(space.job, layout_of(space.question, one)).memory.fits
        if step <= most and fits:
            for table in (kept.layer, kept.ends, kept.shard, kept_floors.shape):
                entries(table, one)  # raises InternalError where the row is gone


def _rows(tables: Tables, floors: Floors) -> int:
    return sum(map(len, (tables.layer, tables.ends, tables.shard, floors.shape)))


def test_a_mesh_lists_every_combination_once() -> None:
    space = space_of(large("405B on 6,000"))
    rows = mesh(space, ("tp", "mode"))
    assert len(rows) == len(space.values["tp"]) * len(space.values["mode"])
    assert len({tuple(r) for r in rows.tolist()}) == len(rows)


def test_arrays_and_single_layouts_are_priced_alike() -> None:
    """price is estimate, for many layouts at once."""
    space = space_of(large("405B on 6,000"))
    chosen = list(sample(space, seed=3))[:40]
    columns = {axis: np.array([one[axis] for one in chosen]) for axis in chosen[0]}
    seconds, over = price(space, columns)
    for one, time_s, kib in zip(chosen, seconds.tolist(), over.tolist(), strict=True):
        single = estimate(space.job, layout_of(space.question, one))
        assert time_s == pytest.approx(single.step.time_s, rel=1e-9)
        assert (kib == 0) == single.memory.fits
