"""layoutopt solve"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from layoutopt.cache import Made, kept_or_made
from layoutopt.cli.options import (
    cache_option,
    explain_option,
    job_options,
    json_option,
    phase_options,
    text_option,
    with_phases,
)
from layoutopt.cli.output import wants_color, write
from layoutopt.errors import InputError

if TYPE_CHECKING:
    from layoutopt.report.answer import Answer


@click.command("solve", short_help="The best layout, with proof and explanation.")
@job_options
@phase_options
@click.option("--fix", multiple=True, metavar="A=N,...", help="Fix axes, as in tp=8,pp=16.")
@click.option("--limit", multiple=True, metavar="'A<=N'", help="Limit axes, as in 'tp<=8'.")
@text_option("--objective", metavar="O", help="What is least: time, cost, energy or gpus. [time]")
@text_option("--deadline", metavar="TIME", help="Longest wall time of the run, as in 30d.")
@text_option("--budget", metavar="USD", help="Most the run may cost, as in 2.5M.")
@text_option("--critical-batch", metavar="TOKENS", help="What a large batch costs. [by loss]")
@text_option("--max-power", metavar="W", help="Most that the GPUs may draw, as in 2MW.")
@click.option("--pareto", is_flag=True, default=None, help="Time against cost over GPU counts.")
@text_option("--rejected", metavar="FILE", help="Write what was refused, and by which rule.")
@click.option("--sensitivity", is_flag=True, default=None, help="Worth of a better machine.")
@text_option("--top", metavar="K", help="How many alternatives to show. [3]")
@text_option("--why-not", metavar="LAYOUT", help="Compare this layout with the best, by part.")
@text_option("--phase-layouts", metavar="WAY", help="Of phases: auto, one or each. [auto]")
@text_option("--time-limit", metavar="S", help="Seconds the search may take. [60]")
@text_option("--workers", metavar="N", help="Threads of the search; the answer is the same. [2]")
@text_option("--emit", metavar="FORMAT", help="The launch configuration instead of the table.")
@cache_option
@explain_option
@json_option
def command(
    as_json: bool, assumptions: bool, emit: str | None, cache: str | None, **options: Any
) -> int:
    """The layout of a training run that takes the least time, with the solver's proof.

    \b
    layoutopt solve --model 1T --gpus 16384
    layoutopt solve --model 405B --gpus 6000 --global-batch 1500 --json
    layoutopt solve --model 70B --gpus 64..4096 --deadline 30d --objective cost --pareto

    Defaults that are filled in are shown in the answer, each with its reason.
    """
    for name in ("fix", "limit"):
        options[name] = options[name] or None
    options = with_phases(options)
    launcher = _launcher(emit, as_json)
    if launcher and options.get("phases") is not None:
        raise InputError(
            "--emit writes the launch of one phase: solve --json, then emit --phase N",
            field="emit",
            value=emit,
        )
    color = wants_color()

    def make() -> Made:
        from layoutopt.api import answer_solve

        answer = answer_solve(options, sys.stdin)
        text = _text(answer, launcher, as_json, color=color, assumptions=assumptions)
        return Made(text, answer.exit_code, answer.status)

    form = f"{launcher or 'table'} {as_json} {color} {assumptions}"
    found = kept_or_made(cache, "solve", form, options, make)
    write(found.text)
    return found.exit_code


def _text(
    answer: Answer, launcher: str | None, as_json: bool, *, color: bool, assumptions: bool
) -> str:
    """The answer as it was asked for."""
    if launcher and answer.plan:
        return _launch(answer, launcher)
    if as_json:
        from layoutopt.report.guard import dumps

        return dumps(answer.to_dict())
    from layoutopt.report.table import as_table

    return as_table(answer, color=color, assumptions=assumptions)


def _launcher(emit: str | None, as_json: bool) -> str | None:
    """The format of --emit; refused before the search where it cannot be meant."""
    if emit is None:
        return None
    from layoutopt.launchers import format_named

    if as_json:
        raise InputError("--emit and --json exclude each other", field="emit", value=emit)
    return format_named(emit)


def _launch(answer: Answer, launcher: str) -> str:
    from layoutopt.launchers import emit
    from layoutopt.launchers.plan import read_plan

    return emit(read_plan(answer.to_dict()), launcher)
