"""The figures that the project is judged by, from scored records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from layoutopt.validation import Scored
from layoutopt.validation.statistics import mean
from layoutopt.validation.summary import Errors, errors, fit
from layoutopt.validation.sweeps import Sweep, sweeps

LARGE = 1024
"""GPUs from which on a run counts as large."""

SMALLEST_SOURCE = 5
"""Step times that a source has at least to count in the mean over sources."""


@dataclass(frozen=True)
class Figure:
    """One figure with what it is to reach. Shares of 1, but for Spearman's correlation."""

    name: str
    value: float | None
    n: int
    """Records, sweeps or sources behind it."""
    target: float | None = None
    held_out_target: float | None = None
    at_least: bool = False
    """Larger is better."""

    @property
    def reached(self) -> bool | None:
        """Whether the target is met; None where there is no figure or no target."""
        return self._meets(self.target)

    @property
    def held_out_reached(self) -> bool | None:
        """The same for the target by cross-validation."""
        return self._meets(self.held_out_target)

    def _meets(self, target: float | None) -> bool | None:
        if self.value is None or target is None:
            return None
        return self.value >= target if self.at_least else self.value <= target


def is_dense(entry: Scored) -> bool:
    """A record of a model without experts."""
    return entry.case is not None and entry.case.job.model.moe is None


def has_experts(entry: Scored) -> bool:
    """A record of a mixture of experts."""
    return entry.case is not None and entry.case.job.model.moe is not None


def is_large(entry: Scored) -> bool:
    """A dense record on LARGE GPUs or more."""
    return is_dense(entry) and entry.case is not None and entry.case.job.gpus >= LARGE


def of_file(name: str) -> Callable[[Scored], bool]:
    """Records of one source file."""
    return lambda entry: entry.record.source_file == f"{name}.jsonl"


def of_source(words: str, section: str = "") -> Callable[[Scored], bool]:
    """Records whose source names ``words`` and ``section``."""
    return lambda entry: words in entry.record.source and section in entry.record.source


def step_errors(entries: Sequence[Scored]) -> Errors:
    """Errors of the step times that the summaries count."""
    return errors(
        [
            entry.time_ratio
            for entry in entries
            if entry.counts("time") and entry.time_ratio is not None
        ]
    )


def memory_errors(entries: Sequence[Scored]) -> Errors:
    """Errors of the peaks that the summaries count."""
    return errors(
        [
            entry.memory_ratio
            for entry in entries
            if entry.counts("memory") and entry.memory_ratio is not None
        ]
    )


