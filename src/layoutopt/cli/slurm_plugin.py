"""layoutopt slurm-plugin"""

from __future__ import annotations

from importlib import resources

import click

from layoutopt.cli.output import write
from layoutopt.inputs.words import choice

PLUGINS = ("cli_filter", "job_submit")


@click.command("slurm-plugin", short_help="Lua files for Slurm to install.")
@click.argument("name", metavar="cli_filter|job_submit")
def command(name: str) -> int:
    """Prints a plugin to install beside slurm.conf.

    \b
    layoutopt slurm-plugin cli_filter > /etc/slurm/cli_filter.lua   # CliFilterPlugins=lua
    layoutopt slurm-plugin job_submit > /etc/slurm/job_submit.lua   # JobSubmitPlugins=lua

    cli_filter solves on the client for jobs with --comment=layoutopt:MODEL; job_submit checks the
    LAYOUT_* of every job in pure Lua, and rejects what cannot run. Both fail open.
    """
    plugin = choice(name, "name", PLUGINS)
    path = resources.files("layoutopt.schedulers").joinpath(f"lua/{plugin}.lua")
    write(path.read_text("utf-8"))
    return 0
