"""How sure the choice is, and which layouts are worth measuring before a long run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from layoutopt.costmodel.axes import axes_of
from layoutopt.costmodel.estimate import step_seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.refits import refits, with_figures
from layoutopt.costmodel.results import Estimate
from layoutopt.report.plan_json import layout_difference

NEAR = 0.02
"""Equal runs differ by 1 to 4%: layouts closer than this are a tie."""

TRIALS = 3
"""Layouts to name for a trial, the chosen one among them."""


def trial_sentences(job: Job, plan: Estimate, others: Sequence[Estimate]) -> tuple[str, ...]:
    """Ties, how often the choice holds over the held-out fits, and what to measure.

    Nothing where there is no other layout to compare with.
    """
    rivals = [one for one in others if _comparable(one.layout, plan.layout)]
    if not rivals:
        return ()
    sentences = list(_ties(plan, rivals))
    # A site's own figures replace the shipped ones, whose spread then says nothing.
    if job.efficiency is None and refits():
        sentences.append(_sureness(job, plan, rivals))
    return tuple(sentences)


def _comparable(layout: Layout, best: Layout) -> bool:
    """Priced in one call with ``best``: even stages, one kind of context parallelism."""
    return not layout.layers_per_stage and layout.cp_kind == best.cp_kind


def _ties(plan: Estimate, rivals: Sequence[Estimate]) -> tuple[str, ...]:
    near = [one for one in rivals if one.step.time_s <= plan.step.time_s * (1 + NEAR)]
    if not near:
        return ()
    names = "; ".join(layout_difference(one.layout, plan.layout) for one in near)
    are = "is" if len(near) == 1 else "are"
    return (
        f"Ties: {len(near)} of the next best layouts {are} within the {NEAR:.0%} by which equal "
        f"runs differ ({names}); take whichever suits you.",
    )


def _sureness(job: Job, plan: Estimate, rivals: Sequence[Estimate]) -> str:
    layouts = [plan.layout, *(one.layout for one in rivals)]
    seconds = seconds_by_fit(job, layouts)
    best = seconds.min(axis=1)
    held = int(np.sum(seconds[:, 0] <= best * (1 + NEAR)))
    wins = Counter(int(place) for place in seconds.argmin(axis=1))
    order = sorted(range(1, len(layouts)), key=lambda place: (-wins[place], place))
    names = "; ".join(
        layout_difference(layouts[place], plan.layout) for place in order[: TRIALS - 1]
    )
    return (
        f"Sure: in {held} of {len(seconds)} fits, each made without a part of the measured runs, "
        f"this layout is within {NEAR:.0%} of the best of the {len(layouts)} shown. Worth a "
        f"30-minute trial before a long run, beside it: {names}; `layoutopt calibrate` takes the "
        "measured times."
    )


def seconds_by_fit(job: Job, layouts: Sequence[Layout]) -> NDArray[np.float64]:
    """Step times, a row per held-out fit, a column per layout."""
    axes = axes_of(layouts)
    return np.array([step_seconds(with_figures(job, fit), axes) for fit in refits()])
