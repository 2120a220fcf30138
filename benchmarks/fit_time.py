"""Fits the efficiencies behind step times: ``python -m benchmarks.fit_time [--dry-run]``.

A robust least-squares fit (soft-L1 loss, bounds, priors at physical values; chords.py) of the
logarithm of predicted over measured step time, over every scored record of benchmarks/measured.
Each source file weighs as the square root of its records, so that a sweep of 700 runs does not
outvote ten papers. The result is written to costmodel/data/efficiency.yaml and software.yaml, with
the date.
"""

from __future__ import annotations

import argparse
import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.accuracy import default_files
from benchmarks.chords import Chords, Vector
from layoutopt.costmodel.axes import Axes, axes_of
from layoutopt.costmodel.efficiency import Efficiency, efficiencies
from layoutopt.costmodel.estimate import step_seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import attention_kernel, fused_norm, machine
from layoutopt.costmodel.software import Software, software, software_names
from layoutopt.validation import Scored, validate
from layoutopt.validation.cases import Case

ROOT = Path(__file__).parents[1]
FITS = ROOT / "benchmarks" / "fit_time.yaml"
"""Which parameters are fitted, with prior, spread (of the logarithm or value) and bounds."""

GENERIC_FOLLOWS = "megatron-core"
"""The profile whose fitted figures the generic one takes: today's stack at its most usual."""

ROUNDS = 2
"""Matrices of derivatives of a fit that starts at the shipped values; the second moves the cost by
under 1e-3."""


def _has_experts(job: Job) -> bool:
    return job.model.moe is not None


MATTERS_TO: dict[str, Callable[[Job], bool]] = {
    **dict.fromkeys(
        (
            "expert_rate",
            "router_s",
            "expert_launches",
            "grouped_launches",
            "graphed_share",
            "biased_expert_bytes",
        ),
        _has_experts,
    ),
    "scan_rate": lambda job: job.model.mamba is not None,
    "unfused_norm_bytes": lambda job: not fused_norm(job),
    "fused_score_bytes": lambda job: attention_kernel(job) == "fused_softmax",
    "unfused_score_bytes": lambda job: attention_kernel(job) == "unfused",
    "flash1_speed": lambda job: attention_kernel(job) == "flash1",
    "context_half": lambda job: attention_kernel(job).startswith("flash"),
    "cast_bytes": lambda job: machine(job).gemm_bytes < 2,
}
"""Jobs whose price depends on a shared figure, where not all do."""


@dataclass(frozen=True)
class Parameter:
    """One fitted figure. ``owner`` is "shared", an architecture or a software profile."""

    owner: str
    name: str
    prior: float
    spread: float
    low: float
    high: float

    @property
    def key(self) -> str:
        """Unique name."""
        return f"{self.owner}.{self.name}"


@dataclass(frozen=True)
class Batch:
    """Cases that share a job but for their layouts: priced in one call."""

    job: Job
    axes: Axes
    rows: NDArray[np.int64]


def parameters() -> list[Parameter]:
    """What is fitted, from fit_time.yaml."""
    rows = yaml.safe_load(FITS.read_text("utf-8"))
    return [
        Parameter(owner, name, *map(float, values))
        for owner, names in rows.items()
        for name, values in names.items()
    ]


def cases_of(entries: Iterable[Scored]) -> tuple[list[Case], Vector]:
    """Cases that count for time, with their measured seconds."""
    pairs = [
        (entry.case, entry.measured_s)
        for entry in entries
        if entry.case is not None and entry.counts("time") and entry.measured_s
    ]
    return [case for case, _ in pairs], np.array([seconds for _, seconds in pairs])


def batches_of(cases: Sequence[Case]) -> list[Batch]:
    """Groups the cases by job."""
    groups: dict[Any, list[int]] = {}
    for row, case in enumerate(cases):
        job = case.job
        key = (job.model, id(job.cluster), job.training, job.software.name, job.gpus)
        groups.setdefault((*key, case.layout.cp_kind), []).append(row)
    return [
        Batch(cases[rows[0]].job, axes_of([cases[row].layout for row in rows]), np.array(rows))
        for rows in groups.values()
    ]


def weights_of(cases: Sequence[Case]) -> Vector:
    """1/sqrt of the source file's records, scaled to mean 1 over records."""
    counts = Counter(case.record.source_file for case in cases)
    raw = np.array([counts[case.record.source_file] ** -0.5 for case in cases])
    weights: Vector = raw / raw.mean()
    return weights


