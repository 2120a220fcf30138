"""Rows of a sweep as curves: columns that vary name them, columns that do not are the title."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layoutopt.errors import InputError
from layoutopt.sweep.columns import ANSWER, QUESTION
from layoutopt.sweep.condition import Condition
from layoutopt.sweep.store import EXPORTED, Store

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
    "run_tokens": "{:,} tokens in all",
    "limits": "{}",
    "deadline_s": "within {:,.0f} s",
    "budget_usd": "within ${:,.0f}",
    "fix": "{}",
}
"""Columns of the question that tell curves apart, and how they read."""
_NOT_IN_TITLE = ("cluster", "objective", "run_tokens")
COLUMNS = ("status", "reason", "scaling", *QUESTION, *ANSWER)


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


def sweep_of(rows: Sequence[Row], apart: Iterable[str] = ()) -> Sweep:
    """Rows as curves; ``apart`` names columns that are to tell curves apart besides the usual.

    Raises InputError where no row has a layout.
    """
    if not any(row["layout"] for row in rows):
        what = "no row has a layout" if rows else "there are no rows"
        raise InputError(f"nothing to show: {what} (of this filter)", field="results")
    naming = {**_NAMING, **dict.fromkeys(apart, "{}")}
    values = {name: _values(rows, name) for name in naming}
    varying = [name for name, found in values.items() if len(found) > 1]
    if "gpu" in varying and _follows(rows, "cluster", "gpu"):
        varying = [name for name in varying if name != "cluster"]
    if not varying and len(_values(rows, "global_batch_sequences")) > 1:
        varying = _batch_if_it_varies_alone(rows)
    naming["global_batch_sequences"] = "batch {:,}"
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in varying), []).append(row)
    series = tuple(
        _series([naming[n].format(v) for n, v in zip(varying, key, strict=True) if v], mine)
        for key, mine in groups.items()
    )
    common = {name: next(iter(found)) for name, found in values.items() if len(found) == 1}
    words = [
        naming[name].format(value)
        for name, value in common.items()
        if value is not None and name not in _NOT_IN_TITLE
    ]
    return Sweep(", ".join(words), series)


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


def _follows(rows: Sequence[Row], name: str, leader: str) -> bool:
    """Whether ``name`` is the same wherever ``leader`` is."""
    found: dict[Any, set[Any]] = {}
    for row in rows:
        found.setdefault(row[leader], set()).add(row[name])
    return all(len(values) == 1 for values in found.values())


def _batch_if_it_varies_alone(rows: Sequence[Row]) -> list[str]:
    """The batch tells curves apart where the same GPU count has several."""
    counts = [row["gpus"] for row in rows]
    return ["global_batch_sequences"] if len(set(counts)) < len(counts) else []
