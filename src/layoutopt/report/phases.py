"""A run in phases in the answer: the JSON ``phases``, and its part of the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from layoutopt.costmodel.phases import PhasedRun, PhaseEstimate, Restart
from layoutopt.report.console import heading, table
from layoutopt.report.plan_json import layout_json, layout_line, memory_json, step_json
from layoutopt.units import DAY, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.phases import Way
    from layoutopt.optimizer.question import PhaseLayouts

RULES = (
    "A phase is priced as its share of a run that is all like it; failures and saves are those of "
    "the whole run.",
    "A batch that grows under the same layout takes no restart: the microbatches follow it, as "
    "Megatron-LM's --rampup-batch-size does. A new sequence length, GPU count, micro-batch or "
    "recompute does: a full save, a restart, and the load; and so does another layout, whose load "
    "reads the same bytes in other shards.",
)
_WAYS = {
    "auto": "the best of all",
    "one": "one layout for all",
    "each": "each phase its own best",
}


@dataclass(frozen=True)
class PhasesAnswer:
    """The chosen run, and beside it the ways that were not asked for."""

    layouts: PhaseLayouts | None
    """None: the layout was given."""
    plan: PhasedRun
    ways: Mapping[PhaseLayouts, Way]


def phases_json(answer: PhasesAnswer) -> dict[str, Any]:
    """The JSON ``phases``: each phase with its plan, restarts, and what other ways cost."""
    after = {restart.after: restart for restart in answer.plan.restarts}
    return {
        "layouts": answer.layouts,
        "list": [_phase_json(one, after) for one in answer.plan.phases],
        "restart_s": sum(restart.total_s for restart in answer.plan.restarts),
        "ways": {name: _way_json(way, answer.plan) for name, way in answer.ways.items()},
    }


def _phase_json(one: PhaseEstimate, after: Mapping[int, Restart]) -> dict[str, Any]:
    planned = one.planned
    restart = after.get(planned.number)
    return {
        "number": planned.number,
        **asdict(planned.phase),
        "steps": planned.steps,
        "layout": layout_json(one.layout, planned.job),
        "step": step_json(one.step, planned.job),
        "memory": memory_json(one.memory),
        "checkpoint": asdict(one.checkpoint),
        "run": asdict(one.run),
        "restart_after": _restart_json(restart) if restart else None,
    }


def _restart_json(restart: Restart) -> dict[str, Any]:
    entry = {key: value for key, value in asdict(restart).items() if key != "after"}
    return {**entry, "total_s": restart.total_s}


def _way_json(way: Way, plan: PhasedRun) -> dict[str, Any]:
    found = way.plan
    return {
        "wall_time_s": found.run.wall_time_s if found else None,
        "extra_s": found.run.wall_time_s - plan.run.wall_time_s if found else None,
        "cost_usd": found.run.cost_usd if found else None,
        "bound_s": way.bound_s,
        "proved": way.proved,
        "restarts": len(found.restarts) if found else None,
        "layouts": [
            layout_json(one.layout, one.planned.job) for one in (found.phases if found else ())
        ],
        "why_not": way.why_not or None,
    }


def phase_sentences(answer: PhasesAnswer) -> list[str]:
    """What a reader should take from a run in phases, with the numbers."""
    plan, found = answer.plan, []
    for name, way in answer.ways.items():
        if name == answer.layouts:
            continue
        if way.plan is None:
            found.append(f"Phases: {_WAYS[name]} is no way: {way.why_not}.")
            continue
        extra = way.plan.run.wall_time_s - plan.run.wall_time_s
        share = abs(extra) / plan.run.wall_time_s
        more = f"{format_seconds(abs(extra))} {'more' if extra > 0 else 'less'} ({share:.1%})"
        if math.isclose(way.wall_s, plan.run.wall_time_s, rel_tol=1e-9):
            more = "as much"
        found.append(f"Phases: {_WAYS[name]} takes {more}{_usd(way.plan, plan)}.")
    return found


def _usd(other: PhasedRun, plan: PhasedRun) -> str:
    mine, its = plan.run.cost_usd, other.run.cost_usd
    if mine is None or its is None or round(its - mine) == 0:
        return ""
    sign = "+" if its > mine else "-"
    return f", {sign}${format_count(round(abs(its - mine)))}"


def phases_part(answer: PhasesAnswer | None) -> list[RenderableType]:
    """A row for each phase and each restart, and each phase's layout."""
    if answer is None:
        return []
    plan = answer.plan
    rows = [_phase_row(one) for one in plan.phases]
    header = ("Phase", "tokens", "seq len", "batch", "steps", "step", "days", "MFU", "GiB", "save")
    items: list[RenderableType] = ["", table(rows, header, right=(1, 2, 3, 4, 5, 6, 7, 8, 9))]
    items += [heading("Layouts of the phases"), table(_layout_rows(plan))]
    if plan.restarts:
        items += [heading("Between phases"), table([_restart_row(one) for one in plan.restarts])]
    return items


def _phase_row(one: PhaseEstimate) -> tuple[str, ...]:
    phase, memory = one.planned.phase, one.memory
    fits = "" if memory.fits else "!"
    return (
        f"{one.planned.number}",
        format_count(phase.tokens),
        f"{phase.seq_len:,}",
        f"{phase.global_batch:,}",
        f"{one.planned.steps:,}",
        format_seconds(one.step.time_s),
        f"{one.run.wall_time_s / DAY:,.2f}",
        f"{one.step.mfu:.1%}",
        f"{memory.worst.reserved / 2**30:.1f}{fits}",
        f"{one.checkpoint.interval_steps:,} steps",
    )


def _layout_rows(plan: PhasedRun) -> list[tuple[str, str]]:
    """Phases of one layout share a row; the number of microbatches is left to each."""
    rows: list[tuple[list[int], str]] = []
    for one in plan.phases:
        line = layout_line(one.layout)
        if rows and rows[-1][1] == line:
            rows[-1][0].append(one.planned.number)
        else:
            rows.append(([one.planned.number], line))
    return [(_numbers(numbers), line) for numbers, line in rows]


def _numbers(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{numbers[0]}"
    return f"{numbers[0]}-{numbers[-1]}"


def _restart_row(restart: Restart) -> tuple[str, str]:
    what = "re-sharding" if restart.reshards else "restart"
    changed = ", ".join(restart.changes)
    return (
        f"{restart.after} to {restart.after + 1}",
        f"{what} ({changed}): {format_bytes(restart.bytes, binary=False)} written in "
        f"{format_seconds(restart.write_s)}, restart {format_seconds(restart.restart_s)}, read in "
        f"{format_seconds(restart.load_s)}",
    )
