"""Fits the figures of memory to measured runs: ``python -m benchmarks.fit_memory``.

Eight figures for all runs (costmodel/memory_fit.py): allocator, context, workspaces, and what
unfused operators keep. Whole runs hang on them by yes and no, so they are searched coordinate by
coordinate on a grid: the mean of the memory error (its logarithm, cut at CUT), half the shares of
runs that died and were said to fit and of runs that ran and were refused, and a pull to physical
priors. Written to costmodel/data/memory.yaml with the date and the records. ``--folds`` fits again
without each source and each fold of models and clusters (those of cross_validate.py) and records
what such fits say of the runs that they never saw.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.accuracy import default_files
from benchmarks.cross_validate import group_splits, source_splits
from benchmarks.results_file import ROOT, circumstances, new_file
from layoutopt.costmodel.axes import Flags, Ints
from layoutopt.costmodel.estimate import estimate, memory_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.memory import allocator_reserve
from layoutopt.costmodel.memory_fit import MemoryFit, shipped
from layoutopt.costmodel.results import Estimate
from layoutopt.units import GIB, KIB, MIB
from layoutopt.validation import Case, Scored, validate

CUT = 0.5
"""Errors beyond this count as this: a record that is read wrongly must not pull."""
PULL = 0.001
"""What one spread from the prior costs."""


@dataclass(frozen=True)
class Choice:
    """A figure's grid (its ends are the bounds) and its prior."""

    values: tuple[float, ...]
    prior: float
    spread: float


GRID: dict[str, Choice] = {
    "fragmented_per_mille": Choice((0, 5, 10, 15, 20, 25, 30, 40), 20, 10),
    "context_bytes": Choice(tuple(n * 256 * MIB for n in range(3, 13)), GIB, GIB / 2),
    "reserve_per_mille": Choice((30, 40, 50, 60, 70, 90), 50, 15),
    "old_reserve_per_mille": Choice((50, 75, 100, 125, 150, 175, 200), 100, 50),
    "workspace_bytes": Choice(tuple(n * 32 * MIB for n in range(6)), 64 * MIB, 64 * MIB),
    "unfused_norm_bytes": Choice((5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 9.0, 10.0), 8, 2),
    "eager_rotary_bytes": Choice((0.0, 2.0, 3.0, 4.0, 5.0, 6.0), 4, 2),
    "eager_hidden_bytes": Choice((1.0, 2.0, 2.5, 3.0, 3.5, 4.0), 2, 1),
}
"""Priors: 2% of blocks lost and 1 GiB of context; 3 to 9% cached; an fp32 input and output of a
norm, an fp32 input of rotary embedding, two dropout masks."""
_EAGER = ("unfused_norm_bytes", "eager_rotary_bytes", "eager_hidden_bytes")
"""Figures that change what tensors hold, of stacks of unfused operators alone."""


class MemoryAlone:
    """Prices memory afresh; everything else is of the first run priced."""

    def __init__(self) -> None:
        self.rest: Estimate | None = None

    def __call__(self, job: Job, layout: Layout) -> Estimate:
        """An estimate of which only ``memory`` may be read."""
        if self.rest is None:
            self.rest = estimate(job, layout)
        return replace(self.rest, layout=layout, memory=memory_of(job, layout))


@dataclass(frozen=True)
class Said:
    """What a fit says of every run."""

    gib: NDArray[np.float64]
    """Peak of the kind, and on the stage, that the record measured."""
    dies: Flags


