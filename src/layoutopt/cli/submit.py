"""layoutopt submit"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from layoutopt.cli.options import job_options, json_option, text_option
from layoutopt.cli.output import write
from layoutopt.errors import InputError


@click.command(
    "submit",
    short_help="Solves for the free nodes of a Slurm cluster, and submits.",
    context_settings={"ignore_unknown_options": False},
)
@job_options
@text_option("--nodes", metavar="N", help="Nodes to use: exactly so many. [as many as is best]")
@text_option("--partition", metavar="NAME", help="Slurm partition.")
@text_option("--fix", metavar="A=N,...", help="Fix axes, as in tp=8,pp=16.")
@text_option("--objective", metavar="O", help="What is least: time, cost, energy or gpus. [time]")
@text_option("--deadline", metavar="TIME", help="Longest wall time of the run, as in 30d.")
@text_option("--time-limit", metavar="S", help="Seconds each search may take. [60]")
@click.option("--when", is_flag=True, help="Ask Slurm when each size would start: soonest finish.")
@click.option("--dry-run", is_flag=True, help="Print the sbatch command, submit nothing.")
@json_option
@click.argument("script")
@click.argument("sbatch", nargs=-1, metavar="[-- SBATCH OPTIONS]")
def command(
    script: str,
    sbatch: tuple[str, ...],
    nodes: str | None,
    partition: str | None,
    when: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Reads the free nodes, solves, and submits SCRIPT with the layout as LAYOUT_* variables.

    \b
    layoutopt submit --model 70B --framework megatron train.sbatch
    layoutopt submit --model 70B --when --dry-run train.sbatch -- --account=research

    Prints the job's id and its layout. Exit code 69 where Slurm is missing or hangs.
    """
    from layoutopt.schedulers.slurm import Asked, submit

    if not Path(script).is_file():
        raise InputError(f"there is no batch script {script}", field="script", value=script)
    asked = Asked(script, nodes, partition, when, tuple(sbatch))
    done = submit(asked, options, sys.stdin, dry_run=dry_run)
    if as_json:
        from layoutopt.report.guard import dumps

        write(dumps(done.to_dict()))
    else:
        write(done.text())
    return 0
