"""Deadline, budget and power of a run in phases, and its cost or energy instead of its time.

The GPUs of every phase are given, and phases meet only where they run on equally many: whatever
makes the run of such phases shortest makes it cheapest too. So the search is for time, and the
limits are held against its proved best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from layoutopt.costmodel.checkpoint import cost_usd, energy_kwh
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.phases import PhasedRun
from layoutopt.costmodel.results import Run
from layoutopt.optimizer.misses import duration_text
from layoutopt.optimizer.outcome import Change, Miss
from layoutopt.optimizer.phases import Way
from layoutopt.optimizer.question import Objective, PhaseLayouts, Question


def for_time(question: Question) -> Question:
    """The question that the search of phases answers."""
    return replace(question, objective="time", deadline_s=None, budget_usd=None, max_power_w=None)


def value_of(run: Run, objective: Objective) -> float:
    """Seconds, dollars or kilowatt-hours of a whole run; seconds without a price or a power."""
    found = {"cost": run.cost_usd, "energy": run.energy_kwh}.get(objective)
    return run.wall_time_s if found is None else found


def bound_of(plan: PhasedRun, bound_s: float, objective: Objective) -> float:
    """No run is worth less, where none is shorter than ``bound_s``: what may be missing in time is
    taken from the phase on most GPUs."""
    slack = max(plan.run.wall_time_s - bound_s, 0.0)
    rates = [_rate(one.planned.job, objective) for one in plan.phases]
    return value_of(plan.run, objective) - slack * max(rates)


def _rate(job: Job, objective: Objective) -> float:
    """What a second of the job takes, in the objective's unit."""
    found = {"cost": cost_usd(job, 1.0), "energy": energy_kwh(job, 1.0)}.get(objective)
    return 1.0 if found is None else found


def missed(
    question: Question, plan: PhasedRun, ways: Mapping[PhaseLayouts, Way]
) -> tuple[Miss, ...]:
    """Limits that the run is over, by how much, and what would help; none: it keeps to all."""
    run, layout, step = plan.run, plan.main.layout, plan.main.step.time_s
    auto, found = ways.get("auto"), []
    other = auto.plan.run if auto and auto.plan and auto.plan is not plan else None

    def helps(*changes: Change, within: bool) -> tuple[Change, ...]:
        return (*changes, Change("phase_layouts", "auto", step)) if within else changes

    late, most, watts = question.deadline_s, question.budget_usd, question.max_power_w
    if late is not None and run.wall_time_s > late:
        longer = Change("deadline", duration_text(run.wall_time_s), step)
        changes = helps(longer, within=other is not None and other.wall_time_s <= late)
        found.append(Miss("deadline", None, None, run.wall_time_s - late, None, layout, changes))
    if most is not None and run.cost_usd is not None and run.cost_usd > most:
        cheap = other is not None and other.cost_usd is not None and other.cost_usd <= most
        changes = helps(Change("budget", str(math.ceil(run.cost_usd)), step), within=cheap)
        found.append(Miss("budget", None, None, None, run.cost_usd - most, layout, changes))
    drawn = max(_watts(one.planned.job) for one in plan.phases)
    if watts is not None and drawn > watts:
        more = (Change("max_power", f"{math.ceil(drawn)}W", step),)
        found.append(Miss("power", None, None, None, None, layout, more, drawn - watts))
    return tuple(found)


def _watts(job: Job) -> float:
    return (job.cluster.watts_per_gpu or 0.0) * job.gpus


def might_keep(question: Question, plan: PhasedRun, bound_s: float | None) -> bool:
    """Whether some run that is not known yet may keep to the limits: by the bound of a search that
    was out of time. Power is the GPUs' alone."""
    if any(miss.limit == "power" for miss in missed(question, plan, {})):
        return False
    if bound_s is None:
        return True
    late, most = question.deadline_s, question.budget_usd
    if late is not None and bound_s > late:
        return False
    return most is None or bound_of(plan, bound_s, "cost") <= most
