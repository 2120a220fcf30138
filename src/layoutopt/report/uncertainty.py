"""How far a predicted step time is from measured ones, for the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from layoutopt.costmodel.uncertainty import Band, band
from layoutopt.inputs.request import Request

NOISE_FLOOR = 0.04
"""Equal runs differ by 1 to 4%: no band is narrower."""

ENOUGH_RUNS = 10
"""Runs of a site from which on their own residuals make the band."""


def uncertainty(request: Request) -> dict[str, Any]:
    """The JSON ``uncertainty``; step_time_rel is null where no residuals have been recorded."""
    return _at_site(band(request.job), request).to_dict()


def _at_site(shipped: Band, request: Request) -> Band:
    """The band with a calibration: that of the site's own left-out runs if they are enough."""
    site = request.calibration
    if site is None or site.errors is None:
        return shipped
    number = len(site.runs)
    own = f"{number} runs of this site, each left out of the fit, are off by "
    own += f"{site.errors.left_out_mean:.1%} in the mean"
    width = site.errors.left_out_band
    if width is None or number < ENOUGH_RUNS or shipped.extrapolated:
        return replace(shipped, basis=f"{shipped.basis}; {own}")
    return Band(max(NOISE_FLOOR, width), f"80% of them lie within it: {own}", number, True)
