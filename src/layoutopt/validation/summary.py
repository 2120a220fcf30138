"""Accuracy of a set of scored records: overall, and by source file, framework and GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from layoutopt.validation.score import Scored
from layoutopt.validation.statistics import mean, median, quantile
from layoutopt.validation.sweeps import Sweep


@dataclass(frozen=True)
class Errors:
    """How far predictions are off; relative errors |predicted / measured - 1|."""

    n: int
    mape: float | None
    """Mean."""
    median: float | None
    p90: float | None
    bias: float | None
    """Median of predicted / measured - 1: above 0, predictions are too large."""

    def to_dict(self) -> dict[str, Any]:
        """The keys of layoutopt.validation/1."""
        return {
            "n": self.n,
            "mape": self.mape,
            "median": self.median,
            "p90": self.p90,
            "bias": self.bias,
        }


@dataclass(frozen=True)
class Fit:
    """How often "does it fit?" is answered as the run answered it."""

    n: int
    accuracy: float | None
    oom_missed: int
    """Runs that died of memory and were predicted to fit."""
    fits_refused: int
    """Runs that ran and were predicted not to fit."""

    def to_dict(self) -> dict[str, Any]:
        """The keys of layoutopt.validation/1."""
        return {
            "n": self.n,
            "accuracy": self.accuracy,
            "oom_missed": self.oom_missed,
            "fits_refused": self.fits_refused,
        }


@dataclass(frozen=True)
class Summary:
    """One row of the accuracy table."""

    name: str
    records: int
    scored: int
    time: Errors
    memory: Errors
    fit: Fit
    sweeps: tuple[Sweep, ...]

    @property
    def regret(self) -> float | None:
        """Mean regret of the sweeps."""
        return mean([sweep.regret for sweep in self.sweeps])

    @property
    def spearman(self) -> float | None:
        """Mean rank correlation of the sweeps."""
        return mean([sweep.spearman for sweep in self.sweeps if sweep.spearman is not None])

    def to_dict(self) -> dict[str, Any]:
        """The keys of layoutopt.validation/1."""
        return {
            "records": self.records,
            "scored": self.scored,
            "time": self.time.to_dict(),
            "memory": self.memory.to_dict(),
            "fit": self.fit.to_dict(),
            "sweeps": [sweep.to_dict() for sweep in self.sweeps],
        }


def errors(ratios: Sequence[float]) -> Errors:
    """Statistics of predicted / measured."""
    relative = [abs(ratio - 1) for ratio in ratios]
    middle = median(ratios)
    return Errors(
        n=len(ratios),
        mape=mean(relative),
        median=median(relative),
        p90=quantile(relative, 0.9),
        bias=None if middle is None else middle - 1,
    )


def fit(entries: Iterable[Scored]) -> Fit:
    """Accuracy of "fits or not" over the entries that count."""
    pairs = [(e.measured_oom, e.predicted_oom) for e in entries if e.counts("fit")]
    right = sum(measured == predicted for measured, predicted in pairs)
    return Fit(
        n=len(pairs),
        accuracy=right / len(pairs) if pairs else None,
        oom_missed=sum(bool(m) and not p for m, p in pairs),
        fits_refused=sum(not m and bool(p) for m, p in pairs),
    )


def summarise(name: str, entries: Sequence[Scored], sweeps: Iterable[Sweep]) -> Summary:
    """The table row of ``entries``."""
    times = [e.time_ratio for e in entries if e.counts("time") and e.time_ratio is not None]
    memories = [
        e.memory_ratio for e in entries if e.counts("memory") and e.memory_ratio is not None
    ]
    return Summary(
        name=name,
        records=len(entries),
        scored=sum(entry.scored for entry in entries),
        time=errors(times),
        memory=errors(memories),
        fit=fit(entries),
        sweeps=tuple(sweeps),
    )


def summarise_by(
    entries: Sequence[Scored],
    sweeps: Sequence[Sweep],
    entry_key: Callable[[Scored], str],
    sweep_key: Callable[[Sweep], str],
) -> list[Summary]:
    """A row per value of ``entry_key``, in order of first appearance."""
    groups: dict[str, list[Scored]] = {}
    for entry in entries:
        groups.setdefault(entry_key(entry), []).append(entry)
    return [
        summarise(name, group, [sweep for sweep in sweeps if sweep_key(sweep) == name])
        for name, group in groups.items()
    ]