class Fit:
    """Residuals of a parameter vector, re-pricing only what a changed parameter touches."""

    def __init__(self, cases: Sequence[Case], measured: Vector, fitted: Sequence[Parameter]):
        self.fitted = list(fitted)
        self.measured = measured
        self.batches = batches_of(cases)
        self.weights = weights_of(cases)
        self.prior = np.array([p.prior for p in fitted])
        self.spread = np.array([p.spread for p in fitted])

    def tables(self, vector: Vector) -> tuple[dict[str, Efficiency], dict[str, Software]]:
        """Efficiency rows and software profiles with ``vector`` put in."""
        shared = {
            p.name: v for p, v in zip(self.fitted, vector, strict=True) if p.owner == "shared"
        }
        own: dict[str, dict[str, float]] = {}
        for p, value in zip(self.fitted, vector, strict=True):
            if p.owner != "shared":
                own.setdefault(p.owner, {})[p.name] = float(value)
        rows = {
            name: row.model_copy(update={**shared, **own.get(name, {})})
            for name, row in efficiencies().items()
        }
        profiles = {
            name: software(name).model_copy(update=own.get(name, {})) for name in software_names()
        }
        return rows, profiles

    def predicted(self, vector: Vector, touched: Iterable[Batch] | None = None) -> Vector:
        """Seconds per case; cases of batches that are not ``touched`` are NaN."""
        rows, profiles = self.tables(vector)
        seconds = np.full(len(self.measured), np.nan)
        for batch in self.batches if touched is None else touched:
            job = replace(
                batch.job,
                efficiency=rows[batch.job.cluster.gpu.architecture],
                software=profiles[batch.job.software.name],
            )
            seconds[batch.rows] = step_seconds(job, batch.axes)
        return seconds

    def touched_by(self, parameter: Parameter) -> list[Batch]:
        """Batches whose price depends on ``parameter``."""
        if parameter.owner == "shared":
            matters = MATTERS_TO.get(parameter.name)
            return [batch for batch in self.batches if matters is None or matters(batch.job)]
        return [
            batch
            for batch in self.batches
            if parameter.owner in (batch.job.cluster.gpu.architecture, batch.job.software.name)
        ]

    def slopes(self, vector: Vector, which: Iterable[int] | None = None) -> Vector:
        """Change of the logarithm of each run's seconds for a unit of each figure, or of those at
        the places ``which``: forward differences, a column a figure."""
        base = np.log(self.predicted(vector))
        columns = range(len(vector)) if which is None else which
        found = [self._slope(vector, base, int(column)) for column in columns]
        return np.array(found).reshape(-1, len(base)).T

    def _slope(self, vector: Vector, base: Vector, column: int) -> Vector:
        parameter = self.fitted[column]
        step = 1e-3 * max(parameter.spread, 1e-9)
        if vector[column] + step > parameter.high:
            step = -step
        moved = vector.copy()
        moved[column] += step
        change = np.log(self.predicted(moved, self.touched_by(parameter))) - base
        slope: Vector = np.nan_to_num(change) / step
        return slope

    def solve(self, start: Vector, rounds: int = ROUNDS) -> Vector:
        """The fitted vector: chord steps, with derivatives taken anew each round."""
        chords = Chords(self, np.arange(len(self.measured)), self.weights)
        point = start
        for _ in range(rounds):
            point = chords.least(point, self.slopes(point))
        return point


def current(fitted: Sequence[Parameter]) -> Vector:
    """Today's shipped values."""
    rows = efficiencies()
    first = next(iter(rows.values()))
    values = []
    for p in fitted:
        if p.owner == "shared":
            values.append(getattr(first, p.name))
        elif p.owner in rows:
            values.append(getattr(rows[p.owner], p.name))
        else:
            values.append(getattr(software(p.owner), p.name))
    return np.array(values, dtype=float)


def write(fitted: Sequence[Parameter], vector: Vector, records: int) -> None:
    """Put the values into the data files, in place, keeping everything else as it is."""
    values = {p.key: float(f"{v:.4g}") for p, v in zip(fitted, vector, strict=True)}
    stamp = f"{datetime.date.today()}, {records} records of benchmarks/measured"
    for name in ("efficiency", "software"):
        path = ROOT / "costmodel" / "data" / f"{name}.yaml"
        table = yaml.safe_load(path.read_text("utf-8"))
        table["fitted"] = {"by": "python -m benchmarks.fit_time", "on": stamp}
        rows = table["architectures"] if name == "efficiency" else table["profiles"]
        if name == "efficiency":
            _update(table["shared"], "shared", values)
        for row in rows:
            owner = row.get("architecture") or row["name"]
            _update(row, owner, values)
            if owner == "generic":
                _update(row, GENERIC_FOLLOWS, values)
        head = "".join(
            f"{line}\n" for line in path.read_text("utf-8").splitlines() if line[:1] == "#"
        )
        body = yaml.safe_dump(table, sort_keys=False, width=100, allow_unicode=True)
        path.write_text(head + body, "utf-8")


def _update(row: dict[str, Any], owner: str, values: Mapping[str, float]) -> None:
    for key, value in values.items():
        if key.startswith(f"{owner}."):
            row[key.split(".", 1)[1]] = value


def main() -> None:
    """Fit, print old and new values and errors, and store them unless told not to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="matrices of derivatives")
    options = parser.parse_args()
    cases, measured = cases_of(validate(default_files()).records)
    fitted = parameters()
    fit = Fit(cases, measured, fitted)
    start = current(fitted)
    found = fit.solve(start, options.rounds)
    for p, before, after in zip(fitted, start, found, strict=True):
        edge = (
            " at its bound" if min(after - p.low, p.high - after) < 1e-3 * (p.high - p.low) else ""
        )
        print(f"{p.key:<44}{p.prior:>12.4g}{before:>12.4g}{after:>12.4g}{edge}")
    for words, vector in (("before", start), ("after", found)):
        errors = np.abs(fit.predicted(vector) / measured - 1)
        print(f"{words}: {len(errors)} records, median {np.median(errors):.2%}, ", end="")
        print(f"MAPE {errors.mean():.2%}, p90 {np.quantile(errors, 0.9):.2%}")
    if not options.dry_run:
        write(fitted, found, len(cases))


if __name__ == "__main__":
    main()
