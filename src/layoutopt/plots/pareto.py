"""Cost against days: which clusters are worth their price, and the layout at each knee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from layoutopt.errors import InputError
from layoutopt.plots.series import Row, Sweep
from layoutopt.plots.style import COLORS, MARKERS, panels, plain_numbers

MOST_LABELS = 6
"""Knees whose layout is written beside them."""


def pareto(sweep: Sweep) -> Any:
    """US dollars against days, both logarithmic; the front, with the layout at each knee."""
    priced = [row for row in sweep.rows if row["cost_usd"] is not None]
    if not priced:
        raise InputError(
            "nothing has a price: state usd_per_gpu_hour in a cluster file", field="kind"
        )
    figure, (axis,) = panels(1, wide=8.0, high=5.2)
    for number, one in enumerate(sweep.series):
        rows = [row for row in one.rows if row["cost_usd"] is not None]
        axis.plot(
            [row["wall_days"] for row in rows],
            [row["cost_usd"] for row in rows],
            color=COLORS[number % len(COLORS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=0.6,
            alpha=0.75,
            label=one.label or None,
        )
    front = front_of(priced)
    _draw_front(axis, front)
    for row in knees(front):
        _label(axis, row)
    axis.set_xscale("log")
    axis.set_yscale("log")
    plain_numbers(axis.xaxis)
    _dollars(axis.yaxis)
    axis.margins(0.12)
    axis.set_xlabel("days of the run")
    axis.set_ylabel("cost of the run, US dollars")
    axis.legend()
    note = "black: nothing else is both sooner and cheaper; bars: 80% band of the step time"
    figure.suptitle("\n".join(filter(None, [sweep.title, note])), fontsize=9)
    return figure


def front_of(rows: Sequence[Row]) -> list[Row]:
    """Rows that no other beats in both days and dollars, soonest first."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["wall_days"], row["cost_usd"])):
        if not found or row["cost_usd"] < found[-1]["cost_usd"]:
            found.append(row)
    return found


def knees(front: Sequence[Row]) -> list[Row]:
    """The ends of the front and its sharpest bends, at most MOST_LABELS, soonest first.

    A bend is how far a row lies from the line between its neighbours, on logarithmic scales.
    """
    if len(front) <= MOST_LABELS:
        return list(front)
    inner = range(1, len(front) - 1)
    bends = {n: _bend(*(front[n + k] for k in (-1, 0, 1))) for n in inner}
    sharpest = sorted(inner, key=lambda n: -bends[n])[: MOST_LABELS - 2]
    return [front[n] for n in sorted({0, len(front) - 1, *sharpest})]


def _bend(before: Row, row: Row, after: Row) -> float:
    (ax, ay), (x, y), (bx, by) = map(_place, (before, row, after))
    length = math.hypot(bx - ax, by - ay)
    return abs((bx - ax) * (ay - y) - (ax - x) * (by - ay)) / length if length else 0.0


def _place(row: Row) -> tuple[float, float]:
    return math.log(row["wall_days"]), math.log(row["cost_usd"])


def _draw_front(axis: Any, front: Sequence[Row]) -> None:
    days, dollars = [row["wall_days"] for row in front], [row["cost_usd"] for row in front]
    off = [row["step_time_uncertainty_rel"] or 0.0 for row in front]
    spread = [day * share for day, share in zip(days, off, strict=True)]
    axis.errorbar(
        days,
        dollars,
        xerr=spread,
        color="black",
        ecolor="#999999",
        elinewidth=0.8,
        linewidth=1.2,
        drawstyle="steps-post",
        zorder=2,
        label="front",
    )


def _label(axis: Any, row: Row) -> None:
    degrees = [f"{name}={row[name]}" for name in ("tp", "cp", "pp", "dp", "ep", "vpp")]
    kept = [word for word in degrees if not word.endswith("=1")] or ["dp=1"]
    axis.annotate(
        f"{row['gpus']:,} x {row['gpu']}\n{','.join(kept)}",
        (row["wall_days"], row["cost_usd"]),
        textcoords="offset points",
        xytext=(6, 7),
        fontsize=6.5,
    )


def _dollars(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    from layoutopt.report.sweep import money_text

    plain_numbers(axis)
    axis.set_major_formatter(FuncFormatter(lambda value, _: money_text(value)))
