"""The figures that the project is judged by, on a few records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.headline import Figure, balanced_accuracy, headline, of_source
from benchmarks.peers import PEERS, llama3_rates
from layoutopt.validation import Scored, validate
from tests.validation.builders import row, write

pytestmark = pytest.mark.tree


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scored, ...]:
    """Three runs measured at 0.9, 1.0 and 1.3 times what is predicted, and one that died."""
    path = tmp_path_factory.mktemp("records") / "mine.jsonl"
    rows = [row(f"run-{number}") for number in range(3)]
    died = row("died", measured={"step_time_s": None, "oom": True})
    scored = validate([write(path, *rows, died)]).records
    shares = (1 / 0.9, 1.0, 1 / 1.3)
    ran = [
        replace(entry, predicted_s=10.0 * share)
        for entry, share in zip(scored, shares, strict=False)
    ]
    return (*ran, replace(scored[3], predicted_oom=False))


def figures(entries: tuple[Scored, ...]) -> dict[str, Figure]:
    return {figure.name: figure for figure in headline(entries)}


def test_errors_of_dense_runs(entries: tuple[Scored, ...]) -> None:
    """Errors 1/9, 0 and 0.3/1.3: median 11.1%, mean 11.4%."""
    found = figures(entries)
    assert found["dense, step time: median"].value == pytest.approx(1 / 9)
    assert found["dense, step time: mean"].value == pytest.approx((1 / 9 + 0.3 / 1.3) / 3)
    assert found["dense, step time: median"].reached is False
    assert found["dense, step time: bias of the median"].reached is True
    assert found["experts, step time: median"].value is None


def test_balanced_accuracy_weighs_deaths_as_much_as_runs(entries: tuple[Scored, ...]) -> None:
    """Three runs told rightly, one death missed: (100% + 0%) / 2, though 3 of 4 are right."""
    assert balanced_accuracy(entries) == 0.5


def test_a_figure_that_should_be_large() -> None:
    assert Figure("Spearman", 0.95, 10, 0.9, at_least=True).reached is True
    assert Figure("Spearman", 0.85, 10, 0.9, at_least=True).reached is False
    assert Figure("anything", None, 0, 0.9).reached is None


def test_the_peers_runs_are_all_among_the_records() -> None:
    measured = Path(__file__).parents[2] / "benchmarks" / "measured"
    scored = validate([measured / "papers.jsonl", measured / "simumax.jsonl"]).records
    numbers = [
        sum(peer.which(entry) and entry.counts("time") for entry in scored) for peer in PEERS
    ]
    assert numbers == [8, 62, 26]
    rates = llama3_rates(scored)
    assert [rate.published for rate in rates] == [430, 400, 380]
    for rate in rates:
        assert rate.by_6nd < rate.by_causal < rate.by_full
    vtrain = [entry for entry in scored if of_source("vTrain")(entry)]
    assert {entry.record.model["name"] for entry in vtrain} == {"GPT 18.4B", "GPT 39.1B"}
