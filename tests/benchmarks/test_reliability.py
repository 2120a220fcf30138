"""docs/reliability.md shows what benchmarks/reliability.py computes, from the facts as they are."""

from __future__ import annotations

import pytest

from benchmarks.reliability import (
    BEGIN,
    END,
    PAGE,
    PICTURES,
    facts,
    published,
    rates_table,
    saves_table,
    with_section,
)

pytestmark = pytest.mark.tree
TEXT = PAGE.read_text("utf-8")
RUNS = published(facts())


def test_the_page_is_up_to_date() -> None:
    """The closed form's column, the saves and the rates; the simulated column has its own test."""
    for run in RUNS:
        assert f"| {run.name} | {run.published} | {run.predicted():.1%} |" in TEXT
    for line in (*saves_table(facts()), *rates_table(facts())):
        assert f"{line}\n" in TEXT


def test_only_the_generated_part_is_replaced() -> None:
    part = TEXT.split(BEGIN)[1].split(END)[0]
    assert with_section(TEXT, part) == TEXT
    assert with_section(f"a\n{BEGIN}old\n{END}b\n", "new\n") == f"a\n{BEGIN}new\n{END}b\n"


def test_the_pictures_are_there() -> None:
    for name in PICTURES:
        assert (PAGE.parent / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in TEXT


@pytest.mark.parametrize("run", RUNS[:2], ids=lambda run: run.name)
def test_simulated_and_predicted_effective_times_agree(run: object) -> None:
    one = next(each for each in RUNS if each is run)
    mean, low, high = one.simulated()
    assert mean == pytest.approx(one.predicted(), abs=0.002)
    assert low < mean < high
    assert f"{mean:.1%}, {low:.1%} to {high:.1%}" in TEXT


def test_llama_3s_effective_time_is_met() -> None:
    """Above 90%, with its stated rate and a restart that is not fitted to it."""
    assert RUNS[0].record == "llama3-405b"
    assert 0.90 < RUNS[0].predicted() < 0.95
