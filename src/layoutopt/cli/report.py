"""layoutopt report"""

from __future__ import annotations

import os
from pathlib import Path

import click

from layoutopt.cli.options import text_option
from layoutopt.cli.output import write
from layoutopt.cli.plot import filter_option
from layoutopt.errors import InputError
from layoutopt.inputs.words import choice


@click.command("report", short_help="A sweep as one HTML file, or as rows.")
@click.argument("results", required=False, metavar="DIR")
@text_option("--out", metavar="FILE", help="The report, .html; or rows, .parquet, .csv, .jsonl.")
@filter_option
@text_option("--columns", metavar="SET", help="Columns of rows: own or nemo. [own]")
def command(results: str | None, out: str | None, filter: str | None, columns: str | None) -> int:
    """Writes the sweep in DIR as a page for people or as rows for programs.

    \b
    layoutopt report results/ --out report.html
    layoutopt report results/ --filter "status == 'optimal'" --out rows.parquet
    """
    from layoutopt.sweep.condition import parse
    from layoutopt.sweep.export import COLUMN_SETS, export, writer_of
    from layoutopt.sweep.store import EXPORTED, Store

    if results is None:
        raise InputError("results are missing: name the folder of a sweep", field="results")
    if out is None:
        raise InputError("--out is missing: name the report's file", field="out")
    chosen = choice(columns, "columns", COLUMN_SETS) if columns else "own"
    condition = parse(filter, EXPORTED) if filter else None
    page = Path(out).suffix.lower() in (".html", ".htm")
    if not page:
        writer_of(Path(out))
    elif columns:
        raise InputError("--columns is for rows; the page has its own", field="columns")
    with Store.open(results) as store:
        if page:
            from layoutopt.plots.report import report_html

            _write(Path(out), report_html(store, condition))
            write(f"written: {out}")
        else:
            rows = export(store, out, chosen, condition)
            write(f"{rows:,} rows written to {out}")
    return 0


def _write(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
