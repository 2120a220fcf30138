"""The group of commands; each command's module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

from layoutopt import __version__
from layoutopt.errors import InputError
from layoutopt.nearest import did_you_mean, nearest_names

COMMANDS = {
    "solve": "layoutopt.cli.solve",
    "estimate": "layoutopt.cli.estimate",
    "validate": "layoutopt.cli.validate",
    "calibrate": "layoutopt.cli.calibrate",
    "sweep": "layoutopt.cli.sweep",
    "simulate": "layoutopt.cli.simulate",
    "plot": "layoutopt.cli.plot",
    "report": "layoutopt.cli.report",
    "emit": "layoutopt.cli.emit",
    "submit": "layoutopt.cli.submit",
    "env": "layoutopt.cli.env",
    "slurm-plugin": "layoutopt.cli.slurm_plugin",
    "serve": "layoutopt.cli.serve",
    "hardware": "layoutopt.cli.hardware",
    "models": "layoutopt.cli.models",
    "schema": "layoutopt.cli.schema",
}


class LazyGroup(click.Group):
    """Commands by name, in the order of COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called ``cmd_name``."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the nearest command where there is none of that name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = nearest_names(args[0], COMMANDS)
            raise InputError(
                f"no command is called {args[0]!r}{did_you_mean(close or tuple(COMMANDS))}",
                field="command",
                value=args[0],
                nearest=close or tuple(COMMANDS),
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="layoutopt")
@click.pass_context
def cli(ctx: click.Context, /) -> int:
    """Finds, and proves, the fastest layout of a training run on a GPU cluster.

    \b
    layoutopt solve --model 1T --gpus 16384
    layoutopt estimate --model 405B --gpus 16384 --layout tp=8,pp=16

    Numbers take k, M, B, T (powers of 1,000) and Ki, Mi (powers of 1,024). Exit codes: 0 an
    answer, 2 bad input, 3 nothing fits or meets a limit, 4 out of time, 70 a fault of ours.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0
