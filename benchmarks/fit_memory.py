"""Looks for better memory constants: ``python -m benchmarks.fit_memory``.

The constants of costmodel/memory.py (allocator reserve, context, bytes of logits and of norms) are
few and whole runs hang on them by yes and no, so they are searched coordinate by coordinate: the
mean of the memory error (its logarithm, cut at 0.5) plus the share of fits judged wrong, runs that
died and runs that ran weighing the same. The best values are printed, to be put into memory.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.accuracy import default_files
from layoutopt.costmodel import activations, memory
from layoutopt.costmodel.estimate import estimate, memory_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import Estimate
from layoutopt.units import GIB
from layoutopt.validation import Scored, validate

GRID: dict[str, tuple[float, ...]] = {
    "RESERVE_PER_MILLE": (20, 30, 40, 50, 60, 75, 90),
    "CONTEXT_BYTES": tuple(int(gib * GIB) for gib in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)),
    "LOGIT_BYTES": (10.0, 12.0, 14.0, 16.0, 18.0, 20.0),
    "FUSED_LOGIT_BYTES": (4.0, 6.0, 8.0, 10.0),
    "UNFUSED_NORM_BYTES": (6.0, 8.0, 10.0, 12.0, 14.0, 18.0),
}
"""Values tried for each constant of costmodel.memory and costmodel.activations."""


@dataclass(frozen=True)
class Figures:
    """How good a set of constants is."""

    memory_error: float
    missed: int
    """Runs that died and are said to fit."""
    refused: int
    """Runs that ran and are said not to fit."""
    loss: float


def figures(entries: Sequence[Scored]) -> Figures:
    """The loss of validated records."""
    ratios = [e.memory_ratio for e in entries if e.counts("memory") and e.memory_ratio]
    errors = np.minimum(np.abs(np.log(np.array(ratios))), 0.5)
    fits = [(bool(e.measured_oom), bool(e.predicted_oom)) for e in entries if e.counts("fit")]
    died = [said for was, said in fits if was]
    ran = [said for was, said in fits if not was]
    missed, refused = died.count(False), ran.count(True)
    wrong = missed / max(1, len(died)) + refused / max(1, len(ran))
    return Figures(float(errors.mean()), missed, refused, float(errors.mean() + wrong / 2))


class MemoryAlone:
    """Prices memory afresh; everything else is of the first run priced."""

    def __init__(self) -> None:
        self.rest: Estimate | None = None

    def __call__(self, job: Job, layout: Layout) -> Estimate:
        """An estimate of which only ``memory`` may be read."""
        if self.rest is None:
            self.rest = estimate(job, layout)
        return replace(self.rest, layout=layout, memory=memory_of(job, layout))


def main() -> None:
    """Descend coordinate by coordinate and print each improvement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    rounds: int = parser.parse_args().rounds
    files = default_files()
    price = MemoryAlone()
    best = figures(validate(files, estimator=price).records)
    print("start", best)
    for _ in range(rounds):
        for name, values in GRID.items():
            module = memory if hasattr(memory, name) else activations
            kept = getattr(module, name)
            for value in values:
                setattr(module, name, value)
                found = figures(validate(files, estimator=price).records)
                if found.loss < best.loss - 1e-6:
                    best, kept = found, value
                    print(name, value, found, flush=True)
            setattr(module, name, kept)
    print({name: vars(memory).get(name, vars(activations).get(name)) for name in GRID})


if __name__ == "__main__":
    main()
