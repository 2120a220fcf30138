"""Rows of a sweep as curves: columns that vary name them, columns that do not are the title."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layoutopt.errors import InputError
from layoutopt.sweep.columns import ANSWER, QUESTION
from layoutopt.sweep.condition import Condition
from layoutopt.sweep.store import EXPORTED, Store
from layoutopt.units import format_count

Row = Mapping[str, Any]

_NAMING = {
    "model": "{}",
    "gpu": "{}",
    "cluster": "{}",
    "seq_len_tokens": "{:,} tokens a sequence",
    "precision": "{}",
    "framework": "{}",
    "objective": "least {}",
    "scaling": "{} scaling",
    "run_tokens": "{} tokens in all",
    "limits": "{}",
    "deadline_s": "within {:,.0f} s",
    "budget_usd": "within ${:,.0f}",
    "fix": "{}",
    "global_batch_sequences": "batch {:,}",
}
"""Columns of the question that tell curves apart, and how they read."""
_NOT_IN_TITLE = ("cluster", "objective", "framework")
_IN_COLUMNS = (
    "model", "gpu", "cluster", "gpus", "seq_len", "global_batch", "tokens", "precision",
    "framework", "objective", "limit", "deadline", "budget", "fix",
)  # fmt: skip
"""Options of the spec that a column of the question shows; the others stand in ``asked`` alone."""
COLUMNS = ("asked", "status", "reason", "scaling", *QUESTION, *ANSWER)


@dataclass(frozen=True)
class Series:
    """One curve: rows that differ in the number of GPUs (and the batch that follows it)."""

    names: tuple[str, ...]
    """What tells it from the others, in words; empty where there is one curve."""
    rows: tuple[Row, ...]
    """With a layout, by GPUs."""
    misses: tuple[Row, ...]
    """Without one, by GPUs."""

    @property
    def label(self) -> str:
        """The names as one line."""
        return ", ".join(self.names)


@dataclass(frozen=True)
class Sweep:
    """What a picture shows."""

    title: str
    series: tuple[Series, ...]

    @property
    def rows(self) -> list[Row]:
        """All rows with a layout."""
        return [row for one in self.series for row in one.rows]


def read_sweep(store: Store, condition: Condition | None = None) -> Sweep:
    """The present sweep of a store; raises InputError where there is nothing to show."""
    names = [name for name in COLUMNS if name in EXPORTED]
    rows = [dict(zip(names, row, strict=True)) for row in store.rows(condition, names)]
    return sweep_of(rows)


def sweep_of(rows: Sequence[Row]) -> Sweep:
    """Rows as curves.

    Raises InputError where no row has a layout.
    """
    if not any(row["layout"] for row in rows):
        what = "no row has a layout" if rows else "there are no rows"
        raise InputError(f"nothing to show: {what} (of this filter)", field="results")
    rows, naming = _with_asked(rows)
    varying = _telling_apart(rows, naming)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in varying), []).append(row)
    series = tuple(
        _series([_words(naming[n], v) for n, v in zip(varying, key, strict=True) if v], mine)
        for key, mine in groups.items()
    )
    return Sweep(", ".join(_common(rows, naming)), series)


def _with_asked(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    """Rows with the options that have no column of their own, and how all of them read."""
    found: list[Row] = []
    naming = dict(_NAMING)
    for row in rows:
        asked = json.loads(row.get("asked") or "{}")
        more = {
            name: value
            for name, value in asked.items()
            if name not in _IN_COLUMNS and not name.startswith("fix.")
        }
        naming |= {name: f"{name} {{}}" for name in more}
        found.append({**row, **more})
    return [{**dict.fromkeys(naming), **row} for row in found], naming


def _common(rows: Sequence[Row], naming: Mapping[str, str]) -> list[str]:
    """What all rows have in common, in words."""
    found = {name: _values(rows, name) for name in naming if name not in _NOT_IN_TITLE}
    return [
        _words(naming[name], value)
        for name, values in found.items()
        if len(values) == 1 and (value := next(iter(values))) is not None
    ]


def _words(pattern: str, value: Any) -> str:
    return pattern.format(format_count(value) if pattern is _NAMING["run_tokens"] else value)


def _telling_apart(rows: Sequence[Row], naming: Mapping[str, str]) -> list[str]:
    """Columns that vary by themselves: not those that follow from the ones before, or from gpus."""
    answered = [row for row in rows if row["status"] not in ("refused", "failed")]
    kept: list[str] = []
    for name in naming:
        known = [*kept, "gpus"] if name == "global_batch_sequences" else kept
        if not _follows(answered, name, known):
            kept.append(name)
    return kept


def _series(names: list[str], rows: list[Row]) -> Series:
    ordered = sorted(rows, key=lambda row: row["gpus"] or 0)
    return Series(
        tuple(names),
        tuple(row for row in ordered if row["layout"]),
        tuple(row for row in ordered if not row["layout"] and row["gpus"]),
    )


def _values(rows: Sequence[Row], name: str) -> dict[Any, None]:
    """The different values of a column among the rows that were answered, in their order."""
    return dict.fromkeys(row[name] for row in rows if row["status"] not in ("refused", "failed"))


def _follows(rows: Sequence[Row], name: str, leaders: Sequence[str]) -> bool:
    """Whether ``name`` is the same wherever all of ``leaders`` are."""
    found: dict[tuple[Any, ...], Any] = {}
    return all(
        found.setdefault(tuple(row[leader] for leader in leaders), row[name]) == row[name]
        for row in rows
    )
