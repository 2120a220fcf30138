"""layoutopt simulate"""

from __future__ import annotations

import sys
from typing import Any

import click

from layoutopt.cli.options import job_options, json_option, stack, text_option
from layoutopt.cli.output import wants_color, write

_step_options = stack(
    click.option(
        "--straggler",
        multiple=True,
        metavar="stage=S,slow=F",
        help="A stage whose compute takes F times as long; may be repeated.",
    ),
    text_option("--jitter", metavar="SHARE", help="Random spread of each pass: 0.05 or 5%. [0]"),
    text_option("--seed", metavar="N", help="Seed of the random numbers. [0]"),
    text_option("--trace", metavar="FILE.json", help="Writes a trace that Perfetto opens."),
    text_option("--plot", metavar="FILE.svg", help="Draws the schedule."),
)

_run_options = stack(
    click.option("--run", is_flag=True, help="Whole runs, failure by failure, instead of a step."),
    text_option("--runs", metavar="N", help="How many runs. [1000]"),
    text_option(
        "--failures",
        metavar="HOW",
        help="exponential, weibull:0.7, or a file of times, one a line. [exponential]",
    ),
    text_option("--interval", metavar="STEPS", help="Steps between saves. [the plan's]"),
    text_option("--detect", metavar="TIME", help="Until a failure is noticed. [the cluster's]"),
    text_option("--restart", metavar="TIME", help="From there to loading. [the cluster's]"),
    text_option("--spares", metavar="N", help="Nodes that wait. [always one at hand]"),
    text_option("--repair", metavar="TIME", help="Until a failed node is a spare again. [1 day]"),
    click.option(
        "--tier",
        multiple=True,
        metavar="KIND,every=N,...",
        help="host, disk, peer or shared: every=N,write=T,stall=T,load=T,fails=S,late=S,"
        "late_factor=F; may be repeated.",
    ),
    text_option("--process-share", metavar="S", help="Failures that lose no node. [0]"),
    text_option("--switch-share", metavar="S", help="Failures that take a switch. [0]"),
    text_option("--nodes-per-switch", metavar="N", help="Nodes behind a switch. [1]"),
    text_option("--contention", metavar="S", help="Share of the storage others take. [0]"),
)


@click.command("simulate", short_help="A step or a run, event by event.")
@job_options
@text_option(
    "--layout",
    metavar="LAYOUT",
    help="tp=8,pp=16,...; or JSON, a .json file, or - for standard input.",
)
@_step_options
@_run_options
@json_option
def command(as_json: bool, **options: Any) -> int:
    """One optimizer step of a layout, event by event; or whole runs, failure by failure.

    \b
    layoutopt simulate --model 405B --gpus 16384 --layout tp=8,pp=16 --trace step.json
    layoutopt simulate --model 405B --gpus 16384 --layout tp=8,pp=16 --run --spares 16
    """
    from layoutopt.api import answer_simulate
    from layoutopt.report.simulation import SimulatedStep

    options.update({name: options[name] or None for name in ("straggler", "tier", "run")})
    answer = answer_simulate(options, sys.stdin)
    if as_json:
        from layoutopt.report.guard import dumps

        write(dumps(answer.to_dict()))
    else:
        from layoutopt.report import simulation, simulation_run

        color = wants_color()
        if isinstance(answer, SimulatedStep):
            write(simulation.as_table(answer, color=color))
        else:
            write(simulation_run.as_table(answer, color=color))
    return answer.exit_code
