"""Predictions against measured runs: what ``layoutopt validate`` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutopt.validation.cases import Calibration, Case, Incomplete, case_of
from layoutopt.validation.records import Record, read_records
from layoutopt.validation.score import Estimator, Scored, score
from layoutopt.validation.summary import Summary, summarise, summarise_by
from layoutopt.validation.sweeps import Sweep, sweeps

__all__ = [
    "Calibration",
    "Case",
    "Estimator",
    "Incomplete",
    "Record",
    "Scored",
    "Summary",
    "Sweep",
    "Validation",
    "case_of",
    "read_records",
    "score",
    "validate",
]

SCHEMA = "layoutopt.validation/1"


@dataclass(frozen=True)
class Validation:
    """Every record with its prediction, and the accuracy tables."""

    records: tuple[Scored, ...]
    summary: Summary
    by_source_file: tuple[Summary, ...]
    by_framework: tuple[Summary, ...]
    by_software: tuple[Summary, ...]
    """By the software profile that predicted them: the frameworks, versions taken together."""
    by_gpu: tuple[Summary, ...]

    exit_code = 0
    """Validation has an answer whatever single records say."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the contract, layoutopt.validation/1."""
        return {
            "schema": SCHEMA,
            "records": [entry.to_dict() for entry in self.records],
            "summary": self.summary.to_dict()
            | {
                "by_source_file": _by_name(self.by_source_file),
                "by_framework": _by_name(self.by_framework),
                "by_software": _by_name(self.by_software),
                "by_gpu": _by_name(self.by_gpu),
            },
        }

    def table_rows(self) -> list[Summary]:
        """Rows of the table for people: a source file each, then all of them."""
        return [*self.by_source_file, self.summary]


def validate(
    paths: Sequence[str | Path],
    calibration: Calibration | None = None,
    estimator: Estimator | None = None,
) -> Validation:
    """Predict every record of ``paths`` and compare with what was measured.

    ``calibration`` replaces the shipped figures of each record's job; ``estimator`` is the cost
    model (None: layoutopt's own). Raises InputError, with file and line, for what is not a record.
    """
    records = read_records(paths)
    entries = score(records, estimator or _cost_model(), calibration)
    return tabulate(entries)


def tabulate(entries: Sequence[Scored]) -> Validation:
    """The accuracy tables of scored records."""
    found = sweeps(entries)
    return Validation(
        records=tuple(entries),
        summary=summarise("all", entries, found),
        by_source_file=tuple(
            summarise_by(entries, found, lambda e: e.record.source_file, lambda s: s.source_file)
        ),
        by_framework=tuple(
            summarise_by(entries, found, lambda e: e.record.framework, lambda s: s.framework)
        ),
        by_software=tuple(summarise_by(entries, found, _software, lambda s: s.software)),
        by_gpu=tuple(summarise_by(entries, found, _gpu, lambda s: s.gpu)),
    )


def _software(entry: Scored) -> str:
    return entry.case.job.software.name if entry.case else "incomplete records"


def _gpu(entry: Scored) -> str:
    if entry.case:
        return entry.case.job.cluster.gpu.name
    return str(entry.record.hardware.get("gpu") or "not given")


def _cost_model() -> Estimator:
    # Late: reading records and their tables does not need the cost model.
    from layoutopt.costmodel.estimate import estimate

    return estimate


def _by_name(rows: Sequence[Summary]) -> dict[str, dict[str, Any]]:
    return {row.name: row.to_dict() for row in rows}
