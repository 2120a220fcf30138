"""layoutopt env"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import click

from layoutopt.cache import Made, kept_or_made
from layoutopt.cli.options import cache_option, job_options, text_option
from layoutopt.cli.output import write
from layoutopt.errors import InputError


@click.command("env", short_help="Inside a job: the layout of its size, as variables.")
@job_options
@text_option("--nodes", metavar="N", help="Nodes of the job. [SLURM_NNODES]")
@text_option("--gpus-per-node", metavar="N", help="GPUs on each. [SLURM_GPUS_ON_NODE]")
@text_option("--fix", metavar="A=N,...", help="Fix axes, as in tp=8,pp=16.")
@text_option("--time-limit", metavar="S", help="Seconds the search may take. [60]")
@cache_option
@click.option("--plain", is_flag=True, help="NAME=VALUE lines instead of export lines.")
def command(
    nodes: str | None, gpus_per_node: str | None, cache: str | None, plain: bool, **options: Any
) -> int:
    """The best layout of the job's own size, as LAYOUT_* variables.

    \b
    eval "$(layoutopt env --model 70B --framework megatron --cache ~/.cache/layoutopt)"
    torchrun ... --tensor-model-parallel-size $LAYOUT_TP

    The size comes from Slurm's variables, so a job of --nodes=4-16 gets the layout of the nodes
    that it was given. Answers are cached by question.
    """
    if options.get("gpus") is None:
        options["gpus"] = str(_gpus(nodes, gpus_per_node))

    def make() -> Made:
        from layoutopt.api import answer_solve
        from layoutopt.launchers.plan import read_plan
        from layoutopt.schedulers.variables import exports, variables

        answer = answer_solve({**options, "top": 0}, sys.stdin)
        if answer.plan is None:
            click.echo(f"layoutopt: no layout: the search ended {answer.status}", err=True)
            return Made("", answer.exit_code, "unknown")
        found = variables(read_plan(answer.to_dict()))
        lines = "\n".join(f"{name}={value}" for name, value in found.items())
        return Made(lines if plain else exports(found), 0, answer.status)

    made = kept_or_made(cache, "env", "plain" if plain else "export", options, make)
    if made.text:
        write(made.text)
    return made.exit_code


def _gpus(nodes: str | None, gpus_per_node: str | None) -> int:
    """GPUs of the job: given, or by Slurm's variables; raises InputError for what is missing."""
    count = _number(nodes, "nodes", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    each = _number(gpus_per_node, "gpus_per_node", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
    return count * each


def _number(given: str | None, field: str, *names: str) -> int:
    from layoutopt.inputs.numbers import MOST_GPUS, read_count

    if given is not None:
        return read_count(given, field, most=MOST_GPUS)
    for name in names:
        # SLURM_GPUS_PER_NODE may hold the type too: h100:8
        if found := re.search(r"(?:^|:)(\d+)$", os.environ.get(name, "")):
            return read_count(found[1], name, most=MOST_GPUS)
    option = field.replace("_", "-")
    raise InputError(
        f"--{option} is missing, and none of {', '.join(names)} is set: not inside a Slurm job?",
        field=field,
    )
