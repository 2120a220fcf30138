"""The front of wall time against cost, and what a better machine would be worth, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.costmodel.results import Estimate
from layoutopt.report.answer import Answer
from layoutopt.report.console import table
from layoutopt.report.plan_json import layout_difference, layout_line
from layoutopt.units import DAY, HOUR, format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def front_part(answer: Answer) -> list[RenderableType]:
    """Each count that no other beats in both, the chosen one marked."""
    if answer.pareto is None:
        return []
    chosen = answer.layout.gpus if answer.layout else None
    rows = [
        (
            f"{plan.layout.gpus:,}{' *' if plan.layout.gpus == chosen else ''}",
            f"{plan.run.wall_time_s / DAY:,.2f}",
            _price(plan),
            f"{plan.step.mfu:.1%}",
            layout_line(plan.layout),
        )
        for plan in answer.pareto
    ]
    header = ("Time against cost: GPUs", "days", "cost", "MFU", "layout")
    counts = answer.search.counts if answer.search else None
    note = ""
    if counts is not None and counts.pareto_proved is False:
        note = "The time limit came first: counts may be missing from this front."
    return ["", table(rows, header, right=(0, 1, 2, 3)), *([note] if note else [])]


def worth_part(answer: Answer) -> list[RenderableType]:
    """What each improvement of the machine saves, and the layout where it is another."""
    plan = answer.plan
    if answer.sensitivity is None or plan is None:
        return []
    rows = []
    for worth in answer.sensitivity:
        if worth.estimate is None or worth.saved_s is None:
            rows.append((worth.change, "-", "-", "not proved in time"))
            continue
        other = layout_difference(worth.estimate.layout, plan.layout)
        share = f"{worth.saved_s / plan.run.wall_time_s:.1%}"
        rows.append((worth.change, format_seconds(worth.saved_s), share, other or "the same"))
    header = ("Worth of a better machine", "saves", "of the run", "layout, solved again")
    return ["", table(rows, header, right=(1, 2))]


def _price(plan: Estimate) -> str:
    """Dollars, or GPU-hours where no price is known."""
    if plan.run.cost_usd is not None:
        return f"${format_count(round(plan.run.cost_usd))}"
    return f"{plan.run.wall_time_s * plan.layout.gpus / HOUR:,.0f} GPU-h"
