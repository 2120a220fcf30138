"""A sweep as one HTML file: question, sortable answers, plots, assumptions, accuracy.

Nothing is loaded from anywhere: style, script and pictures stand in the file, and its own content
security policy forbids the rest.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

import yaml

from layoutopt.costmodel.assumptions import ALL
from layoutopt.errors import InputError
from layoutopt.plots.draw import KINDS, draw
from layoutopt.plots.series import COLUMNS, Row, Sweep, sweep_of
from layoutopt.report.sweep import days_text, money_text, spec_lines
from layoutopt.sweep.condition import Condition
from layoutopt.sweep.spec import Spec, read_spec
from layoutopt.sweep.store import Store
from layoutopt.units import format_seconds

MOST_ROWS = 5_000
"""Rows of the table; a browser sorts so many in a blink. The exports have all."""

_TITLES = {
    "scaling": "Days against GPUs",
    "mfu": "MFU against GPUs",
    "pareto": "Cost against days",
    "memory": "Memory of the worst stage",
    "breakdown": "Where a step goes",
    "heatmap": "Days by tp and pp",
}
_FIGURES = {
    "status": None,
    "days": "wall_days",
    "cost": "cost_usd",
    "MFU": "mfu",
    "step": "step_time_s",
    "± step": "step_time_uncertainty_rel",
    "GiB": "peak_memory_gib",
    "layout": None,
    "leans on": None,
}
"""Headings of the table after the axes, with the column that a number comes from."""


def report_html(store: Store, condition: Condition | None = None) -> str:
    """The whole page for the present sweep of ``store``, or the rows that pass ``condition``."""
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in store.rows(condition, COLUMNS)]
    about = store.about()
    spec = read_spec(yaml.safe_load(about["spec"]) or {})
    ended = ", ".join(f"{n:,} {status}" for status, n in _counted(rows, "status"))
    shown = rows[:MOST_ROWS]
    return Template(_part("page.html")).substitute(
        title=f"Sweep of {len(rows):,} questions",
        summary=escape(f"{ended}."),
        question="\n".join(_pair(*line) for line in spec_lines(spec, int(about["points"]), 0)),
        spec=escape(about["spec"]),
        rows_shown=f"{len(shown):,} rows",
        head="".join(_heading(name) for name in (*spec.axes, *_FIGURES)),
        body="\n".join(_row(row, spec) for row in shown),
        cut=_cut(len(rows)),
        plots="\n".join(_plots(rows)),
        assumptions="\n".join(_assumptions(rows)),
        accuracy="\n".join(_accuracy(rows)),
        version=escape(about["model_version"]),
        style=_part("page.css"),
        script=_part("page.js"),
    )


def _part(name: str) -> str:
    return resources.files("layoutopt.plots").joinpath("page", name).read_text("utf-8")


def _counted(rows: Sequence[Row], column: str) -> list[tuple[Any, int]]:
    return Counter(row[column] for row in rows if row[column]).most_common()


def _pair(name: str, value: str) -> str:
    return f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'


def _heading(name: str) -> str:
    return f'<th scope="col"><button type="button">{escape(name)}</button></th>'


def _row(row: Row, spec: Spec) -> str:
    asked = json.loads(row["asked"])
    cells = [_asked_cell(asked.get(name)) for name in spec.axes]
    has = row["layout"] is not None
    cells.append(f'<td class="status">{escape(row["status"])}</td>')
    cells += [_number(row[column], _text(column, row[column])) for column in _columns()]
    cells.append(f'<td class="layout">{_layout(row)}</td>')
    cells.append(f"<td>{_links(row['assumptions'])}</td>")
    kind = "" if has else ' class="none"'
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _columns() -> list[str]:
    return [column for column in _FIGURES.values() if column is not None]


def _layout(row: Row) -> str:
    return escape((row["layout"] or row["reason"] or "").replace(",", ", "))


def _asked_cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, f"{value:,}")
    return f"<td>{escape(str(value if value is not None else ''))}</td>"


def _number(value: float | None, text: str) -> str:
    raw = "" if value is None else repr(value)
    return f'<td class="number" data-value="{raw}">{escape(text)}</td>'


def _text(column: str, value: float | None) -> str:
    if value is None:
        return ""
    if column == "wall_days":
        return days_text(value)
    if column == "cost_usd":
        return money_text(value)
    if column == "step_time_s":
        return format_seconds(value)
    return f"{value:.1f}" if column.endswith("_gib") else f"{value:.1%}"


def _links(assumptions: str | None) -> str:
    names = (assumptions or "").split(",")
    return " ".join(f'<a href="#{name}">{name}</a>' for name in names if name in ALL)


def _cut(rows: int) -> str:
    if rows <= MOST_ROWS:
        return ""
    return (
        f'<p class="note">The first {MOST_ROWS:,} of {rows:,} rows; '
        "<code>layoutopt report DIR --out rows.parquet</code> writes all.</p>"
    )


def _plots(rows: Sequence[Row]) -> Iterable[str]:
    """Each kind that this sweep can show, and for the others why not."""
    try:
        sweep: Sweep = sweep_of(rows)
    except InputError as error:
        return [f'<p class="note">{escape(error.message)}</p>']
    found = []
    for kind in KINDS:
        title = escape(_TITLES[kind])
        try:
            picture = base64.b64encode(draw(sweep, kind, "svg")).decode("ascii")
        except InputError as error:
            found.append(f'<p class="note">{title}: {escape(error.message)}.</p>')
            continue
        found.append(
            f'<figure id="plot-{kind}"><figcaption>{title}</figcaption>'
            f'<img alt="{title}" src="data:image/svg+xml;base64,{picture}"></figure>'
        )
    return found


def _assumptions(rows: Sequence[Row]) -> Iterable[str]:
    cited = {name for row in rows for name in (row["assumptions"] or "").split(",") if name}
    for name, one in ALL.items():
        if name in cited:
            yield (
                f'<dt id="{name}">{name}. {escape(one.text)}</dt>'
                f"<dd>Breaks: {escape(one.breaks)}</dd>"
                f"<dd>Checked by: {escape(one.checked_by)}</dd>"
            )


def _accuracy(rows: Sequence[Row]) -> Iterable[str]:
    """Each basis, how many rows stand on it, and its band."""
    bands = {row["uncertainty_basis"]: row["step_time_uncertainty_rel"] for row in rows}
    for basis, number in _counted(rows, "uncertainty_basis"):
        band = "" if bands[basis] is None else f"±{bands[basis]:.0%}"
        yield (
            f'<tr><td class="number">{number:,}</td><td class="number">{band}</td>'
            f"<td>{escape(basis)}</td></tr>"
        )
