"""layoutopt sweep"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from layoutopt.cli.options import json_option, text_option
from layoutopt.cli.output import wants_color, write
from layoutopt.errors import InputError
from layoutopt.inputs.numbers import read_count
from layoutopt.inputs.words import choice

if TYPE_CHECKING:
    from layoutopt.sweep.points import Points
    from layoutopt.sweep.spec import Spec
    from layoutopt.sweep.sweep import Engine

MOST_WORKERS = 10_000


@click.command("sweep", short_help="Many questions: resumable, on many cores or a dask cluster.")
@click.argument("spec", required=False, metavar="SPEC.yaml")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=V,V", help="An axis, as in gpu=h100."
)
@text_option("--out", metavar="DIR", help="Folder of results.sqlite; made where there is none.")
@click.option("--dry-run", is_flag=True, help="Say how many points there are, solve none.")
@text_option("--workers", metavar="N", help="Processes, or Slurm jobs. [one a core]")
@text_option("--dask", metavar="ADDRESS", help="A dask scheduler, tcp://host:8786, or slurm.")
@click.option("--retry", is_flag=True, help="Solve failed and unproved points again.")
@text_option("--export", metavar="FILE", help="Also write .parquet, .csv or .jsonl.")
@text_option("--columns", metavar="SET", help="Columns of --export: own or nemo. [own]")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
@json_option
def command(
    spec: str | None,
    settings: tuple[str, ...],
    out: str | None,
    dry_run: bool,
    workers: str | None,
    dask: str | None,
    retry: bool,
    export: str | None,
    columns: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Solves every point of SPEC.yaml that DIR has no answer for yet.

    \b
    layoutopt sweep sizes.yaml --out results/
    layoutopt sweep --set model=8B,70B --set gpus=64,128,256 --out results/
    layoutopt sweep sizes.yaml --out results/ --dask tcp://scheduler:8786

    Every point is a solve. The same command goes on where an earlier one was ended, however it
    was; a changed spec keeps the answers that it shares with the old one.
    """
    from layoutopt.sweep.points import points_of
    from layoutopt.sweep.spec import load_spec
    from layoutopt.sweep.sweep import run_sweep

    read = load_spec(spec, settings)
    solve = _engine(dask, workers)
    _refuse_export(export, columns)
    if out is None and not dry_run:
        raise InputError("--out is missing: name a folder for the results", field="out")
    points = points_of(read)
    if dry_run or out is None:
        return _dry(read, points, out, as_json)
    from layoutopt.cli.sweep_progress import progress_of
    from layoutopt.sweep.store import Store

    watcher = progress_of(quiet or as_json)
    try:
        summary = run_sweep(read, out, solve, watcher, retry=retry, points=points)
    except KeyboardInterrupt:
        click.echo(
            f"what is solved is kept in {out}; the same command goes on from there", err=True
        )
        raise
    if as_json:
        from layoutopt.report.guard import dumps

        write(dumps(summary.to_dict()))
    else:
        from layoutopt.report.sweep import sweep_table

        with Store.open(out) as store:
            write(sweep_table(read, summary, store, color=wants_color()))
    if export:
        _export(out, export, columns, quiet=as_json)
    return 0


def _engine(dask: str | None, workers: str | None) -> Engine:
    """What solves the points; refuses a bad --workers or --dask before anything is read."""
    from layoutopt.sweep.pool import cores, solve_locally

    number = cores() if workers is None else read_count(workers, "workers", most=MOST_WORKERS)
    if dask is None:
        return partial(solve_locally, workers=number)
    from layoutopt.sweep.cluster import SLURM, need_dask, solve_on_dask

    if dask != SLURM and "://" not in dask:
        raise InputError(
            f"--dask {dask} is no scheduler: write tcp://host:8786, or slurm",
            field="dask",
            value=dask,
            nearest=(f"tcp://{dask}", SLURM),
        )
    need_dask()
    return partial(solve_on_dask, address=dask, jobs=number)


def _refuse_export(path: str | None, columns: str | None) -> None:
    """A bad --export or --columns is found before the sweep, not after it."""
    from layoutopt.sweep.export import COLUMN_SETS, writer_of

    if columns is not None:
        choice(columns, "columns", COLUMN_SETS)
    if path is not None:
        writer_of(Path(path))


def _export(folder: str, path: str, columns: str | None, *, quiet: bool) -> None:
    from layoutopt.sweep.export import export
    from layoutopt.sweep.store import Store

    with Store.open(folder) as store:
        rows = export(store, path, columns or "own")
    if not quiet:
        write(f"{rows:,} rows written to {path}")


def _dry(spec: Spec, points: Points, out: str | None, as_json: bool) -> int:
    """How many points there are, and how many of them have an answer."""
    known: set[str] = set()
    from layoutopt.sweep.store import FILE, Store

    if out is not None and (Path(out) / FILE).exists():
        with Store.open(out) as store:
            known = store.done()
    there = sum(point.key in known for point in points.points)
    if as_json:
        from layoutopt.report.guard import dumps

        found = {"points": len(points.points), "asked_twice": points.twice, "reused": there}
        write(dumps({"schema": "layoutopt.sweep/1", **found}))
    else:
        from layoutopt.report.sweep import dry_table

        write(dry_table(spec, points, there, color=wants_color()))
    return 0