def by_source(entries: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Entries by source file, in order of first appearance."""
    groups: dict[str, list[Scored]] = {}
    for entry in entries:
        groups.setdefault(entry.record.source_file, []).append(entry)
    return groups


def headline(entries: Sequence[Scored]) -> list[Figure]:
    """Every figure of the ledger's first table."""
    return [
        *_dense(entries),
        *_sources(entries),
        *_large(entries),
        *_experts(entries),
        *_korthikanti(entries),
        *_vtrain(entries),
        *_hagemann(entries),
        *_memory(entries),
    ]


def _some(entries: Sequence[Scored], which: Callable[[Scored], bool]) -> list[Scored]:
    return [entry for entry in entries if which(entry)]


def _dense(entries: Sequence[Scored]) -> list[Figure]:
    found = step_errors(_some(entries, is_dense))
    bias = None if found.bias is None else abs(found.bias)
    return [
        Figure("dense, step time: median", found.median, found.n, 0.04, 0.055),
        Figure("dense, step time: mean", found.mape, found.n, 0.07, 0.09),
        Figure("dense, step time: 90th percentile", found.p90, found.n, 0.15, 0.20),
        Figure("dense, step time: bias of the median", bias, found.n, 0.02, 0.03),
    ]


def _sources(entries: Sequence[Scored]) -> list[Figure]:
    means = [
        found.mape
        for group in by_source(entries).values()
        if (found := step_errors(group)).n >= SMALLEST_SOURCE and found.mape is not None
    ]
    return [Figure("mean over sources of the mean error", mean(means), len(means), 0.08, 0.10)]


def _large(entries: Sequence[Scored]) -> list[Figure]:
    found = step_errors(_some(entries, is_large))
    return [
        Figure(f"dense on {LARGE:,} GPUs and more: median", found.median, found.n, 0.05, 0.07),
        Figure(f"dense on {LARGE:,} GPUs and more: 90th percentile", found.p90, found.n, 0.15, 0.2),
    ]


def _experts(entries: Sequence[Scored]) -> list[Figure]:
    found = step_errors(_some(entries, has_experts))
    return [
        Figure("experts, step time: median", found.median, found.n, 0.08, 0.11),
        Figure("experts, step time: mean", found.mape, found.n, 0.13, 0.17),
    ]


def _korthikanti(entries: Sequence[Scored]) -> list[Figure]:
    ratios = [
        abs(entry.time_ratio - 1)
        for entry in _some(entries, of_source("Korthikanti", "Tables 3 and 5"))
        if entry.time_ratio is not None
    ]
    return [
        Figure("Korthikanti 2022, table 5: mean", mean(ratios), len(ratios), 0.025),
        Figure("Korthikanti 2022, table 5: worst", max(ratios, default=None), len(ratios), 0.05),
    ]


def _vtrain(entries: Sequence[Scored]) -> list[Figure]:
    runs = _some(entries, of_source("vTrain"))
    figures = []
    for model in sorted({str(entry.record.model.get("name")) for entry in runs}):
        group = [entry for entry in runs if entry.record.model.get("name") == model]
        found, name = step_errors(group), f"vTrain multi-node, {model}"
        figures.append(Figure(f"{name}: mean", found.mape, found.n, 0.08))
        for sweep in sweeps(group):
            rank = Figure(f"{name}: Spearman", sweep.spearman, sweep.n, 0.9, at_least=True)
            figures += [rank, Figure(f"{name}: regret", sweep.regret, sweep.n, 0.02)]
    return figures


def _hagemann(entries: Sequence[Scored]) -> list[Figure]:
    runs = _some(entries, of_file("hagemann2023"))
    figures = []
    for kernel in sorted({str(entry.record.training.get("kernel")) for entry in runs}):
        group = [e for e in runs if str(e.record.training.get("kernel")) == kernel]
        found = step_errors(group)
        if found.n:  # of one kernel every run died
            figures.append(Figure(f"Hagemann 2023, {kernel}: mean", found.mape, found.n, 0.05))
    ranked = sweeps(runs)
    return [*figures, *_regrets("Hagemann 2023", ranked), *_fits("Hagemann 2023", runs)]


def _regrets(name: str, ranked: Sequence[Sweep]) -> list[Figure]:
    regrets = [sweep.regret for sweep in ranked]
    worst = max(regrets, default=None)
    return [
        Figure(f"{name}: mean regret of the sweeps", mean(regrets), len(regrets), 0.01),
        Figure(f"{name}: worst regret", worst, len(regrets), 0.03),
    ]


def _fits(name: str, runs: Sequence[Scored]) -> list[Figure]:
    found = fit(runs)
    died = sum(bool(entry.measured_oom) for entry in runs if entry.counts("fit"))
    ran = found.n - died
    missed = found.oom_missed / died if died else None
    refused = found.fits_refused / ran if ran else None
    return [
        Figure(f"{name}, fits or not: right", found.accuracy, found.n, 0.97, 0.96, at_least=True),
        Figure(f"{name}, fits or not: deaths missed", missed, died, 0.03),
        Figure(f"{name}, fits or not: runs refused", refused, ran, 0.01),
    ]


def _memory(entries: Sequence[Scored]) -> list[Figure]:
    found = memory_errors(entries)
    return [
        Figure(
            "fits or not: balanced accuracy",
            balanced_accuracy(entries),
            fit(entries).n,
            0.97,
            0.96,
            at_least=True,
        ),
        Figure("peak memory: mean", found.mape, found.n, 0.06, 0.08),
    ]


def balanced_accuracy(entries: Sequence[Scored]) -> float | None:
    """Mean of the shares answered rightly among runs that died of memory and runs that ran."""
    counted = [entry for entry in entries if entry.counts("fit")]
    shares = []
    for died in (True, False):
        group = [entry for entry in counted if entry.measured_oom == died]
        if not group:
            return None
        shares.append(sum(entry.predicted_oom == died for entry in group) / len(group))
    return mean(shares)
