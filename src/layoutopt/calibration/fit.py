"""The fit behind a calibration: least squares around the shipped figures, with priors."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layoutopt.calibration.megatron_log import is_log, records_of_log
from layoutopt.calibration.nccl_log import LinkRate, is_nccl_log, link_rate, refuse_other_gpu
from layoutopt.calibration.runs import Run, usable_runs
from layoutopt.calibration.site import SCHEMA, Factors, Site, SiteErrors
from layoutopt.costmodel.axes import Axes, axes_of
from layoutopt.costmodel.estimate import estimate, step_seconds
from layoutopt.costmodel.job import Job
from layoutopt.validation import Scored, read_records, score

Vector = NDArray[np.float64]

SPREADS = np.array([0.10, 0.10, 0.15, 0.35, 0.15])
"""How far sites differ from the shipped figures, as standard deviations: of the logarithms of
compute_time, memory_rate, scaleup_rate and network_time, and of overlap_shift. Between software
profiles the fitted kernel times differ by about a tenth, network times by far more."""

WIDEST = 3 * SPREADS
"""Bounds of the same, either way."""

SCALEUP, NETWORK = 2, 3
"""Places of scaleup_rate and network_time."""

LINK_SPREAD = 0.03
"""The same for a link that a log of nccl-tests measured, around what it says."""

NOISE = 0.03
"""Relative difference of equal runs, which no figure explains: 1 to 4% in published records."""

FROM_THE_LINE = 2.0
"""Residuals of more than this many NOISE count by their size, no longer by its square."""

MOST_STEPS = 6
SETTLED = 0.02
"""A step that moves no factor by more than this share of its spread is the last one."""

BAND = 0.8
"""Share of left-out runs that left_out_band holds."""


@dataclass(frozen=True)
class RunRow:
    """A run beside its predictions. Seconds."""

    id: str
    measured_s: float
    shipped_s: float
    fitted_s: float
    left_out_s: float
    """By a fit to the other runs."""


@dataclass(frozen=True)
class Calibrated:
    """What a calibration found."""

    site: Site
    rows: tuple[RunRow, ...]
    unused: tuple[tuple[str, str], ...]
    """(id, why) of the records that were not used."""

    exit_code = 0
    """There is a calibration; whether it is worth using, ``sentences`` say."""

    @property
    def worthwhile(self) -> bool:
        """Left-out runs are predicted better than with the shipped figures."""
        errors = self.site.errors
        return errors is not None and errors.left_out_mean < errors.shipped_mean

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of schema layoutopt.calibration/1."""
        unused = [{"id": name, "why": why} for name, why in self.unused]
        return {
            **self.site.to_dict(),
            "schema": SCHEMA,
            "worthwhile": self.worthwhile,
            "rows": [asdict(row) for row in self.rows],
            "unused": unused,
        }


@dataclass(frozen=True)
class _Batch:
    """Runs that differ in the layout alone: priced in one call."""

    job: Job
    axes: Axes
    places: list[int]


def calibrate(paths: Sequence[str | Path], gpu: str | None = None) -> Calibrated:
    """A site's factors from three measured runs or more: JSON-lines files, or Megatron's logs.

    ``gpu`` is the GPU type of Megatron's logs, which do not say. Logs of nccl-tests among the files
    say what the links reach; the fit starts there.

    A least-squares fit of log(predicted / measured), each factor held near the shipped figure by
    its spread. Raises InputError that names the record for what cannot be a measurement.
    """
    links = [path for path in paths if is_log(path) and is_nccl_log(path)]
    runs, unused = usable_runs(_scored([path for path in paths if path not in links], gpu))
    fit = _Fit(runs, [link_rate(path) for path in links])
    vector, slopes = fit.solve()
    fitted, left_out = fit.seconds(vector), fit.left_out(vector, slopes)
    rows = tuple(
        RunRow(
            run.id, run.measured_s, run.predicted_s, float(fitted[place]), float(left_out[place])
        )
        for place, run in enumerate(runs)
    )
    site = Site(
        gpu=runs[0].job.cluster.gpu.name,
        framework=runs[0].job.software.name,
        factors=_rounded(factors_of(vector)),
        runs=tuple(run.id for run in runs),
        errors=_errors(rows),
        made=f"{datetime.date.today()}, layoutopt calibrate",
    )
    return Calibrated(site, rows, tuple(unused))


def _scored(paths: Sequence[str | Path], gpu: str | None) -> list[Scored]:
    """Every run with its shipped prediction."""
    logs = [path for path in paths if is_log(path)]
    lines = [path for path in paths if path not in logs]
    records = read_records(lines) if lines or not logs else []
    for path in logs:
        records += records_of_log(path, gpu)
    return score(records, estimate)


def factors_of(vector: Vector) -> Factors:
    """The factors that a vector of logarithms (and the shift itself) stands for."""
    compute, memory, scaleup, network, shift = vector.tolist()
    return Factors(
        compute_time=math.exp(compute),
        memory_rate=math.exp(memory),
        scaleup_rate=math.exp(scaleup),
        network_time=math.exp(network),
        overlap_shift=shift,
    )


@dataclass(frozen=True)
class _Prior:
    """Where the factors are expected, and how closely."""

    centre: Vector
    spread: Vector

    def pull(self, vector: Vector) -> Vector:
        """Distance from the centre, in spreads."""
        found: Vector = (vector - self.centre) / self.spread
        return found


