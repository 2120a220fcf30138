"""What to do when nothing fits: by how much it missed, and what each way out costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.outcome import Change, Miss
from layoutopt.report.answer import Answer
from layoutopt.report.console import heading, table, wrapped
from layoutopt.report.plan_json import layout_line
from layoutopt.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def misses_part(answer: Answer) -> list[RenderableType]:
    """Each near miss, with the changes that would help below it."""
    items: list[RenderableType] = []
    for miss in answer.misses:
        items += [
            heading(f"Nearest miss: {miss_line(miss)}"),
            table([("layout", wrapped(layout_line(miss.layout)))]),
        ]
        if miss.changes:
            rows = [_change_row(change) for change in miss.changes]
            items.append(table(rows, ("What would help", "to", "step"), right=(2,)))
    return items


def miss_line(miss: Miss) -> str:
    """The limit, where it is missed, and by how much."""
    parts = [miss.limit]
    parts += [f"on stage {miss.stage}"] if miss.stage is not None else []
    if miss.over_bytes is not None:
        parts.append(f"is {format_bytes(miss.over_bytes)} over")
    if miss.over_s is not None:
        parts.append(f"is {format_seconds(miss.over_s)} over")
    if miss.over_usd is not None:
        parts.append(f"is ${miss.over_usd:,.0f} over")
    if miss.over_w is not None:
        parts.append(f"is {miss.over_w / 1000:,.1f} kW over")
    return " ".join(parts)


def _change_row(change: Change) -> tuple[str, str, str]:
    step = format_seconds(change.step_time_s) if change.step_time_s is not None else "-"
    return change.option, change.value, step
