"""Days and MFU against GPUs, with the band that the prediction carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from layoutopt.errors import InputError
from layoutopt.plots.series import Row, Series, Sweep
from layoutopt.plots.style import COLORS, MARKERS, gpu_axis, label_up, panels, plain_numbers

MOST_CURVES = 8
"""Curves of one panel; more are put into panels by their first name."""
MOST_PANELS = 12
_STYLES = ("-", "--", ":", "-.")

Figure = Callable[[Row], float]


def scaling(sweep: Sweep) -> Any:
    """Days of the run against GPUs, both logarithmic, beside perfect scaling."""
    figure, axes = _panels(sweep)
    for axis, (name, series) in zip(axes, _grouped(sweep), strict=True):
        for number, one in enumerate(series):
            _curve(axis, number, one, lambda row: row["wall_days"], _slower)
            if one.rows:
                first = one.rows[0]
                counts = [row["gpus"] for row in one.rows]
                days = [first["wall_days"] * first["gpus"] / count for count in counts]
                axis.plot(counts, days, color="#999999", linewidth=0.7, linestyle=":", zorder=1)
        axis.set_yscale("log")
        plain_numbers(axis.yaxis)
        _finish(axis, name, series, "days of the run")
    figure.suptitle(_title(sweep, "dotted: perfect scaling"), fontsize=9)
    return figure


def mfu(sweep: Sweep) -> Any:
    """MFU in per cent against GPUs."""
    figure, axes = _panels(sweep)
    for axis, (name, series) in zip(axes, _grouped(sweep), strict=True):
        for number, one in enumerate(series):
            _curve(axis, number, one, lambda row: 100 * row["mfu"], _fewer)
        axis.set_ylim(bottom=0)
        _finish(axis, name, series, "MFU, per cent of the dense peak")
    figure.suptitle(_title(sweep), fontsize=9)
    return figure


def _slower(row: Row) -> tuple[float, float]:
    """Factors on a time: the band of the measured step time."""
    off = row["step_time_uncertainty_rel"] or 0.0
    return 1 - off, 1 + off


def _fewer(row: Row) -> tuple[float, float]:
    """Factors on a rate: one over those of the time."""
    low, high = _slower(row)
    return 1 / high, 1 / max(low, 0.05)


def _curve(
    axis: Any,
    number: int,
    series: Series,
    value: Figure,
    band: Callable[[Row], tuple[float, float]],
) -> None:
    color = COLORS[number % len(COLORS)]
    counts = [row["gpus"] for row in series.rows]
    values = [value(row) for row in series.rows]
    factors = [band(row) for row in series.rows]
    axis.plot(
        counts,
        values,
        color=color,
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        linewidth=1.4,
        linestyle=_STYLES[number // len(COLORS) % len(_STYLES)],
        label=series.label or None,
        zorder=3,
    )
    low = [v * f[0] for v, f in zip(values, factors, strict=True)]
    high = [v * f[1] for v, f in zip(values, factors, strict=True)]
    axis.fill_between(counts, low, high, color=color, alpha=0.15, linewidth=0)
    if series.misses:
        # Above the axis, one row a curve: they have no value to stand at.
        at = [row["gpus"] for row in series.misses]
        place = axis.get_xaxis_transform()
        height = [0.02 + 0.025 * number] * len(at)
        axis.plot(at, height, "x", color=color, markersize=5, transform=place, zorder=4)


def _grouped(sweep: Sweep) -> list[tuple[str, list[Series]]]:
    """Panels: all curves in one, or by their first name where they are many."""
    if len(sweep.series) <= MOST_CURVES:
        return [("", list(sweep.series))]
    groups: dict[str, list[Series]] = {}
    for one in sweep.series:
        rest = Series(one.names[1:], one.rows, one.misses)
        groups.setdefault(one.names[0] if one.names else "", []).append(rest)
    if len(groups) > MOST_PANELS or max(map(len, groups.values())) > 2 * MOST_CURVES:
        raise InputError(
            f"{len(sweep.series)} curves cannot be told apart; narrow them with --filter",
            field="filter",
            value=len(sweep.series),
        )
    return list(groups.items())


def _panels(sweep: Sweep) -> tuple[Any, list[Any]]:
    return panels(len(_grouped(sweep)))


def _title(sweep: Sweep, *notes: str) -> str:
    banded = any(row["step_time_uncertainty_rel"] for row in sweep.rows)
    words = ["band: 80% of comparable measured runs"] if banded else []
    words += ["x: no layout"] if any(one.misses for one in sweep.series) else []
    return "\n".join(filter(None, [sweep.title, "; ".join([*words, *notes])]))


def _finish(axis: Any, name: str, series: Sequence[Series], up: str) -> None:
    gpu_axis(axis, [row["gpus"] for one in series for row in (*one.rows, *one.misses)])
    label_up(axis, up)
    if name:
        axis.set_title(name)
    if any(one.label for one in series):
        axis.legend()
