"""The band of an answer, with and without a site's own figures."""

from __future__ import annotations

from typing import Any

import pytest

import layoutopt
from layoutopt.calibration import Factors, Site, SiteErrors


def answer(gpus: int, site: Site | None = None) -> dict[str, Any]:
    found = layoutopt.estimate(
        model="llama-2-7b",
        gpu="a100-sxm-80gb",
        framework="megatron-core",
        gpus=gpus,
        layout={"tp": 2},
        global_batch=8192,
        calibration=site,
    )
    uncertainty: dict[str, Any] = found.to_dict()["uncertainty"]
    return uncertainty


def site(runs: int, band: float | None) -> Site:
    return Site(
        gpu="a100-sxm-80gb",
        framework="megatron-core",
        factors=Factors(),
        runs=tuple(f"run-{number}" for number in range(runs)),
        errors=SiteErrors(0.2, 0.05, 0.06, band),
    )


def test_few_runs_of_a_site_are_named_beside_the_shipped_band() -> None:
    shipped, mine = answer(8), answer(8, site(3, None))
    assert mine["step_time_rel"] == shipped["step_time_rel"]
    assert mine["basis"] == (
        f"{shipped['basis']}; 3 runs of this site, each left out of the fit, are off by 6.0% in "
        "the mean"
    )


@pytest.mark.parametrize(("band", "shown"), [(0.09, 0.09), (0.01, 0.04)])
def test_ten_runs_of_a_site_make_the_band(band: float, shown: float) -> None:
    """Never narrower than equal runs differ."""
    mine = answer(8, site(10, band))
    assert (mine["step_time_rel"], mine["records"], mine["comparable"]) == (shown, 10, True)


def test_beyond_the_measured_sizes_a_sites_band_does_not_count() -> None:
    shipped, mine = answer(16_384), answer(16_384, site(10, 0.05))
    assert mine["step_time_rel"] == shipped["step_time_rel"]
    assert mine["extrapolated"] is True
