"""The answer of ``solve`` and ``estimate``: one value that becomes JSON or a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layoutopt.costmodel.elastic import Degraded
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import BREAKDOWN, Checkpoint, Estimate, Memory, Run, StepTime
from layoutopt.inputs.request import Request
from layoutopt.optimizer.node_map import Placement
from layoutopt.optimizer.outcome import Alternative, Miss, SearchReport
from layoutopt.optimizer.sensitivity import Worth
from layoutopt.report import plan_json
from layoutopt.report.guard import plain
from layoutopt.report.phases import PhasesAnswer, phases_json
from layoutopt.report.placement import placement_json
from layoutopt.report.saving import degraded_json
from layoutopt.report.tuning import documents_json, finetune_json
from layoutopt.report.uncertainty import uncertainty

SCHEMA = "layoutopt.plan/1"
EXIT_CODES = {"optimal": 0, "feasible": 0, "infeasible": 3, "unknown": 4}


@dataclass(frozen=True)
class WhyNot:
    """A layout beside the best one. ``refused`` says why it is no layout; then the rest is None."""

    layout: Layout | None
    refused: str | None
    estimate: Estimate | None
    by_part_s: dict[str, float] | None
    """Its seconds of a step by part, minus the best layout's."""
    sentence: str


@dataclass(frozen=True)
class Best:
    """The best layout of the same job, beside a given one."""

    estimate: Estimate
    status: str
    """optimal, or feasible where the search ran out of time."""
    by_part_s: dict[str, float]
    """Seconds of the given layout's step by part, minus the best one's."""
    sentence: str


@dataclass(frozen=True)
class Answer:
    """What ``solve`` or ``estimate`` found. ``plan`` is None where no layout can be given."""

    status: str
    """optimal, feasible, infeasible, unknown, or given (estimate)."""
    request: Request
    plan: Estimate | None
    search: SearchReport | None = None
    alternatives: tuple[Alternative, ...] = ()
    misses: tuple[Miss, ...] = ()
    explain: tuple[str, ...] = ()
    why_not: WhyNot | None = None
    pareto: tuple[Estimate, ...] | None = None
    """The front of wall time against cost over GPU counts; None: it was not asked for."""
    sensitivity: tuple[Worth, ...] | None = None
    """What a better machine would be worth; None: it was not asked for."""
    placement: Placement | None = None
    """Which nodes hold which ranks; None: the cluster file lists no nodes."""
    best: Best | None = None
    """Beside a launch that was read: the best layout of its job."""
    degraded: Degraded | None = None
    """What to restart with on fewer nodes; None: it was not asked for."""
    phases: PhasesAnswer | None = None
    """Each phase with its plan; None: the run is of one piece. ``plan`` then has the layout, step
    and memory of the longest phase, and the run of all of them."""

    @property
    def layout(self) -> Layout | None:
        """The chosen or given layout."""
        return self.plan.layout if self.plan else None

    @property
    def step(self) -> StepTime | None:
        """One optimizer step, in seconds."""
        return self.plan.step if self.plan else None

    @property
    def memory(self) -> Memory | None:
        """Bytes per GPU."""
        return self.plan.memory if self.plan else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """How often to save, and what a save costs."""
        return self.plan.checkpoint if self.plan else None

    @property
    def run(self) -> Run | None:
        """The whole run, failures and checkpoints included."""
        return self.plan.run if self.plan else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader should know before trusting the figures."""
        return self.request.warnings + (self.plan.warnings if self.plan else ())

    @property
    def exit_code(self) -> int:
        """0 an answer, 3 nothing fits or meets a limit, 4 out of time with no layout."""
        if self.status == "given":
            return 0 if self.plan is None or self.plan.memory.fits else 3
        return EXIT_CODES[self.status]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of schema layoutopt.plan/1: plain values, finite numbers only."""
        job = self.request.job
        entry: dict[str, Any] = {
            "schema": SCHEMA,
            "status": str(self.status),
            "request": self.request.to_dict(),
            **plan_json.estimate_json(self.plan, job),
            "search": plan_json.search_json(self.search),
            "uncertainty": uncertainty(self.request),
            "explain": self.explain,
            "alternatives": [plan_json.alternative_json(one, job) for one in self.alternatives],
            "misses": [plan_json.miss_json(miss, job) for miss in self.misses],
            "degraded": degraded_json(job, self.degraded),
            "assumptions": self.plan.assumptions if self.plan else (),
            "warnings": self.warnings,
        }
        tuned, documents = finetune_json(job), documents_json(job)
        if tuned is not None:
            entry["finetune"] = tuned
        if documents is not None:
            entry["documents"] = documents
        if self.phases is not None:
            entry["phases"] = phases_json(self.phases)
        if self.placement is not None:
            entry["placement"] = placement_json(self.placement)
        if self.pareto is not None:
            entry["pareto"] = [plan_json.point_json(one, job) for one in self.pareto]
        if self.sensitivity is not None:
            entry["sensitivity"] = [
                plan_json.worth_json(one, self.plan, job) for one in self.sensitivity
            ]
        if self.why_not:
            entry["why_not"] = self._why_not_json(self.why_not)
        if self.best:
            entry["best"] = self._best_json(self.best)
        answer: dict[str, Any] = plain(entry)
        return answer

    def _best_json(self, best: Best) -> dict[str, Any]:
        estimate = best.estimate
        return {
            "status": best.status,
            "layout": plan_json.layout_json(estimate.layout, self.request.job),
            "step_time_s": estimate.step.time_s,
            "wall_time_s": estimate.run.wall_time_s,
            "by_part_s": best.by_part_s,
            "sentence": best.sentence,
        }

    def _why_not_json(self, why_not: WhyNot) -> dict[str, Any]:
        parts = plan_json.estimate_json(why_not.estimate, self.request.job)
        if why_not.layout is not None:
            parts["layout"] = plan_json.layout_json(why_not.layout, self.request.job)
        return {
            **parts,
            "refused": why_not.refused,
            "by_part_s": why_not.by_part_s,
            "sentence": why_not.sentence,
        }


def by_part(estimate: Estimate, best: Estimate) -> dict[str, float]:
    """Seconds of a step by part, ``estimate`` minus ``best``."""
    mine, its = estimate.step.breakdown_s, best.step.breakdown_s
    return {part: mine[part] - its[part] for part in BREAKDOWN}
