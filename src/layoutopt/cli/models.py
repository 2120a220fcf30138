"""layoutopt models"""

from __future__ import annotations

import sys

import click

from layoutopt.cli.options import json_option
from layoutopt.cli.output import wants_color, write


@click.command("models", short_help="Models that are known, with sources.")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> int:
    """Lists models, or shows the one called NAME (a size, a config.json or - work too).

    \b
    layoutopt models
    layoutopt models llama-3.1-405b
    """
    from layoutopt.costmodel.models import resolve_model
    from layoutopt.report import models
    from layoutopt.report.guard import dumps

    if name is None:
        write(
            dumps(models.models_list_json()) if as_json else models.models_list(color=wants_color())
        )
        return 0
    model, note = resolve_model(name, sys.stdin)
    write(
        dumps(models.model_json(model, note))
        if as_json
        else models.model_page(model, note, color=wants_color())
    )
    return 0