class Runs:
    """Measured runs with what tensors hold in each, kept by the figures that change it."""

    def __init__(self, entries: Sequence[Scored]) -> None:
        self.entries = [e for e in entries if e.case and (e.counts("memory") or e.counts("fit"))]
        self.cases: list[Case] = [e.case for e in self.entries if e.case]
        self.gib = _column([e.measured_gib if e.counts("memory") else None for e in self.entries])
        fits = [e.measured_oom if e.counts("fit") else None for e in self.entries]
        self.died = np.array([word is True for word in fits])
        self.ran = np.array([word is False for word in fits])
        self.kinds = np.array([case.memory_kind or "reserved" for case in self.cases])
        self.old = np.array([case.job.software.old_allocator for case in self.cases])
        self.eager = [
            row for row, c in enumerate(self.cases) if not c.job.software.fused_activation
        ]
        self.capacity: Ints = np.array([c.job.cluster.gpu.memory_bytes for c in self.cases])
        self.start = shipped()
        self._held: dict[tuple[float, ...], Ints] = {}
        self._first = self._allocated(self.start, range(len(self.cases)))

    def _allocated(self, fit: MemoryFit, rows: Sequence[int]) -> Ints:
        """KiB that tensors hold: on the measured stage, and on the fullest one."""
        found = []
        for row in rows:
            case = self.cases[row]
            stages = memory_of(replace(case.job, memory_fit=fit), case.layout).stages
            own = stages[-1:] if case.memory_of_last_stage else stages
            found.append([max(s.allocated for s in some) // KIB for some in (own, stages)])
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    def allocated(self, fit: MemoryFit) -> Ints:
        """The same under ``fit``; only stacks of unfused operators are priced anew."""
        key = tuple(float(getattr(fit, name)) for name in _EAGER)
        if key not in self._held:
            priced = self._first.copy()
            alike = fit.model_copy(update={"workspace_bytes": self.start.workspace_bytes})
            priced[self.eager] = self._allocated(alike, self.eager)
            self._held[key] = priced
        more: Ints = self._held[key] + (fit.workspace_bytes - self.start.workspace_bytes) // KIB
        return more

    def said(self, fit: MemoryFit) -> Said:
        """Peaks and deaths under ``fit``."""
        own, worst = self.allocated(fit).T
        usable = (self.capacity - fit.context_bytes) // KIB
        cached = np.where(self.old, fit.old_reserve_per_mille, fit.reserve_per_mille)
        lost = fit.fragmented_per_mille
        reserved = own + allocator_reserve(own, usable, cached, lost)
        outside = fit.context_bytes // KIB
        kib = np.select(
            [self.kinds == "allocated", self.kinds == "nvidia-smi"], [own, reserved + outside],
            reserved,
        )  # fmt: skip
        return Said(kib * KIB / GIB, worst > usable * 1000 // (1000 + lost))

    def loss(self, fit: MemoryFit, rows: Flags) -> float:
        """What the fit is worth on ``rows``, the pull to the priors included."""
        said = self.said(fit)
        peaks = rows & np.isfinite(self.gib)
        errors = np.minimum(np.abs(np.log(said.gib[peaks] / self.gib[peaks])), CUT)
        died, ran = self.died & rows, self.ran & rows
        missed = np.mean(~said.dies[died]) if died.any() else 0.0
        refused = np.mean(said.dies[ran]) if ran.any() else 0.0
        pull = sum(
            ((getattr(fit, name) - choice.prior) / choice.spread) ** 2
            for name, choice in GRID.items()
        )
        error = float(errors.mean()) if len(errors) else 0.0
        return error + float(missed + refused) / 2 + PULL * float(pull)

    def fit(self, rows: Flags, rounds: int = 3) -> MemoryFit:
        """The best figures for ``rows``: each in turn, until none gets better."""
        best = self.start
        least = self.loss(best, rows)
        for _ in range(rounds):
            before = least
            for name, choice in GRID.items():
                for value in choice.values:
                    kind = type(getattr(best, name))
                    tried = best.model_copy(update={name: kind(value)})
                    loss = self.loss(tried, rows)
                    if loss < least - 1e-9:
                        best, least = tried, loss
            if before - least < 1e-9:
                break
        return best

    def words(self, said: Said, rows: Flags) -> str:
        """Errors of ``rows`` in a line."""
        peaks = rows & np.isfinite(self.gib)
        errors = np.abs(said.gib[peaks] / self.gib[peaks] - 1)
        died, ran = self.died & rows, self.ran & rows
        mean = f"{errors.mean():.1%}" if len(errors) else "-"
        return (
            f"{peaks.sum():>4} peaks: mean {mean}; {died.sum()} died, "
            f"{(died & ~said.dies).sum()} missed; {ran.sum()} ran, "
            f"{(ran & said.dies).sum()} refused"
        )


def _column(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def write(fit: MemoryFit, records: int) -> None:
    """Put the figures into costmodel/data/memory.yaml."""
    path = ROOT / "costmodel" / "data" / "memory.yaml"
    head = "".join(f"{line}\n" for line in path.read_text("utf-8").splitlines() if line[:1] == "#")
    stamp = f"{datetime.date.today()}, {records} records of benchmarks/measured"
    table = {
        "shared": fit.model_dump(),
        "fitted": {"by": "python -m benchmarks.fit_memory", "on": stamp},
    }
    path.write_text(head + yaml.safe_dump(table, sort_keys=False), "utf-8")


def held_out(runs: Runs) -> dict[str, Any]:
    """What fits that never saw a run say of it, by kind of split."""
    fits, found = [], [dict[str, Any](id=case.record.id) for case in runs.cases]
    for split in (*source_splits(runs.cases), *group_splits(runs.cases)):
        held = np.zeros(len(runs.cases), dtype=bool)
        held[list(split.rows)] = True
        fit = runs.fit(~held)
        said = runs.said(fit)
        print(f"{split.kind:<8}{split.name:<22}{runs.words(said, held)}", flush=True)
        fits.append({"kind": split.kind, "without": split.name, "figures": fit.model_dump()})
        for row in split.rows:
            gib = float(f"{said.gib[row]:.6g}")
            found[row][split.kind] = {"gib": gib, "oom": bool(said.dies[row])}
    return {"fits": fits, "runs": found}


def main() -> None:
    """Fit and store, or hold out and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    parser.add_argument("--folds", action="store_true", help="cross-validate; store no figures")
    options = parser.parse_args()
    runs = Runs(validate(default_files(), estimator=MemoryAlone()).records)
    everything = np.ones(len(runs.cases), dtype=bool)
    print("shipped ", runs.words(runs.said(shipped()), everything), flush=True)
    if options.folds:
        record = {**circumstances("python -m benchmarks.fit_memory --folds"), **held_out(runs)}
        if not options.dry_run:
            path = new_file("memory-folds")
            lines = ",\n".join(f"  {json.dumps(run)}" for run in record.pop("runs"))
            text = json.dumps(record, indent=1)[:-2] + f',\n "runs": [\n{lines}\n ]\n}}\n'
            path.write_text(text, "utf-8")
            print(f"written: {path.name}")
        return
    fit = runs.fit(everything)
    print("fitted  ", runs.words(runs.said(fit), everything))
    print(fit)
    if not options.dry_run:
        write(fit, len(runs.cases))


if __name__ == "__main__":
    main()
