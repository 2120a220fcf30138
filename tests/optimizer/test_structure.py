"""No enumeration in disguise: how large the model of a large question is, and what it proves."""

from __future__ import annotations

import math

import pytest

from layoutopt.optimizer.floors import floors_of
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.program import build
from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.search import search
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.tables import tables_of
from tests.conftest import FULL
from tests.optimizer.large import LARGE, large


@pytest.mark.parametrize("name", LARGE)
def test_tables_are_small(name: str) -> None:
    """No table over more than 5 axes; all rows together under a quarter of the legal layouts."""
    space = space_of(large(name))
    tables = tables_of(space)
    program = build(space, tables, floors_of(space, tables))
    assert all(len(size.axes) <= 5 for size in program.sizes)
    rows = sum(size.rows for size in program.sizes)
    assert rows < space.candidates / 4
    # The model itself, read back: literals are rows, axis values and a few groups of them, and
    # nothing is hidden in a table constraint or an automaton.
    proto = program.model.proto
    booleans = sum(list(v.domain) == [0, 1] for v in proto.variables)
    values = sum(map(len, space.values.values()))
    assert booleans <= rows + values + 500
    kinds = {str(c).split("{", 1)[0].split()[-1] for c in proto.constraints if str(c)}
    assert not kinds & {"table", "automaton", "element"}


@pytest.mark.parametrize("name", LARGE if FULL else LARGE[:2])
def test_the_bare_model_proves_the_same(name: str) -> None:
    """Without warm start, cut-off and cuts, within 60 s."""
    question = large(name)
    quick = search(question)
    bare = search(question, Budget(seconds=60, use_hints=False))
    assert quick.status == bare.status == Status.OPTIMAL
    assert quick.plan is not None
    assert bare.plan is not None
    assert bare.plan.layout == quick.plan.layout
    assert math.isclose(quick.search.bound or 0, bare.search.bound or 1, rel_tol=1e-6)


@pytest.mark.parametrize("name", LARGE)
def test_the_bound_is_below_the_answer_and_close(name: str) -> None:
    outcome = search(large(name))
    assert outcome.status == Status.OPTIMAL
    assert outcome.plan is not None
    assert outcome.search.bound is not None
    assert outcome.search.gap is not None
    assert outcome.search.bound <= outcome.plan.run.wall_time_s
    assert outcome.search.gap < 1e-6


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_and_seeds_do_not_change_the_answer(workers: int) -> None:
    question = large("405B on 6,000")
    alone = search(question)
    many = search(question, Budget(workers=workers, seed=workers))
    assert alone.plan is not None
    assert many.plan is not None
    assert alone.plan == many.plan
    assert alone.alternatives == many.alternatives
