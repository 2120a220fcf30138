"""The fit of a site's factors, on runs that the cost model itself made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layoutopt.calibration import Factors, calibrate
from layoutopt.calibration.runs import unit_slip
from layoutopt.costmodel.estimate import estimate
from layoutopt.errors import InputError
from layoutopt.validation.cases import Case, case_of
from tests.validation.builders import record, row, write

LAYOUTS = ((1, 8, 1), (2, 2, 2), (4, 1, 2), (8, 1, 1), (2, 1, 4), (1, 4, 2))
"""tp, pp, dp on 8 GPUs."""


def sections(tp: int, pp: int, dp: int, step_s: float = 10.0) -> dict[str, Any]:
    return {
        "layout": {"tp": tp, "pp": pp, "dp": dp, "sequence_parallel": tp > 1},
        "measured": {"step_time_s": step_s},
    }


def case(tmp_path: Path, tp: int, pp: int, dp: int) -> Case:
    return case_of(record(tmp_path, row(**sections(tp, pp, dp))))


def site_rows(tmp_path: Path, site: Factors, number: int) -> list[dict[str, Any]]:
    """Records of the first ``number`` layouts, as measured at a site with these factors."""
    rows = []
    for tp, pp, dp in LAYOUTS[:number]:
        found = case(tmp_path, tp, pp, dp)
        seconds = estimate(site.apply(found.job), found.layout).step.time_s
        rows.append(row(f"run-tp{tp}-pp{pp}", **sections(tp, pp, dp, seconds)))
    return rows


@pytest.mark.parametrize("number", [3, 6])
def test_a_slower_site_is_recognised_and_left_out_runs_gain(tmp_path: Path, number: int) -> None:
    """Kernels 15% slower; the prior pulls the factor a little towards 1."""
    rows = site_rows(tmp_path, Factors(compute_time=1.15), number)
    found = calibrate([write(tmp_path / "site.jsonl", *rows)])
    errors = found.site.errors
    assert errors is not None
    assert errors.shipped_mean > 0.10
    assert errors.fitted_mean < 0.01
    assert errors.left_out_mean < 0.03
    assert found.worthwhile
    assert found.site.factors.compute_time == pytest.approx(1.15, abs=0.03)
    assert (errors.left_out_band is None) == (number < 4)


def test_a_site_that_is_as_shipped_stays_as_shipped(tmp_path: Path) -> None:
    rows = site_rows(tmp_path, Factors(), 4)
    found = calibrate([write(tmp_path / "site.jsonl", *rows)])
    assert found.site.factors == Factors()
    assert not found.worthwhile


def test_runs_that_say_nothing_of_time_are_named(tmp_path: Path) -> None:
    rows = site_rows(tmp_path, Factors(), 3)
    died = row("died", **{**sections(1, 1, 8), "measured": {"step_time_s": None, "oom": True}})
    found = calibrate([write(tmp_path / "site.jsonl", *rows, died)])
    assert found.unused == (("died", "no step time and no tokens/s per GPU"),)
    assert len(found.rows) == 3


def refused(tmp_path: Path, *rows: dict[str, Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        calibrate([write(tmp_path / "site.jsonl", *rows)])
    return caught.value


def test_two_runs_are_too_few(tmp_path: Path) -> None:
    error = refused(tmp_path, *site_rows(tmp_path, Factors(), 2))
    assert "needs 3 runs" in error.message


def test_an_impossible_rate_is_refused_by_name(tmp_path: Path) -> None:
    rows = site_rows(tmp_path, Factors(), 3)
    rows[1]["measured"]["step_time_s"] /= 60
    error = refused(tmp_path, *rows)
    assert "run-tp2-pp2" in error.message
    assert "of the dense peak" in error.message
    assert "is it in minutes?" in error.message


def test_milliseconds_are_recognised(tmp_path: Path) -> None:
    rows = site_rows(tmp_path, Factors(), 3)
    rows[0]["measured"]["step_time_s"] *= 1000
    error = refused(tmp_path, *rows)
    assert "run-tp1-pp8" in error.message
    assert "is it in milliseconds?" in error.message
    assert error.field == "measured.step_time_s"


def test_tokens_of_all_gpus_are_recognised(tmp_path: Path) -> None:
    found = case(tmp_path, 2, 2, 2)
    words = unit_slip(1 / 8, found.job, found.layout)
    assert words == "are the tokens/s those of all 8 GPUs?"
    assert unit_slip(1.1, found.job, found.layout) is None


def test_a_stranger_among_the_runs_is_refused_by_name(tmp_path: Path) -> None:
    rows = site_rows(tmp_path, Factors(), 4)
    rows[2]["measured"]["step_time_s"] *= 3
    error = refused(tmp_path, *rows)
    assert "run-tp4-pp1" in error.message
    assert "the other 3 runs" in error.message


def test_two_frameworks_are_not_mixed(tmp_path: Path) -> None:
    rows = site_rows(tmp_path, Factors(), 3)
    rows[2]["framework"] = "torchtitan"
    error = refused(tmp_path, *rows)
    assert "torchtitan" in error.message
    assert "one framework at a time" in error.message
