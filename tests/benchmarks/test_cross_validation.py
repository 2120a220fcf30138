"""Held-out fits and the bands made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.chords import Vector
from benchmarks.cross_validate import (
    Refit,
    group_key,
    group_splits,
    source_splits,
    with_predictions,
)
from benchmarks.fit_time import Fit, Parameter, cases_of
from benchmarks.fit_uncertainty import Residual, band_width, cells_of, coverage
from layoutopt.costmodel.uncertainty import Kind
from layoutopt.validation import validate
from layoutopt.validation.cases import Case
from tests.validation.builders import row, write

pytestmark = pytest.mark.tree

FITTED = [Parameter("ampere", "gemm16", 0.8, 0.2, 0.3, 1.0)]


def runs(tmp_path: Path, file: str, *batches: int) -> tuple[list[Case], Vector]:
    rows = [
        row(f"{file}-{batch}", training={"global_batch": batch}, measured={"step_time_s": 10.0})
        for batch in batches
    ]
    return cases_of(validate([write(tmp_path / f"{file}.jsonl", *rows)]).records)


def test_sources_are_held_out_whole(tmp_path: Path) -> None:
    cases = runs(tmp_path, "a", 32, 64)[0] + runs(tmp_path, "b", 32)[0]
    assert [(s.name, s.rows) for s in source_splits(cases)] == [
        ("a.jsonl", (0, 1)),
        ("b.jsonl", (2,)),
    ]


def test_a_group_is_never_on_both_sides(tmp_path: Path) -> None:
    """Same model, same cluster, two sources: one group."""
    cases = runs(tmp_path, "a", 32, 64)[0] + runs(tmp_path, "b", 32)[0]
    assert len({group_key(case) for case in cases}) == 1
    assert [split.rows for split in group_splits(cases)] == [(0, 1, 2)]


def test_folds_are_about_equally_large() -> None:
    measured = Path(__file__).parents[2] / "benchmarks" / "measured" / "bigscience.jsonl"
    cases, _ = cases_of(validate([measured]).records)
    splits = group_splits(cases, 3)
    assert sorted(place for split in splits for place in split.rows) == list(range(len(cases)))
    assert len(splits) == 3


def test_a_fit_forgets_what_is_held_out(tmp_path: Path) -> None:
    """Rows made with gemm16 0.6, and one that would want 0.9: held out, it has no say."""
    cases, _ = runs(tmp_path, "a", 32, 64, 128, 256)
    fit = Refit(cases, np.ones(4), FITTED)
    measured = fit.fit.predicted(np.array([0.6]))
    measured[3] = fit.fit.predicted(np.array([0.9]))[3]
    fit = Refit(cases, measured, FITTED)
    alone = fit.without({3}, steps=8)[0]
    assert alone == pytest.approx(0.6, abs=0.01)
    assert fit.without(set(), steps=8)[0] > alone + 0.005


def test_a_fit_finds_what_made_the_runs_from_far_away(tmp_path: Path) -> None:
    """A figure that starts more than two spreads from what made the runs: on the way its column of
    derivatives is taken anew."""
    fitted = [*FITTED, Parameter("ampere", "memory", 0.8, 0.1, 0.3, 1.0)]
    cases, _ = runs(tmp_path, "a", 32, 64, 128, 256)
    other, _ = runs(tmp_path, "b", 512)
    fit = Fit([*cases, *other], np.ones(5), fitted)
    fit.measured = fit.predicted(np.array([0.5, 0.8]))
    found = fit.solve(np.array([0.95, 0.8]))
    assert np.allclose(fit.predicted(found), fit.measured, rtol=0.02)
    assert abs(found[0] - 0.5) < 0.05


def test_predictions_are_replaced_by_id(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", row("one"), row("two"))
    first, second = with_predictions(validate([path]).records, {"one": 12.5})
    assert (first.predicted_s, second.predicted_s) == (12.5, None)


def test_the_rank_of_a_band() -> None:
    """Of 9 values the ceil(10 x 0.8) = 8th; of 4 the 4th."""
    assert band_width([0.01 * number for number in range(1, 10)]) == pytest.approx(0.08)
    assert band_width([0.4, 0.1, 0.3, 0.2]) == 0.4


def residual(off: float, fold: str, framework: str = "nemo") -> Residual:
    return Residual(Kind("hopper", framework, False, 64), "dgxc", fold, off, 2 * off)


def test_cells_of_few_runs_are_left_out() -> None:
    rows = [residual(0.01 * number, "fold 1") for number in range(1, 11)]
    cells = cells_of([*rows, residual(0.5, "fold 1", "jax")])
    mine = cells[Kind("hopper", "nemo", False, 64)]
    assert (mine.records, mine.step_time_rel, mine.away_rel) == (10, 0.09, 0.18)
    assert Kind("hopper", "jax", False, 64) not in cells
    assert cells[Kind("hopper", None, False, 64)].records == 11


def test_coverage_is_of_the_other_folds() -> None:
    """Both folds hold the same errors: 9 of 10 lie within the band of the other fold."""
    rows = [residual(0.01 * n, fold) for fold in ("fold 1", "fold 2") for n in range(1, 11)]
    assert coverage(rows)["all"] == {"runs": 20, "inside": 0.9}
