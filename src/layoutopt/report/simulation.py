"""The answer of `simulate` for one step: JSON and a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layoutopt.costmodel.results import BREAKDOWN, PART_NAMES, Estimate
from layoutopt.inputs.simulate import StepRequest
from layoutopt.report import plan_json
from layoutopt.report.console import bar, heading, render, table, wrapped
from layoutopt.report.guard import plain
from layoutopt.report.plan_json import layout_line
from layoutopt.simulation.step import StageSeconds, StepSimulation
from layoutopt.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "layoutopt.simulation/1"
_MOST_STAGES = 16
"""Stages that the table lists; JSON lists all."""


@dataclass(frozen=True)
class SimulatedStep:
    """One step, event by event, beside what the closed form says."""

    asked: StepRequest
    simulation: StepSimulation
    plan: Estimate

    @property
    def step_time_s(self) -> float:
        """Seconds of the simulated step."""
        return self.simulation.step_s

    @property
    def difference(self) -> float:
        """Simulated over closed form, minus 1."""
        return self.simulation.step_s / self.plan.step.time_s - 1

    @property
    def peak(self) -> StageSeconds:
        """The stage that holds most."""
        return max(self.simulation.stages, key=lambda stage: stage.held.peak_bytes)

    @property
    def exit_code(self) -> int:
        """0: a simulation is an answer whether or not the layout fits."""
        return 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of schema layoutopt.simulation/1, kind ``step``."""
        simulation, job = self.simulation, self.asked.request.job
        answer: dict[str, Any] = plain(
            {
                "schema": SCHEMA,
                "kind": "step",
                "request": self.asked.request.to_dict(),
                "layout": plan_json.layout_json(simulation.layout, job),
                "disturbance": {
                    "allowance": simulation.allowance,
                    "jitter": self.asked.jitter,
                    "seed": self.asked.seed,
                    "stragglers": [
                        {"stage": stage, "slow": slow}
                        for stage, slow in sorted(self.asked.stragglers.items())
                    ],
                },
                "step": {
                    "time_s": simulation.step_s,
                    "estimate_s": self.plan.step.time_s,
                    "difference": self.difference,
                    "bubble_share": self._bubble_s / simulation.step_s,
                    "exposed_comm_s": simulation.busiest.exposed_comm_s,
                    "busiest_stage": simulation.busiest.stage,
                    "events": simulation.events,
                },
                "memory": {
                    "peak_allocated_bytes": self.peak.held.peak_bytes,
                    "peak_stage": self.peak.stage,
                    "peak_s": self.peak.held.peak_s,
                    "estimate_bytes": self.plan.memory.worst.allocated,
                },
                "stages": [self._stage(stage) for stage in simulation.stages],
                "warnings": self.asked.request.warnings + self.plan.warnings,
            }
        )
        return answer

    @property
    def _bubble_s(self) -> float:
        return self.simulation.busiest.parts["pipeline_bubble"]

    def _stage(self, stage: StageSeconds) -> dict[str, Any]:
        closed = self.plan.memory.stages[stage.stage]
        return {
            "stage": stage.stage,
            "layers": closed.layers,
            "seconds": stage.parts,
            "peak_allocated_bytes": stage.held.peak_bytes,
            "estimate_bytes": closed.allocated,
            "units_in_flight": stage.held.most_units,
            "layers_in_flight": stage.held.most_layers,
        }


def as_table(answer: SimulatedStep, *, color: bool = False) -> str:
    """The whole report for people."""
    items: list[RenderableType] = [table(_first_lines(answer))]
    items += _parts(answer) + _stages(answer)
    warnings = answer.asked.request.warnings + answer.plan.warnings
    if warnings:
        items += [heading("Warnings"), table([("-", text) for text in warnings])]
    return render(items, color=color)


def _first_lines(answer: SimulatedStep) -> list[tuple[str, str]]:
    simulation = answer.simulation
    peak = answer.peak
    lines = [
        ("Layout", wrapped(layout_line(simulation.layout))),
        (
            "Step",
            f"{format_seconds(simulation.step_s)} in {simulation.events:,} events; "
            f"estimate says {format_seconds(answer.plan.step.time_s)} ({answer.difference:+.2%})",
        ),
        ("Disturbed by", _disturbance(answer)),
        (
            "Memory",
            f"{format_bytes(peak.held.peak_bytes)} allocated on stage {peak.stage} at "
            f"{format_seconds(peak.held.peak_s)}; estimate says "
            f"{format_bytes(answer.plan.memory.worst.allocated)}",
        ),
    ]
    written = [str(path) for path in (answer.asked.trace, answer.asked.plot) if path]
    return [*lines, ("Written", ", ".join(written))] if written else lines


def _disturbance(answer: SimulatedStep) -> str:
    asked = answer.asked
    if asked.calm:
        share = answer.simulation.allowance
        return f"the allowance for stragglers and jitter, {share:.2%} on everything (A8)"
    parts = [
        f"stage {stage} {slow:g} times as slow" for stage, slow in sorted(asked.stragglers.items())
    ]
    if asked.jitter:
        parts.append(f"jitter of {asked.jitter:.1%} a pass, seed {asked.seed}")
    return f"{', '.join(parts)}; without the allowance for stragglers and jitter (A8)"


def _parts(answer: SimulatedStep) -> list[RenderableType]:
    busiest = answer.simulation.busiest
    total = answer.simulation.step_s
    rows = [
        (PART_NAMES[part], f"{seconds:.4g}", f"{seconds / total:.1%}", bar(seconds / total))
        for part in BREAKDOWN
        if (seconds := busiest.parts[part]) > 0
    ]
    title = f"Busiest stage ({busiest.stage})"
    return ["", table(rows, (title, "seconds", "share", ""), right=(1, 2))]


def _stages(answer: SimulatedStep) -> list[RenderableType]:
    stages = answer.simulation.stages
    step = answer.simulation.step_s
    rows = [
        (
            str(stage.stage),
            f"{stage.parts['compute'] + stage.parts['recompute']:.4g}",
            f"{stage.exposed_comm_s:.4g}",
            f"{stage.parts['pipeline_bubble'] / step:.1%}",
            str(stage.held.most_units),
            f"{stage.held.peak_bytes / 2**30:.2f}",
        )
        for stage in stages[:_MOST_STAGES]
    ]
    if len(stages) > _MOST_STAGES:
        rows.append((f"{len(stages) - _MOST_STAGES} more", "", "", "", "", ""))
    header = ("Stage", "compute s", "exposed comm s", "waits", "in flight", "peak GiB")
    return ["", table(rows, header, right=(1, 2, 3, 4, 5))]
