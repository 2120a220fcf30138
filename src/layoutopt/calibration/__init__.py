"""A site's own efficiencies from its own measured runs: what ``layoutopt calibrate`` does."""

from __future__ import annotations

from layoutopt.calibration.fit import Calibrated, RunRow, calibrate
from layoutopt.calibration.site import SCHEMA, Factors, Site, SiteErrors, load_site

__all__ = [
    "SCHEMA",
    "Calibrated",
    "Factors",
    "RunRow",
    "Site",
    "SiteErrors",
    "calibrate",
    "load_site",
]
