"""The measured accuracy cannot be lost unnoticed, and the page says what the ledger says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.accuracy import default_files
from benchmarks.headline import Figure, headline
from benchmarks.ledger import LEDGER, PAGE, UNCERTAINTY
from layoutopt.validation import Scored, validate

pytestmark = pytest.mark.tree

WITHIN = 0.10
"""How far a figure may move before the ledger has to be made anew."""

LEAST = 0.004
"""Shares below which a tenth of the figure is smaller than its rounding: 0.4 points are free."""


@pytest.fixture(scope="module")
def entries() -> tuple[Scored, ...]:
    return validate(default_files()).records


@pytest.fixture(scope="module")
def ledger() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(LEDGER.read_text("utf-8"))
    return found


def moved(figure: Figure, then: float | None) -> str | None:
    """What is wrong with a figure that stood at ``then``; None where it still stands there.

    A share of right answers is held by its errors: 97% is 3% wrong.
    """
    now = figure.value
    if now is None or then is None:
        return None if now is then else f"{figure.name}: {then} in the ledger, now {now}"
    if figure.at_least:
        now, then = 1 - now, 1 - then
    if abs(now - then) <= max(LEAST, WITHIN * abs(then)):
        return None
    worse = "worse" if now > then else "better"
    return f"{figure.name}: {then:.4f} in the ledger, now {now:.4f} ({worse})"


def test_accuracy_is_what_the_ledger_says(
    entries: tuple[Scored, ...], ledger: dict[str, Any]
) -> None:
    figures = headline(entries)
    assert {figure.name for figure in figures} == set(ledger["figures"])
    wrong = [words for f in figures if (words := moved(f, ledger["figures"][f.name]))]
    assert not wrong, f"python -m benchmarks.accuracy --markdown renews it: {wrong}"


def test_the_page_shows_the_ledgers_figures(ledger: dict[str, Any]) -> None:
    page = PAGE.read_text("utf-8")
    assert f"parameters {ledger['parameters']}" in page
    for name, value in ledger["figures"].items():
        if value is not None:
            shown = f"{value:.2f}" if "Spearman" in name else f"{value:.1%}"
            line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
            digits = float(line.split("|")[3].strip().removesuffix("%"))
            assert digits == pytest.approx(float(shown.removesuffix("%")), abs=0.11)


def test_bands_hold_what_they_promise() -> None:
    coverage = json.loads(UNCERTAINTY.read_text("utf-8"))["coverage"]
    assert 0.75 <= coverage["all"]["inside"] <= 0.90
    assert coverage["all"]["runs"] > 1000


def test_what_moves_is_noticed() -> None:
    figure = Figure("error", 0.050, 100)
    assert moved(figure, 0.048) is None
    assert "worse" in (moved(figure, 0.040) or "")
    assert "better" in (moved(figure, 0.060) or "")
    right = Figure("right", 0.95, 100, at_least=True)
    assert moved(right, 0.951) is None
    assert "worse" in (moved(right, 0.97) or "")
