"""Accuracy by source, beside the napkin: ``python -m benchmarks.accuracy [RECORDS.jsonl ...]``.

Prints one row per file of records, then all of them, then the dense ones and the mixtures of
experts alone, then the figures that the project is judged by. Single-node runs of tiny models
(measured/extra) are never averaged with the rest: name that file to see it.

``--markdown`` also writes docs/accuracy.md, its pictures and benchmarks/ledger.json, with the
figures of the newest cross-validation (benchmarks/cross_validate.py) beside those of the fit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.headline import has_experts, headline, is_dense
from benchmarks.napkin import napkin_step_s
from layoutopt.validation import Scored, Validation, validate
from layoutopt.validation.summary import Errors, Summary, errors, summarise

MEASURED = Path(__file__).parent / "measured"

HEADINGS = (
    ("source", 22),
    ("records", 8),
    ("scored", 7),
    ("n time", 7),
    ("mean", 7),
    ("median", 7),
    ("p90", 7),
    ("bias", 7),
    ("napkin mean", 12),
    ("median", 7),
    ("n mem", 6),
    ("mean", 7),
    ("bias", 7),
    ("n fit", 6),
    ("right", 7),
    ("missed", 7),
    ("refused", 8),
    ("sweeps", 7),
    ("regret", 7),
    ("rank", 6),
)


def default_files() -> list[Path]:
    """The shipped records, measured/extra left out."""
    return sorted(MEASURED.glob("*.jsonl"))


def napkin_errors(entries: Sequence[Scored]) -> Errors:
    """Errors of the napkin on the step times that the summaries count."""
    return errors(
        [
            napkin_step_s(entry.case.job) / entry.measured_s
            for entry in entries
            if entry.case and entry.measured_s and entry.counts("time")
        ]
    )


def table(validation: Validation) -> list[str]:
    """The table's lines."""
    entries = validation.records
    lines = ["".join(name.rjust(width) for name, width in HEADINGS)]
    for row in validation.by_source_file:
        group = [e for e in entries if e.record.source_file == row.name]
        lines.append(_line(row, napkin_errors(group)))
    lines.append(_line(validation.summary, napkin_errors(entries)))
    dense = [entry for entry in entries if is_dense(entry)]
    lines.append(_line(summarise("dense models", dense, []), napkin_errors(dense)))
    experts = [entry for entry in entries if has_experts(entry)]
    if experts:
        lines.append(_line(summarise("with experts", experts, []), napkin_errors(experts)))
    return lines


def figure_lines(entries: Sequence[Scored]) -> list[str]:
    """The headline figures with their targets; those without records are left out."""
    lines = []
    for figure in headline(entries):
        if figure.value is not None:
            is_rank = "Spearman" in figure.name
            value = f"{figure.value:.2f}" if is_rank else f"{figure.value:.1%}"
            word = {True: "reached", False: "NOT reached", None: ""}[figure.reached]
            lines.append(f"{figure.name:<64}{figure.n:>6}{value:>9}  {word}".rstrip())
    return lines


def _line(row: Summary, napkin: Errors) -> str:
    cells = (
        row.name.removesuffix(".jsonl"),
        str(row.records),
        str(row.scored),
        str(row.time.n),
        _percent(row.time.mape),
        _percent(row.time.median),
        _percent(row.time.p90),
        _percent(row.time.bias),
        _percent(napkin.mape),
        _percent(napkin.median),
        str(row.memory.n),
        _percent(row.memory.mape),
        _percent(row.memory.bias),
        str(row.fit.n),
        _percent(row.fit.accuracy),
        str(row.fit.oom_missed),
        str(row.fit.fits_refused),
        str(len(row.sweeps)),
        _percent(row.regret),
        "-" if row.spearman is None else f"{row.spearman:.2f}",
    )
    return "".join(cell.rjust(width) for cell, (_, width) in zip(cells, HEADINGS, strict=True))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def main(arguments: Sequence[str]) -> None:
    """Print the tables for the files named, or for the shipped ones; write the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--markdown", action="store_true", help="write docs/accuracy.md, too")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    validation = validate(options.records or default_files())
    print("\n".join([*table(validation), "", *figure_lines(validation.records)]))
    print(f"{len(validation.records)} records in {time.perf_counter() - start:.1f} s")
    if options.markdown:
        if options.records:
            parser.error("--markdown is made of the shipped records: name no files")
        # Late: the page needs scipy and matplotlib, the table does not.
        from benchmarks.ledger import PAGE, write
        from benchmarks.plots import draw

        pictures = draw(validation.records, PAGE.parent)
        write(validation.records, [path.name for path in pictures])
        print(f"written: docs/{PAGE.name}, {', '.join(path.name for path in pictures)}")


if __name__ == "__main__":
    main(sys.argv[1:])
