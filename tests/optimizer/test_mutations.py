"""Every rule and every table matters: without it the solver's model answers something else.

The questions are those of the random set. A changed answer is one that breaks a rule, does not fit,
is slower or faster than the best there is, or is there where there should be none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from layoutopt.costmodel.estimate import estimate
from layoutopt.errors import InputError
from layoutopt.optimizer.outcome import Outcome
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.space import RULES, layout_of, space_of
from layoutopt.optimizer.tables import Table, Tables, tables_of
from layoutopt.optimizer.verify import broken
from tests.builders import (
    NARROW,
    extended,
    narrow,
    questions,
    small_cluster,
    small_model,
    small_question,
)
from tests.optimizer.drawn import drawn
from tests.optimizer.solving import bare_answer

TABLES = {
    "layer time": ("layer", ("total", "m_total")),
    "layer memory": ("layer", ("saved",)),
    "embedding and head": ("ends", ("head", "m_head", "embedding", "m_embedding")),
    "messages": ("ends", ("message1", "m_message1")),
    "once a step": ("shard", ("once", "reduce", "reduce_least", "gather", "gather_least")),
    "ZeRO traffic": (
        "shard",
        tuple(f"fine_{way}_wire{end}" for way in ("forward", "backward") for end in ("", "_least")),
    ),
    "model state": ("shard", ("state_first", "state_long", "state_last")),
}
"""Columns that are emptied together: one term of the cost model each."""
PRUNED = (
    "shards_divide_replicas",
    "experts_stay_within_tensor_ranks",
    "context_kind_splits_heads",
)
"""Rules without which there are more layouts, none of them known to win a question."""


@lru_cache(maxsize=1)
def asked() -> tuple[Question, ...]:
    """The first questions of the random set."""
    found: list[Question] = []

    @drawn(110)
    @given(questions())
    def collect(question: Question) -> None:
        found.append(question)

    collect()
    for lifted in NARROW:
        found += sampled(lifted, 6)
    # Few random questions turn on these two: a framework that does not interleave, and messages
    # over a network so slow that they decide between stages and replicas.
    roomy = small_cluster(64.0)
    plain = small_question(small_model(8, 32, 128), 2, 8, 1024, roomy, "deepspeed")
    found.append(replace(plain, fix={"pp": 2, "zero_stage": 0, "recompute": "none"}))
    slow = small_cluster(64.0, per_node=1, network_bytes_per_s=1e9)
    far = narrow(small_question(small_model(6, 16, 128), 8, 8, 1024, slow))
    found.append(replace(far, fix={"recompute": "none"}))
    return tuple(found)


def sampled(lifted: str, count: int) -> list[Question]:
    """Questions whose framework has what ``lifted`` names."""
    found: list[Question] = []

    @drawn(count)
    @given(extended(lifted))
    def collect(question: Question) -> None:
        found.append(question)

    collect()
    return found


@lru_cache(maxsize=256)
def right(place: int) -> Outcome | None:
    """The search's answer; None where no layout is legal."""
    try:
        return search(replace(asked()[place], top=0))
    except InputError:
        return None


TELLING = (6, 10, 46, 27, 2, 8, 19, 37, 38, 39, 47, 52, 55, 66, 75, 110, 116, 118, 127, 146)
"""Places of questions that told a mutant when this was written. They are asked first, to save time;
all others follow where none of them does."""


def changes_something(mutant: Callable[[Question], dict[str, int] | None]) -> bool:
    order = dict.fromkeys((*TELLING, *range(len(asked()))))
    return any(_differs(place, mutant) for place in order)


def _differs(place: int, mutant: Callable[[Question], dict[str, int] | None]) -> bool:
    question = asked()[place]
    chosen = mutant(question)
    answer = right(place)
    plan = answer.plan if answer else None
    if chosen is None or plan is None:
        return (chosen is None) != (plan is None)
    layout = layout_of(question, chosen)
    if layout == plan.layout:
        return False
    priced = estimate(question.job, layout)
    return bool(broken(question, priced)) or (abs(priced.step.time_s / plan.step.time_s - 1) > 1e-5)


@pytest.mark.parametrize("rule", PRUNED)
def test_without_a_rule_that_prunes_there_is_more(rule: str) -> None:
    assert any(
        space_of(question, {rule}).candidates > space_of(question).candidates
        for question in asked()
    )


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in PRUNED])
def test_without_a_rule_an_answer_changes(rule: str) -> None:
    def mutant(question: Question) -> dict[str, int] | None:
        space = space_of(question, {rule})
        return bare_answer(space) if space.grids and space.batches else None

    assert changes_something(mutant)


@pytest.mark.parametrize("term", TABLES)
def test_without_a_table_an_answer_changes(term: str) -> None:
    name, columns = TABLES[term]

    def mutant(question: Question) -> dict[str, int] | None:
        space = space_of(question)
        if not space.candidates:
            return None
        return bare_answer(space, _emptied(tables_of(space), name, columns))

    assert changes_something(mutant)


def test_with_every_rule_and_table_nothing_changes() -> None:
    """The mutants' yardstick: the model as it is."""

    def mutant(question: Question) -> dict[str, int] | None:
        space = space_of(question)
        return bare_answer(space) if space.candidates else None

    assert not any(_differs(place, mutant) for place in range(20))


def _emptied(tables: Tables, name: str, columns: tuple[str, ...]) -> Tables:
    table: Table = getattr(tables, name)
    zero = {c: np.zeros_like(table.columns[c]) for c in columns if c in table.columns}
    emptied: dict[str, Any] = {name: replace(table, columns={**table.columns, **zero})}
    return replace(tables, **emptied)
