"""The fitted figures as they come out without a part of the measurements.

`data/refits.json` (written by `benchmarks/fit_uncertainty.py`) holds the parameters of every
held-out fit of the cross-validation. Their differences are what the measurements leave open. Errors
that two layouts share cancel where one fit prices both, so that a ranking can be sure although the
step time itself is not.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from importlib import resources

from layoutopt.costmodel.efficiency import efficiency_of
from layoutopt.costmodel.job import Job

Figures = dict[str, float]
"""Values by ``owner.name``: owner is "shared", an architecture or a software profile."""


@lru_cache(maxsize=1)
def refits() -> tuple[Figures, ...]:
    """The fitted figures of each held-out fit; empty where none are shipped."""
    table = resources.files("layoutopt.costmodel").joinpath("data/refits.json")
    if not table.is_file():
        return ()
    return tuple(row["figures"] for row in json.loads(table.read_text("utf-8"))["fits"])


def with_figures(job: Job, figures: Figures) -> Job:
    """``job`` with the figures of one fit in place of the shipped ones."""
    row = efficiency_of(job.cluster.gpu.architecture)
    return replace(
        job,
        efficiency=row.model_copy(
            update=_of("shared", figures) | _of(job.cluster.gpu.architecture, figures)
        ),
        software=job.software.model_copy(update=_of(job.software.name, figures)),
    )


def _of(owner: str, figures: Figures) -> Figures:
    head = f"{owner}."
    return {key.removeprefix(head): v for key, v in figures.items() if key.startswith(head)}
