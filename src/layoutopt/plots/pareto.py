"""Cost against days: which clusters are worth their price, and the layout at each knee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from layoutopt.errors import InputError
from layoutopt.plots.series import Row, Series, Sweep
from layoutopt.plots.style import COLORS, MARKERS, label_up, panels, plain_numbers
from layoutopt.units import format_count

MOST_LABELS = 6
"""Knees whose layout is written down."""
MOST_PANELS = 6


def pareto(sweep: Sweep) -> Any:
    """US dollars against days, both logarithmic, one panel for each job.

    The front, its knees numbered, and under the panel the cluster and layout at each.
    """
    jobs = _jobs(sweep)
    if not jobs:
        raise InputError(
            "nothing has a price: state usd_per_gpu_hour in a cluster file", field="kind"
        )
    if len(jobs) > MOST_PANELS:
        raise InputError(
            f"{len(jobs)} jobs are too many; narrow them with --filter", field="filter"
        )
    figure, axes = panels(len(jobs), wide=7.2, high=6.0, same_across=False, same_up=False)
    for axis, (name, series) in zip(axes, jobs.items(), strict=True):
        for number, one in enumerate(series):
            _draw_series(axis, number, one)
        front = front_of([row for one in series for row in one.rows])
        _draw_front(axis, front)
        _number_knees(axis, knees(front))
        _scales(axis)
        axis.set_title(name if len(jobs) > 1 else "", fontsize=8)
        axis.legend()
    note = "black: nothing else is both sooner and cheaper; bars: 80% band of the step time"
    figure.suptitle("\n".join(filter(None, [sweep.title, note])), fontsize=9)
    return figure


def _jobs(sweep: Sweep) -> dict[str, list[Series]]:
    """Priced curves by what is trained: clusters and layouts are compared for one job alone."""
    found: dict[str, list[Series]] = {}
    for one in sweep.series:
        rows = tuple(row for row in one.rows if row["cost_usd"] is not None)
        if rows:
            first = rows[0]
            job = f"{first['model']}, {format_count(first['run_tokens'])} tokens"
            job += f" in sequences of {first['seq_len_tokens']:,}"
            names = tuple(name for name in one.names if name != first["model"])
            found.setdefault(job, []).append(Series(names, rows, ()))
    return found


def _draw_series(axis: Any, number: int, series: Series) -> None:
    axis.plot(
        [row["wall_days"] for row in series.rows],
        [row["cost_usd"] for row in series.rows],
        color=COLORS[number % len(COLORS)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        linewidth=0.6,
        alpha=0.8,
        label=series.label or None,
    )


def _scales(axis: Any) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    plain_numbers(axis.xaxis)
    axis.tick_params(axis="x", labelrotation=45)
    _dollars(axis.yaxis)
    axis.minorticks_off()
    axis.margins(0.15)
    label_up(axis, "cost of the run, US dollars")


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


def _number_knees(axis: Any, rows: Sequence[Row]) -> None:
    """Numbers beside the knees; what they are stands under the axis."""
    lines = []
    for number, row in enumerate(rows, 1):
        place = (row["wall_days"], row["cost_usd"])
        axis.annotate(str(number), place, textcoords="offset points", xytext=(5, 6), weight="bold")
        degrees = [f"{name}={row[name]}" for name in ("tp", "cp", "pp", "dp", "ep", "vpp")]
        kept = [word for word in degrees if not word.endswith("=1")] or ["dp=1"]
        lines.append(f"{number}: {row['gpus']:,} x {row['gpu']}, {','.join(kept)}")
    axis.set_xlabel("days of the run\n\n" + "\n".join(lines), fontsize=8, ma="left")


def _dollars(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    from layoutopt.report.sweep import money_text

    plain_numbers(axis)
    axis.set_major_formatter(FuncFormatter(lambda value, _: money_text(value)))
