"""Filters: what they mean, that SQL means the same, and that nothing else gets in."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.errors import InputError
from layoutopt.sweep.condition import Comparison, Condition, Joined, Not, parse

KNOWN = ("gpus", "model", "mfu", "fix.tp")


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("gpus >= 64 and model != '8B'", {"gpus": 64, "model": "70B"}, True),
        ("gpus >= 64 and model != '8B'", {"gpus": 64, "model": "8B"}, False),
        ("gpus < 64 or model == '8B'", {"gpus": 64, "model": "8B"}, True),
        ("not gpus < 64", {"gpus": 64}, True),
        ("64 <= gpus < 128", {"gpus": 128}, False),
        ("64 <= gpus < 128", {"gpus": 64}, True),
        ("64 > gpus", {"gpus": 8}, True),
        ("gpus >= 1000", {"gpus": "1k"}, True),
        ("model in ('8B', '70B')", {"model": "70B"}, True),
        ("model not in ('8B', '70B')", {"model": "70B"}, False),
        ("fix.tp == 8", {"fix.tp": 8}, True),
        ("mfu > 0.4", {"mfu": None}, False),
        ("mfu == None", {"mfu": None}, True),
        ("gpus > -1", {"gpus": 0}, True),
        ("gpus == mfu", {"gpus": 1, "mfu": 1.0}, True),
        ("model > 3", {"model": "llama"}, False),
    ],
)
def test_what_a_filter_means(text: str, values: dict[str, Any], holds: bool) -> None:
    assert parse(text, KNOWN).holds(values) is holds


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "gpus.__class__ == 1",
        "gpus if model else mfu",
        "(lambda: 1)() == gpus",
        "[gpus for gpus in (1, 2)] == gpus",
        "gpus + 1 > 64",
        "gpus",
        "1 < 2",
        "gpus is None",
        "gpus == f'{model}'",
        "gpus == 1; gpus == 2",
        "gpus == b'8'",
        "gpus ==",
        "",
        "(" * 500,
        "not " * 5000 + "gpus == 1",
    ],
)
def test_nothing_but_comparisons_gets_in(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, KNOWN)
    assert caught.value.field == "filter"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"gpuss.*gpus") as caught:
        parse("gpuss > 3", KNOWN)
    assert caught.value.nearest[0] == "gpus"


VALUES = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.floats(-3, 3, allow_nan=False),
    st.sampled_from(["a", "b", "8B"]),
)
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
COMPARISONS = st.builds(Comparison, st.sampled_from(["gpus", "model", "mfu"]), SIGNS, VALUES)
CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    COMPARISONS,
    lambda parts: st.one_of(
        st.builds(Not, parts),
        st.builds(Joined, st.sampled_from(["and", "or"]), st.lists(parts, min_size=1).map(tuple)),
    ),
    max_leaves=5,
)


@given(
    CONDITIONS, st.integers(-3, 3), st.sampled_from(["a", "b", "8B"]), st.none() | st.floats(0, 1)
)
def test_sql_means_the_same(condition: Condition, gpus: int, model: str, mfu: float | None) -> None:
    """The twin of ``holds``: SQLite, on one row."""
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE t (gpus INTEGER, model TEXT, mfu REAL)")
    base.execute("INSERT INTO t VALUES (?, ?, ?)", (gpus, model, mfu))
    text, values = condition.sql()
    (found,) = base.execute(f"SELECT count(*) FROM t WHERE {text}", values).fetchone()
    base.close()
    assert bool(found) is condition.holds({"gpus": gpus, "model": model, "mfu": mfu})
