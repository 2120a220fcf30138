"""Memory of the worst stage and the seconds of a step, part by part, by cluster size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from layoutopt.costmodel.results import BREAKDOWN, PART_NAMES
from layoutopt.errors import InputError
from layoutopt.plots.series import Row, Series, Sweep
from layoutopt.plots.style import PARTS, label_up, panels
from layoutopt.sweep.columns import MEMORY_PARTS
from layoutopt.units import format_seconds

MOST_PANELS = 12


def memory(sweep: Sweep) -> Any:
    """GiB on one GPU of the worst stage, stacked, beside what can be used."""
    parts = {name: _column(f"{name}_gib") for name in MEMORY_PARTS}
    figure, axes = _figure(sweep)
    for axis, one in zip(axes, _drawn(sweep), strict=True):
        _stack(axis, one.rows, parts)
        usable = [row["usable_memory_gib"] for row in one.rows]
        places = range(len(usable))
        axis.hlines(
            usable, [p - 0.5 for p in places], [p + 0.5 for p in places], color="black",
            linewidth=1.0, linestyle="--", label="usable",
        )  # fmt: skip
        _finish(axis, one, "GiB on a GPU of the worst stage")
    _legend(figure, axes[0], sweep.title)
    return figure


def breakdown(sweep: Sweep) -> Any:
    """Shares of a step in per cent, with its seconds and their band above each bar."""
    figure, axes = _figure(sweep)
    shown = [part for part in BREAKDOWN if any(row[f"{part}_s"] for row in sweep.rows)]
    parts = {PART_NAMES[part]: _share(part) for part in shown}
    for axis, one in zip(axes, _drawn(sweep), strict=True):
        _stack(axis, one.rows, parts)
        for place, row in enumerate(one.rows):
            off = row["step_time_uncertainty_rel"]
            band = f" ±{off:.0%}" if off else ""
            text = f"{format_seconds(row['step_time_s'])}{band}"
            axis.text(place, 102, text, ha="center", va="bottom", fontsize=7, rotation=90)
        axis.set_ylim(0, 150)
        axis.set_yticks(range(0, 101, 20))
        _finish(axis, one, "per cent of a step")
    _legend(figure, axes[0], sweep.title)
    return figure


def _column(name: str) -> Callable[[Row], float]:
    return lambda row: float(row[name] or 0.0)


def _share(part: str) -> Callable[[Row], float]:
    return lambda row: 100.0 * row[f"{part}_s"] / row["step_time_s"]


def _drawn(sweep: Sweep) -> list[Series]:
    return [one for one in sweep.series if one.rows]


def _figure(sweep: Sweep) -> tuple[Any, list[Any]]:
    drawn = _drawn(sweep)
    if len(drawn) > MOST_PANELS:
        raise InputError(
            f"{len(drawn)} panels are too many; narrow them with --filter",
            field="filter",
            value=len(drawn),
        )
    # Bars stand at places, not at counts: each panel has its own axis.
    return panels(len(drawn), wide=8.0, same_across=False)


def _stack(axis: Any, rows: Sequence[Row], parts: dict[str, Callable[[Row], float]]) -> None:
    places = list(range(len(rows)))
    below = [0.0] * len(rows)
    for number, (name, value) in enumerate(parts.items()):
        heights = [value(row) for row in rows]
        color = PARTS[number % len(PARTS)]
        axis.bar(places, heights, bottom=below, color=color, width=0.8, label=name)
        below = [b + h for b, h in zip(below, heights, strict=True)]


def _finish(axis: Any, series: Series, up: str) -> None:
    number = len(series.rows)
    kept = range(0, number, -(-number // 12))
    axis.set_xticks(list(kept), [f"{series.rows[n]['gpus']:,}" for n in kept])
    axis.tick_params(axis="x", labelrotation=45 if number > 5 else 0, labelbottom=True)
    axis.grid(visible=False, axis="x")
    axis.set_xlabel("GPUs")
    label_up(axis, up)
    if series.label:
        axis.set_title(series.label, fontsize=8)


def _legend(figure: Any, axis: Any, title: str) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center")
    figure.suptitle(title, fontsize=9)
