"""Errors on runs that the fit never saw: ``python -m benchmarks.cross_validate``.

Two questions. What is a fit worth for a source it never saw (each file of records held out in
turn)? And for a model on a cluster that it never saw (5 folds of groups of equal model and cluster:
rows of one sweep never stand on both sides)? Priors, bounds, loss and weights are those of
benchmarks/fit_time.py; each fit starts at the shipped values and forgets the held-out rows.

A fit from scratch takes minutes, and there are sixteen: they share one matrix of derivatives,
taken at the shipped values, and go to their own minimum by chord steps, which price every training
row anew with the parameters reached, and take the derivatives of what moved far anew
(chords.py; ``--check SOURCE`` compares one with an ordinary fit). Errors
and every single prediction are written to benchmarks/results/DATE_cross-validation.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmarks.accuracy import default_files
from benchmarks.chords import STEPS, Chords, Vector
from benchmarks.fit_time import (
    Fit,
    Parameter,
    cases_of,
    current,
    parameters,
    weights_of,
)
from benchmarks.headline import Figure, headline
from benchmarks.results_file import circumstances, new_file
from layoutopt.validation import Scored, validate
from layoutopt.validation.cases import Case

FOLDS = 5


@dataclass(frozen=True)
class Split:
    """Rows that one fit does not see."""

    kind: str
    """"source" or "group"."""
    name: str
    rows: tuple[int, ...]


def group_key(case: Case) -> str:
    """A model on a cluster: runs that share it never stand on both sides of a split."""
    model = case.job.model.model_dump_json(exclude={"name", "source"})
    return f"{model} {case.job.cluster.gpu.name} {case.job.cluster.levels}"


def source_splits(cases: Sequence[Case]) -> list[Split]:
    """Each source file held out in turn."""
    rows: dict[str, list[int]] = {}
    for row, case in enumerate(cases):
        rows.setdefault(case.record.source_file, []).append(row)
    return [Split("source", name, tuple(found)) for name, found in rows.items()]


def group_splits(cases: Sequence[Case], folds: int = FOLDS) -> list[Split]:
    """``folds`` sets of whole groups, about equally large: the largest group first, each into the
    set that holds fewest rows."""
    groups: dict[str, list[int]] = {}
    for row, case in enumerate(cases):
        groups.setdefault(group_key(case), []).append(row)
    held: list[list[int]] = [[] for _ in range(folds)]
    for key in sorted(groups, key=lambda key: (-len(groups[key]), key)):
        min(held, key=len).extend(groups[key])
    return [
        Split("group", f"fold {number}", tuple(sorted(rows)))
        for number, rows in enumerate(held, start=1)
        if rows
    ]


class Refit:
    """Fits of subsets of the runs, with one matrix of derivatives for all to start with."""

    def __init__(self, cases: Sequence[Case], measured: Vector, fitted: Sequence[Parameter]):
        self.cases = cases
        self.fit = Fit(cases, measured, fitted)
        self.start = current(fitted)
        self.slopes = self.fit.slopes(self.start)

    def without(self, held: set[int], steps: int = STEPS) -> Vector:
        """Parameters fitted to every run but the ``held`` ones."""
        kept = np.array([row for row in range(len(self.cases)) if row not in held])
        weights = weights_of([self.cases[row] for row in kept])
        return Chords(self.fit, kept, weights).least(self.start, self.slopes, steps)


_SHARED: list[Refit] = []
"""What every process of a pool fits with."""


def _held_out(asked: tuple[Split, int]) -> tuple[Vector, Vector]:
    """A fit that forgets a split's rows, and the seconds that it predicts for their batches."""
    (split, steps), refit = asked, _SHARED[-1]
    rows = set(split.rows)
    vector = refit.without(rows, steps)
    touched = [batch for batch in refit.fit.batches if rows.intersection(batch.rows.tolist())]
    return vector, refit.fit.predicted(vector, touched)


