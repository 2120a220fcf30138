"""The uncertainty of predicted step times: ``python -m benchmarks.fit_uncertainty [--dry-run]``.

Takes the predictions of the newest cross-validation record (benchmarks/cross_validate.py), groups
them by kind of run (GPU architecture, framework family, dense or experts, GPU count), and writes,
per kind, the half-width that holds 80% of the measured times to costmodel/data/uncertainty.json.
The parameters of the held-out fits go to costmodel/data/refits.json: how sure a choice is.
Refuses a record that was made with other parameters than the shipped ones. Coverage is checked with
the bands of the other folds: no run is in the band that it is held against.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy import default_files
from benchmarks.fit_time import cases_of
from benchmarks.results_file import ROOT, newest, parameters_mark
from layoutopt.costmodel.uncertainty import (
    SHARE,
    Cell,
    Kind,
    band_in,
    cell_to_dict,
    kind_of,
    wider,
)
from layoutopt.validation import validate
from layoutopt.validation.cases import Case

TABLE = ROOT / "costmodel" / "data" / "uncertainty.json"
REFITS = ROOT / "costmodel" / "data" / "refits.json"

FEWEST = 10
"""Runs that a kind has at least: of fewer, the 80% rank is nearly the worst one."""

COVERAGE = (0.75, 0.90)
"""Share of held-out runs that 80% bands are to hold."""


@dataclass(frozen=True)
class Residual:
    """One run with its predictions by fits that never saw it."""

    kind: Kind
    source: str
    fold: str
    by_group: float
    """|measured / predicted - 1|; the fit saw no run of this model on this cluster."""
    by_source: float
    """The same; the fit saw no run of this source."""


def residuals_of(cases: Iterable[Case], record: Mapping[str, Any]) -> list[Residual]:
    """The runs of a cross-validation record, with their kinds."""
    kinds = {case.record.id: (kind_of(case.job), case.record.source_file) for case in cases}
    found = []
    for run in record["runs"]:
        if run["id"] in kinds:
            kind, file = kinds[run["id"]]
            off = {name: abs(run["measured_s"] / run[name] - 1) for name in ("group", "source")}
            source = file.removesuffix(".jsonl")
            found.append(Residual(kind, source, run["fold"], off["group"], off["source"]))
    return found


def band_width(values: Sequence[float], share: float = SHARE) -> float:
    """Smallest width that holds ``share`` of new values like these.

    The ceil((n + 1) share)-th smallest of n (split conformal prediction, Lei et al. 2018, section
    2.2): of 9 values the 8th.
    """
    ordered = sorted(values)
    return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * share)) - 1]


def cells_of(residuals: Iterable[Residual]) -> dict[Kind, Cell]:
    """A cell for every kind, narrow and wide, with FEWEST runs or more."""
    groups: dict[Kind, list[Residual]] = defaultdict(list)
    for residual in residuals:
        for kind in wider(residual.kind):
            groups[kind].append(residual)
    return {
        kind: Cell(
            kind=kind,
            step_time_rel=float(f"{band_width([one.by_group for one in group]):.4g}"),
            away_rel=float(f"{band_width([one.by_source for one in group]):.4g}"),
            records=len(group),
            sources=_most_first(one.source for one in group),
        )
        for kind, group in groups.items()
        if len(group) >= FEWEST
    }


def coverage(residuals: Sequence[Residual]) -> dict[str, dict[str, float]]:
    """Share of runs inside the bands made of the other folds: all, by architecture, by source."""
    inside: dict[str, list[bool]] = defaultdict(list)
    for fold in sorted({one.fold for one in residuals}):
        cells = cells_of(one for one in residuals if one.fold != fold)
        for one in residuals:
            if one.fold != fold:
                continue
            band = band_in(cells, one.kind)
            holds = band.step_time_rel is not None and one.by_group <= band.step_time_rel
            place = "of its very kind" if band.comparable else "of a wider kind"
            for name in ("all", place, f"{one.kind.architecture}", one.source):
                inside[name].append(holds)
    return {
        name: {"runs": len(found), "inside": round(sum(found) / len(found), 4)}
        for name, found in inside.items()
    }


def _most_first(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in Counter(names).most_common())


def main() -> None:
    """Make the table from the newest cross-validation, print its coverage and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    parser.add_argument(
        "--stale", action="store_true", help="take a record of other parameters than the shipped"
    )
    options = parser.parse_args()
    record = newest("cross-validation")
    if record is None:
        raise SystemExit("no cross-validation record: run python -m benchmarks.cross_validate")
    if record["parameters"] != parameters_mark() and not options.stale:
        raise SystemExit(
            f"{record['file']} was made with parameters {record['parameters']}, but "
            f"{parameters_mark()} are shipped: run python -m benchmarks.cross_validate"
        )
    cases, _ = cases_of(validate(default_files()).records)
    residuals = residuals_of(cases, record)
    cells, held = cells_of(residuals), coverage(residuals)
    for name, row in held.items():
        print(f"{name:<24}{row['runs']:>6} runs, {row['inside']:.1%} inside")
    for kind, cell in cells.items():
        widths = f"{cell.step_time_rel:>7.1%} {cell.away_rel:>7.1%}"
        print(f"{kind.words:<64}{cell.records:>6}{widths}")
    low, high = COVERAGE
    print(f"coverage {'within' if low <= held['all']['inside'] <= high else 'OUTSIDE'} {COVERAGE}")
    if not options.dry_run:
        table = {
            "by": "python -m benchmarks.fit_uncertainty",
            "on": f"benchmarks/results/{record['file']}, {len(residuals)} runs",
            "share": SHARE,
            "coverage": held,
            "cells": [cell_to_dict(cell) for cell in cells.values()],
        }
        TABLE.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
        fits = [{"without": fit["without"], "figures": fit["figures"]} for fit in record["fits"]]
        rows = ",\n".join(f"  {json.dumps(fit)}" for fit in fits)
        head = {"by": table["by"], "on": f"benchmarks/results/{record['file']}"}
        REFITS.write_text(f'{json.dumps(head)[:-1]},\n "fits": [\n{rows}\n ]}}\n', "utf-8")
        print(f"written: {TABLE.relative_to(ROOT)}, {REFITS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
