"""layoutopt estimate"""

from __future__ import annotations

import sys
from typing import Any

import click

from layoutopt.cli.options import (
    explain_option,
    job_options,
    json_option,
    phase_options,
    text_option,
    with_phases,
)
from layoutopt.cli.output import wants_color, write


@click.command("estimate", short_help="One given layout: does it fit, how long, why.")
@job_options
@phase_options
@text_option(
    "--layout",
    metavar="LAYOUT",
    help="tp=8,pp=16,...; or JSON, a .json file, or - for standard input.",
)
@text_option(
    "--from-launch",
    metavar="FILE",
    help="Read the layout of a Megatron or torchtitan command, a DeepSpeed or accelerate file.",
)
@explain_option
@json_option
def command(as_json: bool, assumptions: bool, **options: Any) -> int:
    """What one given layout needs and takes. Exit code 3 where it does not fit.

    \b
    layoutopt estimate --model 405B --gpus 16384 --layout tp=8,cp=1,pp=16,dp=128

    Keys of a layout: tp cp pp dp ep etp vpp micro_batch microbatches zero_stage shard_degree
    reshard recompute (none, selective, full, full:3) sequence_parallel cp_kind schedule
    layers_per_stage (7+14*8+7) axis_order (tp-cp-ep-dp-pp).
    """
    from layoutopt.api import answer_estimate

    answer = answer_estimate(with_phases(options), sys.stdin)
    if as_json:
        from layoutopt.report.guard import dumps

        write(dumps(answer.to_dict()))
    else:
        from layoutopt.report.table import as_table

        write(as_table(answer, color=wants_color(), assumptions=assumptions))
    return answer.exit_code