def held_out_seconds(
    cases: Sequence[Case], measured: Vector, splits: Sequence[Split], steps: int
) -> tuple[dict[str, Vector], list[dict[str, object]]]:
    """Seconds that fits which never saw a row predict for it, by kind of split; and the fits."""
    fitted = parameters()
    refit = Refit(cases, measured, fitted)
    found = {kind: np.full(len(cases), np.nan) for kind in ("source", "group")}
    fits: list[dict[str, object]] = []
    pool = multiprocessing.get_context("fork").Pool(
        min(len(splits), os.cpu_count() or 1), _SHARED.append, (refit,)
    )
    with pool:
        answers = pool.imap(_held_out, [(split, steps) for split in splits])
        for split, (vector, seconds) in zip(splits, answers, strict=True):
            figures = {p.key: float(f"{v:.4g}") for p, v in zip(fitted, vector, strict=True)}
            fits.append({"kind": split.kind, "without": split.name, "figures": figures})
            held = list(split.rows)
            found[split.kind][held] = seconds[held]
            errors = np.abs(seconds[held] / measured[held] - 1)
            print(
                f"{split.kind:<8}{split.name:<24}{len(held):>6} runs: "
                f"median {np.median(errors):.1%}, mean {errors.mean():.1%}",
                flush=True,
            )
    return found, fits


def with_predictions(entries: Sequence[Scored], seconds: dict[str, float]) -> list[Scored]:
    """``entries`` with other predicted step times, by record id; those without one lose theirs."""
    return [
        replace(entry, predicted_s=seconds.get(entry.record.id))
        if entry.predicted_s is not None
        else entry
        for entry in entries
    ]


def figures_json(figures: Sequence[Figure]) -> list[dict[str, object]]:
    """Figures of step time as JSON; memory does not depend on what was fitted."""
    return [asdict(figure) for figure in figures if "fits" not in figure.name]


def check_against_a_fit(name: str) -> None:
    """Print the errors of one held-out source by these steps and by a fit of two matrices."""
    cases, measured = cases_of(validate(default_files()).records)
    split = next(s for s in source_splits(cases) if s.name.removesuffix(".jsonl") == name)
    held_out_seconds(cases, measured, [split], STEPS)
    fitted, held = parameters(), list(split.rows)
    kept = [row for row in range(len(cases)) if row not in set(split.rows)]
    fit = Fit([cases[row] for row in kept], measured[kept], fitted)
    vector = fit.solve(current(fitted))
    seconds = Fit([cases[row] for row in held], measured[held], fitted).predicted(vector)
    errors = np.abs(seconds / measured[held] - 1)
    print(f"an ordinary fit: median {np.median(errors):.1%}, mean {errors.mean():.1%}")


def main() -> None:
    """Hold out sources and folds in turn, print the errors and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    parser.add_argument("--steps", type=int, default=STEPS, help="chord steps a fit")
    parser.add_argument("--check", metavar="SOURCE", help="compare with an ordinary fit, then stop")
    options = parser.parse_args()
    if options.check:
        check_against_a_fit(options.check)
        return
    entries = validate(default_files()).records
    cases, measured = cases_of(entries)
    splits = [*source_splits(cases), *group_splits(cases)]
    seconds, fits = held_out_seconds(cases, measured, splits, options.steps)
    ids = [case.record.id for case in cases]
    folds = {
        ids[row]: split.name for split in splits if split.kind == "group" for row in split.rows
    }
    record = circumstances("python -m benchmarks.cross_validate")
    for kind, values in seconds.items():
        predicted = dict(zip(ids, values.tolist(), strict=True))
        record[f"by_{kind}"] = figures_json(headline(with_predictions(entries, predicted)))
    record["fits"] = fits
    record["runs"] = [
        {
            "id": name,
            "fold": folds[name],
            "measured_s": float(f"{measured[row]:.6g}"),
            **{kind: float(f"{values[row]:.6g}") for kind, values in seconds.items()},
        }
        for row, name in enumerate(ids)
    ]
    if not options.dry_run:
        path = new_file("cross-validation")
        head = {key: value for key, value in record.items() if key != "runs"}
        runs = ",\n".join(f"  {json.dumps(run)}" for run in record["runs"])
        text = json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{runs}\n ]\n}}\n'
        path.write_text(text, "utf-8")
        print(f"written: {path.name}")


if __name__ == "__main__":
    main()
