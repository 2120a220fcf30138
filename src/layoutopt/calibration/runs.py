"""Measured runs for a calibration: which can be used, and which are nonsense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.errors import InputError
from layoutopt.validation import Scored

FEWEST = 3
"""Runs that a calibration needs: of two, leaving one out fits a handful of numbers to one."""

MOST_OFF = 4.0
"""A run this many times slower or faster than predicted is no matter of efficiencies: nearly all of
the published records are within 2.5."""

MOST_APART = 2.5
"""The same for a run against the median of the other runs' measured over predicted."""


@dataclass(frozen=True)
class Run:
    """A run with a measured step time. Seconds."""

    id: str
    job: Job
    layout: Layout
    measured_s: float
    predicted_s: float
    """By the shipped figures."""
    mfu: float
    """Model FLOPs of the measured time over the dense peak."""


def usable_runs(entries: Sequence[Scored]) -> tuple[list[Run], list[tuple[str, str]]]:
    """The runs to fit, and (id, why not) of the others.

    Raises InputError, naming the record, for nonsense, for runs of several GPU types or frameworks,
    and where fewer than FEWEST are left.
    """
    runs: list[Run] = []
    unused: list[tuple[str, str]] = []
    for entry in entries:
        why = _why_not(entry)
        if why:
            unused.append((entry.record.id, why))
        else:
            runs.append(_run(entry))
    if len(runs) < FEWEST:
        reasons = "".join(f"; {name}: {why}" for name, why in unused[:3])
        raise InputError(
            f"a calibration needs {FEWEST} runs with a step time, and {len(runs)} of "
            f"{len(entries)} records are such{reasons}",
            field="records",
            value=len(runs),
            nearest=(FEWEST,),
        )
    _refuse_mixed(runs)
    for run in runs:
        _refuse_nonsense(run)
    _refuse_strangers(runs)
    return runs, unused


def _why_not(entry: Scored) -> str | None:
    if entry.case is None:
        return entry.why_not or "incomplete"
    if "time" in entry.case.left_out:
        return entry.case.left_out["time"]
    return None if entry.measured_s else "no step time and no tokens/s per GPU"


def _run(entry: Scored) -> Run:
    case, estimate = entry.case, entry.estimate
    if case is None or estimate is None or entry.measured_s is None:
        raise InputError(f"record {entry.record.id} is not complete", field="records")
    return Run(
        id=entry.record.id,
        job=case.job,
        layout=case.layout,
        measured_s=entry.measured_s,
        predicted_s=estimate.step.time_s,
        mfu=estimate.step.mfu * estimate.step.time_s / entry.measured_s,
    )


def _refuse_mixed(runs: Sequence[Run]) -> None:
    """One machine and one framework: their efficiencies have nothing to do with another's."""
    first = runs[0]
    for run in runs[1:]:
        for what, mine, its in (
            ("GPU", run.job.cluster.gpu.name, first.job.cluster.gpu.name),
            ("framework", run.job.software.name, first.job.software.name),
        ):
            if mine != its:
                raise InputError(
                    f"record {run.id} ran on {what} {mine}, but record {first.id} on {its}: "
                    f"calibrate one {what} at a time",
                    field="records",
                    value=mine,
                    nearest=(its,),
                )


def _refuse_nonsense(run: Run) -> None:
    ratio = run.measured_s / run.predicted_s
    if run.mfu <= 1 and 1 / MOST_OFF <= ratio <= MOST_OFF:
        return
    if run.mfu > 1:
        why = f"would be {run.mfu:,.0%} of the dense peak of {run.job.gpus:,} "
        why += run.job.cluster.gpu.name
    else:
        why = f"is {_times(ratio)} the {run.predicted_s:.4g} s that are predicted"
    slip = unit_slip(ratio, run.job, run.layout)
    raise InputError(
        f"record {run.id}: a step of {run.measured_s:.4g} s {why}"
        + (f"; {slip}" if slip else "; take the record out, or mend it"),
        field="measured.step_time_s",
        value=run.measured_s,
        nearest=(float(f"{run.predicted_s:.4g}"),),
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.3g} times" if ratio >= 1 else f"one {1 / ratio:,.3g}th of"


def unit_slip(ratio: float, job: Job, layout: Layout) -> str | None:
    """The slip that explains a measured time ``ratio`` times the predicted one; None if none does.

    Each is known by the factor that it leaves, within a factor of two.
    """
    node = job.cluster.gpus_per_node
    slips = {
        "is it in milliseconds?": 1000.0,
        "is it in microseconds?": 1e6,
        "is it in minutes?": 1 / 60,
        "is it in hours?": 1 / 3600,
        f"are the tokens/s those of all {job.gpus:,} GPUs?": 1 / job.gpus,
        f"is it the time of one of {layout.microbatches:,} microbatches?": 1 / layout.microbatches,
    }
    if job.gpus > node:
        slips[f"are the tokens/s those of a node of {node}?"] = 1 / node
    gaps = {words: abs(math.log(ratio / factor)) for words, factor in slips.items()}
    words = min(gaps, key=lambda slip: gaps[slip])
    return words if gaps[words] < min(math.log(2), abs(math.log(ratio))) else None


def _refuse_strangers(runs: Sequence[Run]) -> None:
    """A run that is off from the others by more than efficiencies of one site can differ."""
    for run in runs:
        others = [one.measured_s / one.predicted_s for one in runs if one is not run]
        apart = run.measured_s / run.predicted_s / median(others)
        if not 1 / MOST_APART <= apart <= MOST_APART:
            raise InputError(
                f"record {run.id}: a step of {run.measured_s:.4g} s is {_times(apart)} what the "
                f"other {len(others)} runs lead to expect "
                f"({run.measured_s / apart:.4g} s); take the record out, or mend it",
                field="measured.step_time_s",
                value=run.measured_s,
                nearest=(float(f"{run.measured_s / apart:.4g}"),),
            )
