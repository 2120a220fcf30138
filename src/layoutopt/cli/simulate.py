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


@click.command("simulate", short_help="A step or a run, event by event.")
@job_options
@text_option(
    "--layout",
    metavar="LAYOUT",
    help="tp=8,pp=16,...; or JSON, a .json file, or - for standard input.",
)
@_step_options
@json_option
def command(as_json: bool, **options: Any) -> int:
    """One optimizer step of a layout, event by event.

    \b
    layoutopt simulate --model 405B --gpus 16384 --layout tp=8,pp=16 --trace step.json
    """
    from layoutopt.api import answer_simulate

    options["straggler"] = options["straggler"] or None
    answer = answer_simulate(options, sys.stdin)
    if as_json:
        from layoutopt.report.guard import dumps

        write(dumps(answer.to_dict()))
    else:
        from layoutopt.report.simulation import as_table

        write(as_table(answer, color=wants_color()))
    return answer.exit_code
