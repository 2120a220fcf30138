"""Which pipelines a question asks for, of those that its framework runs."""

from __future__ import annotations

from layoutopt.costmodel.layout import Schedule
from layoutopt.costmodel.pipelines import USUAL_SCHEDULES, pipelines_of
from layoutopt.optimizer.question import Pipeline, Question


def is_wider(question: Question) -> bool:
    """Whether pipelines are asked for beside even ones on the usual schedules."""
    able = pipelines_of(question.job.software.framework)
    asked = question.pipeline
    if any(schedule not in USUAL_SCHEDULES for schedule in schedules_of(question)):
        return True
    return asked.splits == "any" and (able.splits == "any" or able.recompute != "whole")


def asks_usual(pipeline: Pipeline) -> bool:
    """Whether 1F1B or its interleaving is among the schedules that are asked for."""
    asked = pipeline.schedules
    return asked is None or any(schedule in USUAL_SCHEDULES for schedule in asked)


def schedules_of(question: Question) -> tuple[Schedule, ...]:
    """Schedules to look at. GPipe takes as long as 1F1B and holds more: only if it is asked for."""
    asked = question.pipeline.schedules
    if asked is not None:
        found: list[Schedule] = ["1f1b" if s in USUAL_SCHEDULES else s for s in asked]
        return tuple(dict.fromkeys(found))
    searched = pipelines_of(question.job.software.framework).searched
    return ("1f1b", *(schedule for schedule in searched if schedule != "gpipe"))


def recompute_of(question: Question) -> str:
    """Which recompute of a part of a stage is looked for."""
    able = pipelines_of(question.job.software.framework)
    return able.recompute if question.pipeline.splits == "any" else "whole"
