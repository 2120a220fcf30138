"""Splits that several jobs share, against every choice of rows."""

from __future__ import annotations

import random

import pytest

from layoutopt.optimizer.joint_rows import every_shared, scaled, shared_rows
from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.stagewise import Chain, Row, Stagewise
from tests.conftest import FULL

CASES = 200 if FULL else 30


def _problems(seed: int) -> tuple[list[Stagewise], list[int]]:
    """Two or three problems of two to four stages, some of them alike; the blocks that recompute
    alike."""
    draw = random.Random(seed)
    stages, layers = draw.randint(2, 4), draw.randint(4, 7)
    kinds = [draw.randint(0, 1) for _ in range(stages)]
    blocks = draw.choice(([1, 1], [2], [1, 2], [1, 1, 1]))
    kept = [
        [(n, k) for n in range(1, layers) if draw.random() < 0.8 for k in range(draw.randint(1, 2))]
        for _ in range(2)
    ]
    found = []
    for _ in range(sum(blocks)):
        tables = [
            tuple(
                Row(n, k, n + k * 0.3 + draw.random(), draw.random(), 0.3 * n, k, draw.random())
                for n, k in pairs
            )
            for pairs in kept
        ]
        weights = [[draw.uniform(0, 3) for _ in range(2)] for _ in range(3)]
        chains = tuple(
            Chain(draw.random(), *(tuple(w[kind] for kind in kinds) for w in weights))
            for _ in range(draw.randint(0, 2))
        )
        mine = tuple(tables[kind] for kind in kinds)
        found.append(Stagewise(layers, draw.uniform(0.5, 8), mine, draw.random(), chains))
    return found, blocks


def _value(problems: list[Stagewise], rows: tuple[tuple[Row, ...], ...]) -> float:
    return sum(one.value_s(mine) for one, mine in zip(problems, rows, strict=True))


@pytest.mark.parametrize("seed", range(CASES))
def test_the_shared_split_is_the_best_of_all(seed: int) -> None:
    problems, blocks = _problems(seed)
    every = every_shared(problems, blocks, 10**6)
    assert every is not None
    values = sorted(_value(problems, rows) for rows in every)
    cutoff = 1000.0
    found = shared_rows(problems, blocks, cutoff, Budget(), 10.0)
    assert found.proved
    if not values:
        assert found.rows is None
        return
    assert found.rows is not None
    assert _value(problems, found.rows) == pytest.approx(values[0], abs=1e-7)
    for stage in range(len(problems[0].tables)):
        assert len({mine[stage].layers for mine in found.rows}) == 1
    assert shared_rows(problems, blocks, values[0] * 0.99, Budget(), 10.0).rows is None


def test_a_problem_is_scaled_whole() -> None:
    """Constant 1, factor 2, slowest 3 s, chain 0.5 + 2 x 3, tail 0.2, cost 0.1: 13.8; three times
    as much is 41.4."""
    row = Row(4, 0, 3.0, 0.1, tail_s=0.2)
    problem = Stagewise(4, 2.0, ((row,),), 1.0, (Chain(0.5, (2.0,), (0.0,), (0.0,)),))
    assert problem.value_s([row]) == pytest.approx(13.8)
    thrice = scaled(problem, 3.0)
    assert thrice.value_s([thrice.tables[0][0]]) == pytest.approx(41.4)


def test_too_many_ways_are_not_listed() -> None:
    assert every_shared(*_problems(0), 1) is None
