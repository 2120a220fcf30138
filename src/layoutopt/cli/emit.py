"""layoutopt emit"""

from __future__ import annotations

import sys

import click

from layoutopt.cli.options import text_option
from layoutopt.cli.output import write, write_file
from layoutopt.errors import InputError
from layoutopt.launchers import ON_KUBERNETES, emit, format_named


@click.command("emit", short_help="A plan as a launch configuration.")
@click.argument("plan", default="-", metavar="[PLAN.json|-]")
@text_option("--format", metavar="FORMAT", help="See the list above.")
@text_option("--phase", metavar="N", help="Which phase, of a run in phases.")
@text_option("--out", metavar="FILE", help="File to write instead of standard output.")
@click.option("--force", is_flag=True, help="Overwrite --out where it exists.")
@text_option("--name", metavar="NAME", help="Kubernetes: name of the job. [layoutopt]")
@text_option("--image", metavar="IMAGE", help="Kubernetes: container image.")
@text_option("--queue", metavar="QUEUE", help="Kubernetes: Kueue's LocalQueue.")
@text_option("--topology", metavar="LABEL", help="Kubernetes: node label that holds one island.")
@text_option("--runtime", metavar="NAME", help="TrainJob: its runtime. [torch-distributed]")
def command(
    plan: str,
    format: str | None,
    phase: str | None,
    out: str | None,
    force: bool,
    **cluster: str,
) -> int:
    """The launch configuration of a plan that solve or estimate gave with --json.

    \b
    layoutopt solve --model 70B --gpus 64 --framework megatron --json > plan.json
    layoutopt emit --format megatron plan.json

    \b
    Frameworks: megatron megatron-bridge torchtitan deepspeed accelerate nanotron maxtext
    Clusters:   trainjob jobset job kueue (Kubernetes), skypilot

    What a framework cannot express is refused (exit code 2), never dropped.
    """
    from layoutopt.inputs.numbers import MOST_PHASES, read_count
    from layoutopt.launchers.plan import read_plan_text

    if format is None:
        raise InputError("--format is missing: say for which framework", field="format")
    name = format_named(format)
    given = {key: value for key, value in cluster.items() if value is not None}
    if given and name not in ON_KUBERNETES:
        option = next(iter(given))
        raise InputError(
            f"--{option} is for {', '.join(ON_KUBERNETES)}, not for {name}", field=option
        )
    number = None if phase is None else read_count(phase, "phase", most=MOST_PHASES)
    text = emit(read_plan_text(plan, sys.stdin, number), name, **given)
    if out is None:
        write(text)
    else:
        write_file(out, text, force=force)
    return 0
