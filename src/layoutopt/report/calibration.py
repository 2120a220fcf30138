"""A calibration for people: what moved, what it is worth, run by run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from layoutopt.report.console import render, table

if TYPE_CHECKING:
    from layoutopt.calibration import Calibrated, Factors

_WORDS = {
    "compute_time": "kernel time",
    "memory_rate": "memory bandwidth reached",
    "scaleup_rate": "scale-up bandwidth reached",
    "network_time": "network time",
}


def calibration_table(found: Calibrated, path: str, *, color: bool = False) -> str:
    """Factors, errors before and after, the runs, and how to use the file."""
    site, errors = found.site, found.site.errors
    lines = [("Site", f"{site.gpu} with {site.framework}, {len(site.runs)} runs")]
    if errors:
        lines.append(
            (
                "Error",
                f"{errors.shipped_mean:.1%} with the shipped figures, {errors.fitted_mean:.1%} "
                f"with the fitted ones, {errors.left_out_mean:.1%} on runs left out of the fit "
                "(means)",
            )
        )
    lines += [("Worth", _verdict(found)), ("Written", f"{path}: --calibration {path}")]
    items: list[Any] = [table(lines), "", table(_factor_rows(site.factors), ("Fitted", "change"))]
    rows = [
        (
            row.id,
            f"{row.measured_s:.4g}",
            *(
                f"{seconds:.4g} ({seconds / row.measured_s - 1:+.1%})"
                for seconds in (row.shipped_s, row.fitted_s, row.left_out_s)
            ),
        )
        for row in found.rows
    ]
    header = ("Run", "measured, s", "shipped", "fitted", "left out")
    items += ["", table(rows, header, right=(1, 2, 3, 4))]
    if found.unused:
        items += ["", table(list(found.unused), ("Not used", "why"))]
    return render(items, color=color)


def _verdict(found: Calibrated) -> str:
    if found.worthwhile:
        return "runs left out are predicted better than with the shipped figures"
    return (
        "runs left out are predicted NO better than with the shipped figures: more runs, "
        "or runs that differ more, are needed"
    )


def _factor_rows(factors: Factors) -> list[tuple[str, str]]:
    rows = [(words, f"{getattr(factors, name) - 1:+.1%}") for name, words in _WORDS.items()]
    shift = factors.overlap_shift
    which = "of exposed traffic hidden" if shift >= 0 else "of hidden traffic exposed"
    return [*rows, ("overlap", f"{math.fabs(shift):.1%} {which}")]
