"""layoutopt calibrate"""

from __future__ import annotations

from pathlib import Path

import click

from layoutopt.cli.options import json_option, text_option
from layoutopt.cli.output import wants_color, write
from layoutopt.errors import InputError


@click.command("calibrate", short_help="A site's own efficiencies from its own runs.")
@click.argument("records", nargs=-1, metavar="RECORDS.jsonl|LOG...")
@text_option("--gpu", metavar="NAME", help="GPU type of Megatron logs, which do not say.")
@text_option("--out", metavar="FILE", help="Where the calibration is written, as YAML.")
@json_option
def command(records: tuple[str, ...], gpu: str | None, out: str | None, as_json: bool) -> int:
    """Refines the efficiencies of one GPU type and one framework by three measured runs or more.

    \b
    layoutopt calibrate ours.jsonl --out site.yaml
    layoutopt calibrate run1.log run2.log run3.log --gpu h100 --out site.yaml
    layoutopt solve --model 70B --gpus 512 --calibration site.yaml

    Prints the error of the shipped figures, of the fitted ones, and of runs left out of the fit.
    """
    from layoutopt.calibration import calibrate
    from layoutopt.calibration.site import refuse_other_file

    if not records:
        raise InputError(
            "records are missing: name JSON-lines files of your measured runs, or Megatron logs",
            field="records",
        )
    if out is None:
        raise InputError("--out is missing: say where to write the calibration", field="out")
    refuse_other_file(out)
    found = calibrate(records, gpu)
    Path(out).write_text(found.site.text(), encoding="utf-8")
    if as_json:
        from layoutopt.report.guard import dumps

        write(dumps(found.to_dict()))
    else:
        from layoutopt.report.calibration import calibration_table

        write(calibration_table(found, out, color=wants_color()))
    return found.exit_code
