"""Days over tensor and pipeline parallelism: what the best layout has beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from layoutopt.errors import InputError
from layoutopt.plots.series import Row, Series, Sweep
from layoutopt.plots.style import label_up, panels

MOST_PANELS = 9
_FIXED = re.compile(r"\b(tp|pp)=(\d+)")


def heatmap(sweep: Sweep) -> Any:
    """Days of the run by tp (across) and pp (up), one panel for each question.

    Raises InputError where a question has fewer than two such layouts: its sweep fixes none.
    """
    questions = _questions(sweep)
    if len(questions) > MOST_PANELS:
        raise InputError(
            f"{len(questions)} heat maps are too many; narrow them with --filter",
            field="filter",
            value=len(questions),
        )
    figure, axes = panels(len(questions), wide=6.4, high=4.8)
    most = max(_times(cells)[place] for _, cells in questions for place in _times(cells))
    for axis, (name, cells) in zip(axes, questions, strict=True):
        image = _draw(axis, cells, most)
        axis.set_title(name, fontsize=8)
    figure.colorbar(image, ax=axes, label="times the days of the framed layout")
    note = "days of the run; grey: no layout fits; blank: not asked; framed: the soonest"
    figure.suptitle("\n".join(filter(None, [sweep.title, note])), fontsize=9)
    return figure


Cells = dict[tuple[int, int], float | None]
"""(tp, pp) to days; None where nothing fits."""


def _questions(sweep: Sweep) -> list[tuple[str, Cells]]:
    """The cells of each question: curves that differ in what is fixed alone are one."""
    found: dict[str, Cells] = {}
    for one in sweep.series:
        for row in (*one.rows, *one.misses):
            name = ", ".join([*_without_fix(one), f"{row['gpus']:,} GPUs"])
            cells = found.setdefault(name, {})
            if (place := _place(row)) is not None:
                days = [d for d in (cells.get(place), row["wall_days"]) if d is not None]
                cells[place] = min(days, default=None)
    drawn = {name: cells for name, cells in found.items() if len(cells) > 1 and any(cells.values())}
    if not drawn:
        raise InputError(
            "a heat map needs several tp and pp of one question; sweep fix.tp and fix.pp",
            field="kind",
            value="heatmap",
        )
    return list(drawn.items())


def _without_fix(series: Series) -> list[str]:
    return [name for name in series.names if not _FIXED.search(name)]


def _place(row: Row) -> tuple[int, int] | None:
    """tp and pp of the layout, or those that were fixed where nothing fits."""
    if row["layout"]:
        return row["tp"], row["pp"]
    fixed = {axis: int(value) for axis, value in _FIXED.findall(row["fix"] or "")}
    return (fixed["tp"], fixed["pp"]) if {"tp", "pp"} <= set(fixed) else None


def _times(cells: Cells) -> dict[tuple[int, int], float]:
    """Days over those of the soonest layout, where there is one."""
    best = min(days for days in cells.values() if days)
    return {place: days / best for place, days in cells.items() if days}


def _draw(axis: Any, cells: Cells, most: float) -> Any:
    tps, pps = (sorted({place[n] for place in cells}) for n in (0, 1))
    times = _times(cells)
    grid = [[times.get((tp, pp), float("nan")) for tp in tps] for pp in pps]
    most = max(most, 1.01)
    image = axis.imshow(grid, origin="lower", cmap="cividis_r", vmin=1, vmax=most, aspect="auto")
    _write(axis, cells, tps, pps, most)
    axis.set_xticks(range(len(tps)), [str(tp) for tp in tps])
    axis.set_yticks(range(len(pps)), [str(pp) for pp in pps])
    axis.tick_params(labelbottom=True, labelleft=True)
    axis.grid(visible=False)
    axis.set_xlabel("tensor parallel degree, tp")
    label_up(axis, "pipeline stages, pp")
    return image


def _write(axis: Any, cells: Cells, tps: Sequence[int], pps: Sequence[int], most: float) -> None:
    from matplotlib.patches import Rectangle

    times = _times(cells)
    for (tp, pp), days in cells.items():
        x, y = tps.index(tp), pps.index(pp)
        corner = (x - 0.5, y - 0.5)
        if days is None:
            axis.add_patch(Rectangle(corner, 1, 1, facecolor="#D9D9D9", edgecolor="white"))
            continue
        # cividis reversed is dark where values are high
        color = "white" if times[tp, pp] > 1 + 0.55 * (most - 1) else "black"
        axis.text(x, y, f"{days:.3g}", ha="center", va="center", fontsize=7, color=color)
        if times[tp, pp] == 1:
            frame = Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.0)
            axis.add_patch(frame)
