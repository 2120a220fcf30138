"""layoutopt plot"""

from __future__ import annotations

from pathlib import Path

import click

from layoutopt.cli.options import text_option
from layoutopt.cli.output import write
from layoutopt.errors import InputError
from layoutopt.inputs.words import choice

filter_option = text_option(
    "--filter", metavar="EXPR", help='Only rows for which it holds: "gpus >= 64 and mfu > 0.4".'
)


@click.command("plot", short_help="Pictures of a sweep.")
@click.argument("results", required=False, metavar="DIR")
@text_option(
    "--kind",
    metavar="KIND",
    help="scaling, mfu, pareto, memory, breakdown or heatmap. [scaling]",
)
@text_option("--out", metavar="FILE", help="The picture: .svg, .png or .pdf.")
@filter_option
def command(results: str | None, kind: str | None, out: str | None, filter: str | None) -> int:
    """Draws the sweep in DIR.

    \b
    layoutopt plot results/ --kind scaling --out scaling.svg
    layoutopt plot results/ --kind pareto --filter "gpu == 'h100-sxm-80gb'" --out pareto.png
    """
    from layoutopt.plots.draw import KINDS, draw
    from layoutopt.plots.series import read_sweep
    from layoutopt.plots.style import format_of
    from layoutopt.sweep.condition import parse
    from layoutopt.sweep.store import EXPORTED, Store

    if results is None:
        raise InputError("results are missing: name the folder of a sweep", field="results")
    if out is None:
        raise InputError("--out is missing: name the picture's file", field="out")
    chosen = choice(kind or "scaling", "kind", KINDS)
    file_format = format_of(out)
    condition = parse(filter, EXPORTED) if filter else None
    with Store.open(results) as store:
        sweep = read_sweep(store, condition)
    Path(out).write_bytes(draw(sweep, chosen, file_format))
    write(f"written: {out}")
    return 0
