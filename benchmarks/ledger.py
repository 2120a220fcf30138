"""docs/accuracy.md and benchmarks/ledger.json, from scored records.

Written by ``python -m benchmarks.accuracy --markdown``. The JSON holds the headline figures, which
a test compares with those of the tree, so that a later change cannot lose them unnoticed.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.cross_validate import with_predictions
from benchmarks.headline import Figure, headline
from benchmarks.ledger_tables import (
    Entries,
    Unseen,
    filled_table,
    llama_table,
    markdown,
    memory_table,
    peer_table,
    percent,
    source_table,
    sweep_table,
    worst_table,
)
from benchmarks.results_file import ROOT, newest, parameters_mark
from layoutopt.validation import Scored

PAGE = ROOT / "docs" / "accuracy.md"
LEDGER = ROOT / "benchmarks" / "ledger.json"
UNCERTAINTY = ROOT / "costmodel" / "data" / "uncertainty.json"

HEAD = """# Accuracy

Written by `python -m benchmarks.accuracy --markdown`; do not edit. Predictions against the
published runs of [benchmarks/measured](../benchmarks/measured/README.md); how a run is scored
stands in [benchmarks/README.md](../benchmarks/README.md). Errors are |predicted / measured - 1|;
bias is the median of predicted / measured - 1. Equal runs differ by 1 to 4%.

*Fitted*: one set of parameters, fitted to these records. *Source unseen*: each source predicted by
a fit that saw nothing of it. *Group unseen*: five folds of groups of equal model and cluster, each
predicted by a fit that saw nothing of the group. *Napkin*: 6 x active parameters x tokens at 40% of
the dense peak, whatever the layout. Memory has eight fitted figures of its own
(benchmarks/fit_memory.py), held out in the same way.
"""


def write(entries: Entries, pictures: Sequence[str]) -> None:
    """The page and the JSON ledger. ``pictures`` are file names beside the page."""
    record = newest("cross-validation")
    PAGE.write_text(page(entries, record, pictures), "utf-8")
    figures = {figure.name: figure.value for figure in headline(entries)}
    ledger = {
        "by": "python -m benchmarks.accuracy --markdown",
        "date": datetime.date.today().isoformat(),
        "parameters": parameters_mark(),
        "figures": {name: _rounded(value) for name, value in figures.items()},
    }
    LEDGER.write_text(json.dumps(ledger, indent=1) + "\n", "utf-8")


def page(entries: Entries, record: dict[str, Any] | None, pictures: Sequence[str]) -> str:
    """The Markdown of docs/accuracy.md; ``record`` is the cross-validation."""
    unseen = unseen_entries(entries, record)
    parts = [
        HEAD,
        _stamp(record),
        "## The figures\n\n" + _headline_table(entries, unseen),
        "## Step time by source\n\n" + source_table(entries, unseen),
        "## Memory by source\n\n" + memory_table(entries),
        "## Ranking: sweeps of one question\n\n" + sweep_table(entries, unseen),
        "## Beside other planners\n\n" + peer_table(entries, unseen),
        "## Llama 3, table 4\n\n" + llama_table(entries),
        "## What was filled in\n\n" + filled_table(entries),
        "## Where it is wrong\n\n" + worst_table(entries),
        "## How sure an answer is\n\n" + _coverage_words(),
        "## Not reached\n\n" + _not_reached(entries, unseen),
    ]
    if pictures:
        parts.append("## Pictures\n\n" + "\n\n".join(f"![{n}]({n})" for n in pictures))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def unseen_entries(entries: Entries, record: dict[str, Any] | None) -> dict[str, list[Scored]]:
    """The entries with the predictions of fits that never saw them, by kind of split."""
    if record is None:
        return {}
    memory = newest("memory-folds") or {"runs": []}
    return {
        kind: with_memory(
            with_predictions(entries, {run["id"]: run[kind] for run in record["runs"]}),
            {run["id"]: run[kind] for run in memory["runs"]},
        )
        for kind in ("source", "group")
    }


def with_memory(entries: Entries, said: Mapping[str, Mapping[str, Any]]) -> list[Scored]:
    """``entries`` with other predicted peaks and deaths, by record id, where there are any."""
    return [
        replace(entry, predicted_gib=other["gib"], predicted_oom=other["oom"])
        if (other := said.get(entry.record.id))
        else entry
        for entry in entries
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _stamp(record: dict[str, Any] | None) -> str:
    today = f"{datetime.date.today()}, parameters {parameters_mark()}"
    if record is None:
        return f"{today}. No cross-validation has been recorded."
    same = record["parameters"] == parameters_mark()
    stale = "" if same else f", made with OTHER parameters ({record['parameters']})"
    return f"{today}; cross-validation: benchmarks/results/{record['file']}{stale}."


def _show(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return "-"
    is_rank = "Spearman" in figure.name
    return f"{figure.value:.2f}" if is_rank else f"{figure.value:.1%}"


def _target(value: float | None, figure: Figure) -> str:
    if value is None:
        return ""
    text = f"{value:g}" if "Spearman" in figure.name else f"{value:.1%}"
    return f"{'at least' if figure.at_least else 'at most'} {text}"


def _mark(reached: bool | None) -> str:
    return "" if reached is None else (" yes" if reached else " **no**")


def _headline_table(entries: Entries, unseen: Unseen) -> str:
    held = {
        kind: {figure.name: figure for figure in headline(rows)} for kind, rows in unseen.items()
    }
    rows = []
    for figure in headline(entries):
        group = held.get("group", {}).get(figure.name)
        source = held.get("source", {}).get(figure.name)
        rows.append(
            (
                figure.name,
                f"{figure.n:,}",
                _show(figure),
                _target(figure.target, figure) + _mark(figure.reached),
                _show(group),
                _target(figure.held_out_target, figure)
                + _mark(group.held_out_reached if group else None),
                _show(source),
            )
        )
    header = ("figure", "n", "fitted", "to reach", "group unseen", "to reach", "source unseen")
    return markdown(header, rows)


def _coverage_words() -> str:
    if not UNCERTAINTY.is_file():
        return "No residual table has been made."
    table = json.loads(UNCERTAINTY.read_text("utf-8"))
    rows = [
        (name, f"{row['runs']:,}", percent(row["inside"]))
        for name, row in table["coverage"].items()
    ]
    words = (
        "Every answer carries an 80% band from the residuals of comparable runs (GPU architecture, "
        "framework family, dense or experts, size), each predicted by a fit that never saw it. "
        f"Made from {table['on']}. Share of runs inside bands that were made without their fold:"
    )
    choice = (
        "Errors that two layouts share cancel, so that a choice can be surer than its seconds: "
        "`solve` prices the layouts that it shows by every held-out fit of the cross-validation, "
        "and says in how many of them its choice stays within 2% of the best."
    )
    return f"{words}\n\n{markdown(('runs', 'n', 'inside'), rows)}\n\n{choice}"


def _not_reached(entries: Entries, unseen: Unseen) -> str:
    groups = {figure.name: figure for figure in headline(unseen.get("group", []))}
    lines = []
    for figure in headline(entries):
        if figure.reached is False:
            goal = _target(figure.target, figure)
            lines.append(f"- {figure.name}: {_show(figure)}, to reach {goal}")
        away = groups.get(figure.name)
        if away and away.held_out_reached is False:
            goal = _target(figure.held_out_target, figure)
            lines.append(f"- {figure.name}, group unseen: {_show(away)}, to reach {goal}")
    return "\n".join(lines) if lines else "Every figure above is reached."