def _prior(job: Job, links: Sequence[LinkRate]) -> _Prior:
    """The shipped figures, and what logs of nccl-tests say of the links."""
    centre, spread = np.zeros(len(SPREADS)), SPREADS.copy()
    for rate in links:
        refuse_other_gpu(rate, job)
        place, sign = (SCALEUP, 1) if rate.hosts == 1 else (NETWORK, -1)
        limit = 0.99 * WIDEST[place]
        centre[place] = np.clip(sign * math.log(rate.rate_factor(job)), -limit, limit)
        spread[place] = LINK_SPREAD
    return _Prior(centre, spread)


class _Fit:
    """Residuals of some runs, and their least squares."""

    def __init__(self, runs: Sequence[Run], links: Sequence[LinkRate] = ()) -> None:
        self.measured = np.array([run.measured_s for run in runs])
        self.batches = _batches(runs)
        self.prior = _prior(runs[0].job, links)

    def seconds(self, vector: Vector) -> Vector:
        """Predicted step times of all runs."""
        factors, found = factors_of(vector), np.zeros(len(self.measured))
        for batch in self.batches:
            found[batch.places] = step_seconds(factors.apply(batch.job), batch.axes)
        return found

    def errors(self, vector: Vector) -> Vector:
        """log(predicted / measured)."""
        found: Vector = np.log(self.seconds(vector) / self.measured)
        return found

    def slopes(self, vector: Vector) -> Vector:
        """Derivatives of ``errors``, a column a factor, by forward differences."""
        base, columns = self.errors(vector), np.zeros((len(self.measured), len(SPREADS)))
        for column, spread in enumerate(SPREADS):
            # Towards the inside, and away from 0, where the shift of overlaps has a kink.
            step = 1e-3 * spread * (-1 if vector[column] > 0 else 1)
            moved = vector.copy()
            moved[column] += step
            columns[:, column] = (self.errors(moved) - base) / step
        return columns

    def solve(self) -> tuple[Vector, Vector]:
        """The factors of all runs, and the derivatives there.

        Gauss-Newton: logarithms of step times are nearly linear in these, so that two or three
        steps settle it; a step that would raise the cost ends the search.
        """
        vector = self.prior.centre
        slopes, cost = self.slopes(vector), self.cost(vector)
        for _ in range(MOST_STEPS):
            moved = _linear_fit(vector, self.errors(vector), slopes, self.prior)
            new_cost = self.cost(moved)
            if new_cost >= cost:
                break
            small = np.max(np.abs(moved - vector) / SPREADS) < SETTLED
            vector, cost = moved, new_cost
            if small:
                break
            slopes = self.slopes(vector)
        return vector, slopes

    def cost(self, vector: Vector) -> float:
        """What the fit minimises: soft L1 of errors over noise and of factors over spreads."""
        residuals = np.concatenate([self.errors(vector) / NOISE, self.prior.pull(vector)])
        return float(np.sum(np.sqrt(1 + (residuals / FROM_THE_LINE) ** 2) - 1))

    def left_out(self, vector: Vector, slopes: Vector) -> Vector:
        """Seconds of each run by a fit to the others.

        Those fits follow the derivatives at ``vector``: one run moves it too little for them to
        change. The left-out run itself is priced with the factors found.
        """
        errors, found = self.errors(vector), np.zeros(len(self.measured))
        for batch in self.batches:
            for row, place in enumerate(batch.places):
                kept = np.arange(len(found)) != place
                moved = _linear_fit(vector, errors[kept], slopes[kept], self.prior)
                job = factors_of(moved).apply(batch.job)
                found[place] = step_seconds(job, batch.axes)[row]
        return found


def _linear_fit(vector: Vector, errors: Vector, slopes: Vector, prior: _Prior) -> Vector:
    """Where the cost is least if errors follow ``slopes`` from ``vector``."""
    from scipy.optimize import least_squares  # late: only a fit needs it

    matrix = np.vstack([slopes / NOISE, np.diag(1 / prior.spread)])
    found = least_squares(
        lambda x: np.concatenate([(errors + slopes @ (x - vector)) / NOISE, prior.pull(x)]),
        np.clip(vector, -0.999 * WIDEST, 0.999 * WIDEST),
        jac=lambda _: matrix,
        bounds=(-WIDEST, WIDEST),
        loss="soft_l1",
        f_scale=FROM_THE_LINE,
        x_scale=SPREADS,
    )
    return np.asarray(found.x)


def _batches(runs: Sequence[Run]) -> list[_Batch]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, run in enumerate(runs):
        job = run.job
        key = (job.model, job.cluster.name, job.cluster.levels, job.training, job.gpus)
        groups.setdefault((*key, run.layout.cp_kind), []).append(place)
    return [
        _Batch(runs[places[0]].job, axes_of([runs[place].layout for place in places]), places)
        for places in groups.values()
    ]


def _rounded(factors: Factors) -> Factors:
    return Factors(**{name: float(f"{value:.4g}") for name, value in asdict(factors).items()})


def _errors(rows: Sequence[RunRow]) -> SiteErrors:
    def off(seconds: float, row: RunRow) -> float:
        return abs(seconds / row.measured_s - 1)

    # Against the prediction, as a band is laid around it.
    held = sorted(abs(row.measured_s / row.left_out_s - 1) for row in rows)
    rank = math.ceil((len(held) + 1) * BAND)
    return SiteErrors(
        shipped_mean=_mean([off(row.shipped_s, row) for row in rows]),
        fitted_mean=_mean([off(row.fitted_s, row) for row in rows]),
        left_out_mean=_mean([off(row.left_out_s, row) for row in rows]),
        left_out_band=float(f"{held[rank - 1]:.4g}") if rank <= len(held) else None,
    )


def _mean(values: Sequence[float]) -> float:
    return float(f"{sum(values) / len(values):.4g}")
