"""The checkpoint plan and restarts on fewer nodes: JSON, and rows of the table."""

from __future__ import annotations

from typing import Any

from layoutopt.costmodel.checkpoint_plan import CheckpointPlan, checkpoint_plan
from layoutopt.costmodel.elastic import Degraded, Restart
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.results import Estimate
from layoutopt.report.plan_json import layout_difference, layout_json, layout_line
from layoutopt.units import format_bytes, format_seconds

_TIERS = {"host": "the host's memory", "peer": "a peer's memory", "shared": "shared storage"}


def degraded_json(job: Job, degraded: Degraded | None) -> dict[str, Any] | None:
    """The JSON ``degraded``; null where it was not asked for."""
    if degraded is None:
        return None
    return {
        "nodes_lost": degraded.nodes_lost,
        "gpus_left": degraded.gpus_left,
        "same_batch": _restart_json(job, degraded.same_batch),
        "smaller_batch": _restart_json(job, degraded.smaller_batch),
    }


def _restart_json(job: Job, restart: Restart | None) -> dict[str, Any] | None:
    if restart is None:
        return None
    return {
        "layout": {
            **layout_json(restart.plan.layout, job),
            "global_batch": restart.global_batch,
        },
        "step_time_s": restart.plan.step.time_s,
        "speed": restart.speed,
        "gpus_idle": restart.gpus_idle,
        "peak_bytes": restart.plan.memory.worst.reserved,
    }


def checkpoint_rows(job: Job, plan: Estimate) -> list[tuple[str, str]]:
    """Rows of the table below the interval."""
    saves = checkpoint_plan(job, plan)
    if saves.mtbf_s is None:
        return _planned_row(job, plan)
    low, high = saves.wall_time_quantiles_s["p05"], saves.wall_time_quantiles_s["p95"]
    first, last = saves.flat_steps
    spread = " to ".join(dict.fromkeys((format_seconds(low), format_seconds(high))))
    written = format_bytes(saves.bytes_per_writer, binary=False)
    writers = f"{saves.writer_nodes:,} nodes write {written} each"
    if saves.writer_nodes == 1:
        writers = f"1 node writes {written}"
    return [
        (
            "Failures",
            f"one in {format_seconds(saves.mtbf_s)}: {plan.run.expected_interruptions:,.1f} in the "
            f"run, {format_seconds(saves.recovery_s)} to recover and "
            f"{format_seconds(saves.lost_per_failure_s)} of work each; "
            f"{spread} in nine runs of ten; "
            f"{saves.spare_nodes:,} spare nodes are worth holding",
        ),
        (
            "Interval",
            f"{first:,} to {last:,} steps are as good within 0.1%; half costs "
            f"{saves.half_interval_share:.2%} more, twice {saves.double_interval_share:.2%}; "
            f"{writers}",
        ),
        *_planned_row(job, plan),
        ("Tiers", _tiers_line(saves)),
    ]


def _planned_row(job: Job, plan: Estimate) -> list[tuple[str, str]]:
    """Announced stops and pauses for evaluation, where they were asked for."""
    run, stops, parts = plan.run, job.cluster.planned_stops, []
    if stops is not None and run.planned_stops:
        often = f" every {format_seconds(stops.every_s)}" if stops.every_s else ""
        each = run.planned_s["stops"] / run.planned_stops
        parts.append(
            f"{run.planned_stops:,.1f} announced stops of {format_seconds(stops.lasts_s)}{often} "
            f"take {format_seconds(run.planned_s['stops'])}, {format_seconds(each)} each with the "
            "save before and the restart after it"
        )
    if run.planned_s["evaluation"]:
        seconds = format_seconds(run.planned_s["evaluation"])
        parts.append(f"pauses for evaluation take {seconds}")
    return [("Planned", "; ".join(parts))] if parts else []


def _tiers_line(saves: CheckpointPlan) -> str:
    """What saves in the background to several places could be."""
    parts = [
        f"{_TIERS[tier.kind]} every {tier.interval_steps:,} steps ({format_seconds(tier.stall_s)})"
        for tier in saves.tiers
    ]
    return f"with saves in the background: {', '.join(parts)}"


def degraded_rows(whole: Estimate, degraded: Degraded | None) -> list[tuple[str, str]]:
    """Rows of the table for ``--degraded``."""
    if degraded is None:
        return []
    title = f"{degraded.nodes_lost:,} nodes gone"
    if degraded.same_batch is None and degraded.smaller_batch is None:
        return [(title, f"no layout keeps tp, cp and pp on {degraded.gpus_left:,} GPUs and fits")]
    rows = []
    for words, restart in (
        ("same batch", degraded.same_batch),
        ("smaller batch", degraded.smaller_batch),
    ):
        if restart is None:
            rows.append((title, f"{words}: none is legal and fits"))
            continue
        layout = restart.plan.layout
        changed = layout_difference(layout, whole.layout) or layout_line(layout)
        rows.append(
            (
                title,
                f"{words} ({restart.global_batch:,} sequences): {changed}; "
                f"{format_seconds(restart.plan.step.time_s)} a step, {restart.speed:.1%} of the "
                f"speed, {restart.gpus_idle:,} GPUs idle",
            )
        )
    return rows
