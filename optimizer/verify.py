"""A check of any plan without a solver: what is wrong with it, in sentences."""

from __future__ import annotations

import math
from dataclasses import asdict

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.pipelines import USUAL_SCHEDULES, pipelines_of
from layoutopt.costmodel.results import BREAKDOWN, Estimate
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.stages import even_split
from layoutopt.optimizer.domains import within
from layoutopt.optimizer.question import Question

_EQUAL = 1e-9
"""Relative difference up to which two prices of one layout are the same."""


def broken(question: Question, plan: Estimate) -> list[str]:
    """What is wrong with ``plan`` as an answer to ``question``; empty for a sound one."""
    layout = plan.layout
    found = [rule.message for rule in broken_rules(question.job, layout)]
    found += _not_asked_for(question, layout)
    found += _does_not_fit(plan)
    found += _misses_limits(question, plan)
    return found + _figures_differ(question, plan)


def _not_asked_for(question: Question, layout: Layout) -> list[str]:
    said = asdict(layout)
    said["shard_degree"] = layout.shard_degree or layout.dp * layout.cp
    found = [
        f"{key} is {said[key]}, but it was fixed to {value}"
        for key, value in question.fix.items()
        if said[key] != value
    ]
    for limit in question.limits:
        value = said[limit.axis]
        if not within([limit], limit.axis, value):
            found.append(f"{limit.axis} is {value}, against {limit.axis}{limit.op}{limit.bound}")
    return found + _not_that_pipeline(question, layout)


def _not_that_pipeline(question: Question, layout: Layout) -> list[str]:
    """Schedule, split and recompute of a part, against what the question asks for."""
    found, asked = [], question.pipeline
    able = pipelines_of(question.job.software.framework)
    schedules: tuple[str, ...] = asked.schedules or (*USUAL_SCHEDULES, *able.searched)
    if layout.schedule not in schedules:
        found.append(f"schedule {layout.schedule} is none of {', '.join(schedules)}")
    even = even_split(question.job.model.layers, layout.pp)
    if asked.splits == "even" and layout.layers_per_stage not in (None, even):
        found.append(f"stages hold {layout.layers_per_stage} layers, but were to be even")
    partly = layout.recompute_layers is not None
    if partly and (asked.splits == "even" or "recompute" in question.fix):
        found.append("a part of the layers recomputes, but all or none were to")
    return found


def _does_not_fit(plan: Estimate) -> list[str]:
    usable = plan.memory.usable_bytes
    return [
        f"stage {stage.stage} reserves {stage.reserved} bytes of {usable} usable"
        for stage in plan.memory.stages
        if stage.reserved > usable
    ] or ([] if plan.memory.fits else ["the plan itself says that it does not fit"])


def _misses_limits(question: Question, plan: Estimate) -> list[str]:
    found, run = [], plan.run
    if question.deadline_s is not None and run.wall_time_s > question.deadline_s:
        found.append(f"the run takes {run.wall_time_s} s, the deadline is {question.deadline_s} s")
    if question.budget_usd is not None and (run.cost_usd or math.inf) > question.budget_usd:
        found.append(f"the run costs {run.cost_usd}, the budget is {question.budget_usd}")
    watts = (question.job.cluster.watts_per_gpu or math.inf) * plan.layout.gpus
    if question.max_power_w is not None and watts > question.max_power_w:
        found.append(f"the GPUs draw {watts} W, the limit is {question.max_power_w} W")
    return found


def _figures_differ(question: Question, plan: Estimate) -> list[str]:
    """Every figure equals what ``estimate`` says of the same layout, and the parts add up."""
    again = estimate(question.job, plan.layout)
    found = [
        f"{name} is {mine}, estimate says {right}"
        for name, mine, right in (
            ("the step", plan.step.time_s, again.step.time_s),
            ("the wall time", plan.run.wall_time_s, again.run.wall_time_s),
            ("the save interval", plan.checkpoint.interval_steps, again.checkpoint.interval_steps),
        )
        if not math.isclose(mine, right, rel_tol=_EQUAL)
    ]
    if asdict(plan.memory) != asdict(again.memory):
        found.append("the memory of its stages differs from estimate's")
    total = sum(plan.step.breakdown_s[name] for name in BREAKDOWN)
    if not math.isclose(total, plan.step.time_s, rel_tol=_EQUAL):
        found.append(
            f"the parts of the step add up to {total} s, the step takes {plan.step.time_s}"
        )
    overheads = sum(plan.run.overhead_s.values())
    if not math.isclose(plan.run.ideal_s + overheads, plan.run.wall_time_s, rel_tol=1e-6):
        found.append(
            f"ideal {plan.run.ideal_s} s and overheads {overheads} s are not the wall time"
        )
    return found
