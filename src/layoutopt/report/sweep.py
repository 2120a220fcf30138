"""A sweep for people: how many points, how they ended, and the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layoutopt.report.console import heading, render, table
from layoutopt.sweep.spec import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.sweep.points import Points
    from layoutopt.sweep.spec import Spec
    from layoutopt.sweep.store import Store
    from layoutopt.sweep.sweep import Summary

MOST_SHOWN = 20
"""Rows of the table; the report and the exports have all."""
_SHOWN = ("asked", "status", "wall_days", "cost_usd", "mfu", "layout", "reason")
_MOST_VALUES = 8


def sweep_table(spec: Spec, summary: Summary, store: Store, *, color: bool = False) -> str:
    """Points, how they ended, and a table of the first rows."""
    lines = [
        *spec_lines(spec, summary.points, summary.twice),
        ("Ended", ", ".join(f"{n:,} {status}" for status, n in sorted(summary.statuses.items()))),
        ("Solved", f"{summary.solved:,} now, {summary.there:,} before ({summary.wall_s:.2f} s)"),
        ("Results", str(summary.path)),
    ]
    return render([table(lines), *_rows_part(spec, store)], color=color)


def dry_table(spec: Spec, points: Points, there: int, *, color: bool = False) -> str:
    """What a sweep would do."""
    lines = [
        *spec_lines(spec, len(points.points), points.twice),
        ("To solve", f"{len(points.points) - there:,}; {there:,} have an answer"),
    ]
    refused = sum(point.refused is not None for point in points.points)
    if refused:
        lines.append(("Refused", f"{refused:,} that arithmetic or a framework's rule excludes"))
    return render([table(lines)], color=color)


def spec_lines(spec: Spec, points: int, twice: int) -> list[tuple[str, str]]:
    """The axes with their values, how the batch scales, and the number of points."""
    lines = [(name, values_text(values)) for name, values in axis_values(spec).items()]
    fixed = ", ".join(f"{name}={shown(value)}" for name, value in spec.fixed.items())
    lines += [("Fixed", fixed)] if fixed else []
    lines.append(("Batch", batch_text(spec)))
    also = f" ({twice:,} more ask the same as another)" if twice else ""
    return [*lines, ("Points", f"{points:,}{also}")]


def axis_values(spec: Spec) -> dict[str, list[str]]:
    """The values of each axis as text, each once."""
    return {
        name: list(dict.fromkeys(shown(row[place]) for row in block.rows))
        for block in spec.blocks
        for place, name in enumerate(block.names)
    }


def values_text(values: Sequence[str]) -> str:
    """A few values, or the first and last of many."""
    if len(values) <= _MOST_VALUES:
        return ", ".join(values)
    return f"{', '.join(values[:3])}, ... {values[-1]} ({len(values):,} values)"


def batch_text(spec: Spec) -> str:
    """Whether the batch is the same for all cluster sizes (strong scaling) or grows (weak)."""
    batches = axis_values(spec).get("global_batch", [])
    batch = spec.fixed.get("global_batch")
    given = [*batches, *([shown(batch)] if batch is not None else [])]
    if any("per GPU" in one for one in given):
        return f"weak scaling: {', '.join(given)} (sequences a step)"
    if given:
        return f"strong scaling: {', '.join(given)} sequences a step on any number of GPUs"
    return "strong scaling: solve's own batch, the same tokens a step as far as the GPUs divide it"


def _rows_part(spec: Spec, store: Store) -> list[RenderableType]:
    import json

    rows = []
    for number, row in enumerate(store.rows(columns=_SHOWN)):
        if number == MOST_SHOWN:
            break
        values = dict(zip(_SHOWN, row, strict=True))
        asked = json.loads(values["asked"])
        rows.append([*(str(asked.get(name, "")) for name in spec.axes), *_cells(values)])
    header = [*spec.axes, "status", "days", "cost", "MFU", "layout"]
    number = len(spec.axes)
    more = sum(store.statuses().values()) - len(rows)
    title = f"The first {len(rows)} of {len(rows) + more:,}" if more > 0 else "Answers"
    return [heading(title), table(rows, header, right=(number + 1, number + 2, number + 3))]


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Status, days, dollars, MFU and the layout, or why there is none."""
    if row["layout"] is None:
        return [row["status"], "", "", "", row["reason"] or ""]
    cost = "" if row["cost_usd"] is None else money_text(row["cost_usd"])
    layout = row["layout"].replace(",", ", ")
    return [row["status"], days_text(row["wall_days"]), cost, f"{row['mfu']:.1%}", layout]


def days_text(days: float) -> str:
    """Days with three significant digits, no fewer than the whole number."""
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def money_text(usd: float) -> str:
    """``$1.25M``."""
    for scale, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if usd >= scale:
            return f"${usd / scale:.3g}{suffix}" if usd < 1000 * scale else f"${usd / scale:,.0f}B"
    return f"${usd:.3g}"
