"""The answer of `simulate --run`: JSON and a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.costmodel.axes import Array
from layoutopt.costmodel.planned import expected_stops, stop_s
from layoutopt.costmodel.reliability import overheads
from layoutopt.inputs.simulate_run import RunRequest, shares_text
from layoutopt.report import plan_json
from layoutopt.report.console import bar, heading, render, table, wrapped
from layoutopt.report.guard import plain
from layoutopt.report.plan_json import layout_line
from layoutopt.report.simulation import SCHEMA
from layoutopt.simulation.failures import KINDS
from layoutopt.simulation.runs import QUANTILES, RunSimulation
from layoutopt.simulation.tiers import Tier
from layoutopt.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

_CAUSES = {
    "checkpoint": "saves",
    "lost_work": "work done twice",
    "restart": "detection, restart, loading",
    "waiting": "waiting for nodes",
    "planned": "announced stops",
}


@dataclass(frozen=True)
class SimulatedRun:
    """Many simulated runs, beside the expectation of the closed form."""

    asked: RunRequest
    simulation: RunSimulation

    @property
    def exit_code(self) -> int:
        """0: a simulation is an answer."""
        return 0

    @property
    def mean_wall_s(self) -> float:
        """Mean wall time of the simulated runs."""
        return self.simulation.mean_wall_s

    @property
    def closed_form_s(self) -> float:
        """Expected wall time by the formula, which knows one tier, exponential failures and a
        spare at once; for the safest tier of the plan and the same mean time between failures."""
        plan, tier = self.simulation.plan, self.safest
        parts = overheads(
            plan.step_s,
            plan.steps,
            tier.every_steps,
            tier.write_s,
            tier.stall_s,
            plan.failures.mtbf_s,
            plan.detect_s + plan.restart_s + tier.load_s,
            plan.planned_per_failure,
        )
        if plan.stops is None:
            return float(parts.wall_s)
        each = stop_s(plan.stops, tier.write_s, plan.restart_s + tier.load_s)
        stops = expected_stops(plan.stops, float(parts.wall_s), each)
        return float(parts.wall_s + stops * each)

    @property
    def difference(self) -> float:
        """Simulated mean over the closed form's expectation, minus 1."""
        return self.mean_wall_s / self.closed_form_s - 1

    @property
    def safest(self) -> Tier:
        """The tier that outlives most."""
        tiers = self.simulation.plan.tiers
        return next((tier for tier in tiers if tier.kind == "shared"), tiers[0])

    @property
    def beyond(self) -> tuple[str, ...]:
        """What of the plan the closed form does not know."""
        plan = self.simulation.plan
        failures, tier = plan.failures, self.safest
        known = {
            "failures as a trace lists them": bool(failures.trace_s),
            "failures that follow one another (Weibull)": failures.shape != 1,
            "several tiers": len(plan.tiers) > 1,
            "waiting for nodes": plan.spares is not None,
            "writes that fail or are late": tier.fails > 0 or tier.late > 0,
        }
        return tuple(text for text, there in known.items() if there)

    def causes_s(self) -> dict[str, Array]:
        """Where the time between ideal and wall went, for each run."""
        run = self.simulation
        return {
            "checkpoint": run.checkpoint_s,
            "lost_work": run.lost_work_s,
            "restart": run.restart_s,
            "waiting": run.waiting_s,
            "planned": run.planned_s,
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of schema layoutopt.simulation/1, kind ``run``."""
        run, job = self.simulation, self.asked.request.job
        answer: dict[str, Any] = plain(
            {
                "schema": SCHEMA,
                "kind": "run",
                "request": self.asked.request.to_dict(),
                "layout": plan_json.layout_json(self.asked.request.layout, job),
                "plan": self._plan(),
                "run": {
                    "runs": len(run.wall_s),
                    "finished": run.finished,
                    "seed": self.asked.seed,
                    "ideal_s": run.plan.ideal_s,
                    "wall_time_s": run.mean_wall_s,
                    "half_width_s": run.half_width_s if len(run.wall_s) > 1 else None,
                    "wall_time_quantiles_s": _named(run.quantiles_s()),
                    "goodput": float(np.mean(run.goodput)),
                    "goodput_quantiles": _named(
                        dict(
                            zip(
                                QUANTILES, np.quantile(run.goodput, QUANTILES).tolist(), strict=True
                            )
                        )
                    ),
                    "overhead_s": {
                        cause: float(np.mean(seconds)) for cause, seconds in self.causes_s().items()
                    },
                    "failures": float(np.mean(run.failures)),
                },
                "closed_form": {
                    "wall_time_s": self.closed_form_s,
                    "difference": self.difference,
                    "beyond": self.beyond,
                },
                "warnings": self.warnings,
            }
        )
        return answer

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader should know."""
        run = self.simulation
        lost = len(run.wall_s) - run.finished
        text = f"{lost:,} of {len(run.wall_s):,} runs were given up: failures come too fast"
        own = (text,) if lost else ()
        return self.asked.request.warnings + self.asked.estimate.warnings + own

    def _plan(self) -> dict[str, Any]:
        plan = self.simulation.plan
        failures = plan.failures
        return {
            "step_time_s": plan.step_s,
            "steps": plan.steps,
            "failures": self.asked.failures,
            "mtbf_s": failures.mtbf_s if np.isfinite(failures.mtbf_s) else None,
            "failure_shares": dict(zip(KINDS, failures.shares, strict=True)),
            "nodes_per_switch": failures.nodes_per_switch,
            "detect_s": plan.detect_s,
            "restart_s": plan.restart_s,
            "spares": plan.spares,
            "repair_s": plan.repair_s,
            "tiers": [asdict(tier) for tier in plan.tiers],
        }


def _named(quantiles: dict[float, float]) -> dict[str, float]:
    return {f"p{round(100 * share):02d}": value for share, value in quantiles.items()}


def as_table(answer: SimulatedRun, *, color: bool = False) -> str:
    """The whole report for people."""
    items: list[RenderableType] = [table(_first_lines(answer))]
    items += _causes(answer) + _tiers(answer)
    if answer.warnings:
        items += [heading("Warnings"), table([("-", text) for text in answer.warnings])]
    return render(items, color=color)


def _first_lines(answer: SimulatedRun) -> list[tuple[str, str]]:
    run = answer.simulation
    quantiles = run.quantiles_s()
    share = run.half_width_s / run.mean_wall_s
    return [
        ("Layout", wrapped(layout_line(answer.asked.request.layout))),
        (
            "Run",
            f"{run.plan.steps:,} steps of {format_seconds(run.plan.step_s)}: "
            f"{format_seconds(run.plan.ideal_s)} without failures and saves",
        ),
        (
            "Wall time",
            f"{format_seconds(run.mean_wall_s)} in the mean of {len(run.wall_s):,} runs "
            f"(+/- {share:.2%}), {format_seconds(quantiles[0.05])} to "
            f"{format_seconds(quantiles[0.95])} in nine of ten",
        ),
        (
            "Goodput",
            f"{np.mean(run.goodput):.2%} of the time, {np.quantile(run.goodput, 0.05):.2%} to "
            f"{np.quantile(run.goodput, 0.95):.2%} in nine of ten",
        ),
        ("Failures", _failures_line(answer)),
        ("Closed form", _closed_line(answer)),
    ]


def _failures_line(answer: SimulatedRun) -> str:
    plan = answer.simulation.plan
    mtbf = plan.failures.mtbf_s
    often = f"one in {format_seconds(mtbf)}" if np.isfinite(mtbf) else "none"
    spares = "a spare at once" if plan.spares is None else f"{plan.spares:,} spare nodes"
    return (
        f"{np.mean(answer.simulation.failures):,.1f} a run, {often} ({answer.asked.failures}; "
        f"{shares_text(plan.failures)}); {spares}"
    )


def _closed_line(answer: SimulatedRun) -> str:
    line = f"{format_seconds(answer.closed_form_s)}, off by {answer.difference:+.2%}"
    if not answer.beyond:
        return line
    return f"{line}, because it does not know {' and '.join(answer.beyond)}"


def _causes(answer: SimulatedRun) -> list[RenderableType]:
    wall = answer.mean_wall_s
    rows = []
    for cause, seconds in answer.causes_s().items():
        mean = float(np.mean(seconds))
        if mean > 0:
            share = mean / wall
            rows.append((_CAUSES[cause], format_seconds(mean), f"{share:.2%}", bar(share)))
    header = ("Where time is lost", "mean", "of wall time", "")
    return ["", table(rows, header, right=(1, 2))] if rows else []


def _tiers(answer: SimulatedRun) -> list[RenderableType]:
    rows = [
        (
            tier.kind,
            f"{tier.every_steps:,}",
            format_seconds(tier.write_s),
            format_seconds(tier.stall_s),
            format_seconds(tier.load_s),
        )
        for tier in answer.simulation.plan.tiers
    ]
    header = ("Checkpoints", "every steps", "written in", "stall", "read in")
    return ["", table(rows, header, right=(1, 2, 3, 4))]
