"""layoutopt validate"""

from __future__ import annotations

import click

from layoutopt.cli.options import calibration_option, json_option
from layoutopt.cli.output import wants_color, write
from layoutopt.errors import InputError


@click.command("validate", short_help="Predictions against measured runs.")
@click.argument("records", nargs=-1, metavar="RECORDS.jsonl...")
@calibration_option
@json_option
def command(records: tuple[str, ...], calibration: str | None, as_json: bool) -> int:
    """Compares predictions with the measured runs of JSON-lines files, by source and framework.

    \b
    layoutopt validate benchmarks/measured/*.jsonl
    """
    from layoutopt.api import validate

    if not records:
        raise InputError(
            "records are missing: name JSON-lines files of measured runs", field="records"
        )
    found = validate(records, calibration)
    if as_json:
        from layoutopt.report.guard import dumps

        write(dumps(found.to_dict()))
    else:
        from layoutopt.report.validation import validation_table

        write(validation_table(found, color=wants_color()))
    return found.exit_code
