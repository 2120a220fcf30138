"""Accuracy for people: predictions against measured runs, a row per source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from layoutopt.report.console import render, table

if TYPE_CHECKING:
    from layoutopt.validation import Summary, Validation

_HEADER = ("runs", "scored", "time", "median", "p90", "bias", "memory", "fit", "regret", "rank")
_LEGEND = (
    "\ntime, median, p90: |predicted / measured - 1| of step time, its mean, median and 90th\n"
    "percentile; bias: median of predicted / measured - 1; memory: mean error; fit: share of runs\n"
    "whose out-of-memory was foretold; regret: time lost by taking the layout that the model\n"
    "ranks first; rank: Spearman correlation within sweeps."
)


def validation_table(found: Validation, *, color: bool = False) -> str:
    """By source file, framework and GPU, then all together, then why records were not scored."""
    items: list[Any] = []
    groups: Iterable[tuple[str, Sequence[Summary]]] = (
        ("Source", found.table_rows()),
        ("Framework", found.by_software),
        ("GPU", found.by_gpu),
    )
    for title, rows in groups:
        items += [table([_row(row) for row in rows], (title, *_HEADER), right=range(1, 11)), ""]
    return render([*items, *_unscored(found), _LEGEND], color=color)


def _row(row: Summary) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.records}",
        f"{row.scored}",
        _percent(row.time.mape),
        _percent(row.time.median),
        _percent(row.time.p90),
        _percent(row.time.bias, sign="+"),
        _percent(row.memory.mape),
        _percent(row.fit.accuracy),
        _percent(row.regret),
        "-" if row.spearman is None else f"{row.spearman:.2f}",
    )


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{share:{sign}.1%}"


def _unscored(found: Validation) -> list[Any]:
    reasons: dict[str, int] = {}
    for entry in found.to_dict()["records"]:
        if not entry["scored"]:
            why = entry["why_not"] or "no reason given"
            reasons[why] = reasons.get(why, 0) + 1
    if not reasons:
        return []
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    rows = [(f"{number}", why) for why, number in ranked[:12]]
    rest = sum(number for _, number in ranked[12:])
    rows += [(f"{rest}", "other reasons")] if rest else []
    return [table(rows, ("runs", "why not scored"), right=(0,))]
