"""layoutopt hardware"""

from __future__ import annotations

import click

from layoutopt.cli.options import json_option
from layoutopt.cli.output import wants_color, write


@click.command("hardware", short_help="GPUs and machines that are known, with sources.")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> int:
    """Lists GPUs and cloud machines, or shows the one called NAME with the source of each figure.

    \b
    layoutopt hardware
    layoutopt hardware h100-sxm-80gb
    """
    from layoutopt.report import hardware
    from layoutopt.report.guard import dumps

    if name is None:
        write(
            dumps(hardware.hardware_list_json())
            if as_json
            else hardware.hardware_list(color=wants_color())
        )
        return 0
    found, note = hardware.find_hardware(name)
    if note:
        click.echo(note, err=True)
    write(
        dumps(hardware.hardware_json(found))
        if as_json
        else hardware.hardware_page(found, color=wants_color())
    )
    return 0
