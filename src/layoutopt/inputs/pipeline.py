"""``--fix schedule=zbv`` and ``--fix layers_per_stage=even``: which pipelines are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Schedule
from layoutopt.costmodel.pipelines import SPLIT_BACKWARD
from layoutopt.costmodel.rules import schedules_run
from layoutopt.errors import InputError, RuleError
from layoutopt.inputs.layout_text import SCHEDULES
from layoutopt.inputs.words import choice
from layoutopt.optimizer.question import Limit, Pipeline

PIPELINE_KEYS = ("schedule", "layers_per_stage")
"""Keys of ``fix`` that are no axes of AXES."""


def read_pipeline(words: Mapping[str, object], job: Job) -> Pipeline:
    """The pipelines that ``fix`` leaves (its keys of PIPELINE_KEYS) to ``job``."""
    framework = job.software.framework
    schedules: tuple[Schedule, ...] | None = None
    if "schedule" in words:
        schedule = choice(str(words["schedule"]), "fix.schedule", SCHEDULES)
        runs = schedules_run(job)
        what = framework
        if job.training.lora:
            # Their bubbles are filled with weight gradients, which frozen weights have none of.
            runs = tuple(one for one in runs if one not in SPLIT_BACKWARD)
            what = f"{framework} with adapters"
        if schedule not in runs:
            raise RuleError(
                f"fix: {what} does not run schedule {schedule}; it runs {', '.join(runs)}",
                field="fix",
                value=f"schedule={schedule}",
                nearest=tuple(f"schedule={one}" for one in runs),
            )
        schedules = (cast("Schedule", schedule),)
    split = words.get("layers_per_stage")
    if split not in (None, "even"):
        raise InputError(
            f"fix.layers_per_stage is {str(split)[:60]!r}: only even can be fixed; a list is "
            "priced by estimate --layout",
            field="fix.layers_per_stage",
            value=str(split)[:60],
            nearest=("layers_per_stage=even",),
        )
    return Pipeline("any" if split is None else "even", schedules)


def limits_of(pipeline: Pipeline) -> tuple[Limit, ...]:
    """What a fixed schedule says of vpp: 1F1B has one chunk, its interleaving more."""
    if pipeline.schedules == ("interleaved",):
        return (Limit("vpp", ">", 1),)
    return (Limit("vpp", "==", 1),) if pipeline.schedules == ("1f1b",) else ()


def pipeline_words(pipeline: Pipeline) -> dict[str, str]:
    """The keys of ``fix`` that say ``pipeline``."""
    words = {"layers_per_stage": "even"} if pipeline.splits == "even" else {}
    return words | ({"schedule": pipeline.schedules[0]} if pipeline.schedules else {})
