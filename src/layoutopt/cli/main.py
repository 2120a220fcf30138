"""Runs a command and turns every way to fail into one message and an exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence

import click

from layoutopt.cli.group import cli
from layoutopt.cli.output import write
from layoutopt.errors import InputError, InternalError, LayoutoptError
from layoutopt.nearest import did_you_mean

INTERRUPTED = 130
DEBUG = "LAYOUTOPT_DEBUG"
"""Environment variable: when set, a fault of ours also prints its traceback."""


def run(argv: Sequence[str]) -> int:
    """The exit code of ``layoutopt ARGV``; prints to standard output and standard error."""
    _print_what_the_terminal_can()
    try:
        code = cli.main(args=list(argv), prog_name="layoutopt", standalone_mode=False)
        return int(code or 0)
    except (KeyboardInterrupt, click.Abort):
        click.echo("layoutopt: interrupted", err=True)
        return INTERRUPTED
    except LayoutoptError as error:
        return _report(error, argv)
    except click.UsageError as error:
        return _report(_usage(error), argv)
    except OSError as error:
        return _report(_unreadable(error), argv)
    except Exception as error:  # the last line of defence: people get a sentence, not a traceback
        if os.environ.get(DEBUG):
            traceback.print_exc()
        return _report(_fault(error), argv)


def _print_what_the_terminal_can() -> None:
    """A terminal without UTF-8 gets question marks instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _report(error: LayoutoptError, argv: Sequence[str]) -> int:
    """The message on standard error, and as JSON on standard output where that was asked."""
    from layoutopt.report.errors import error_text, for_people

    click.echo(f"layoutopt: {for_people(error)}", err=True)
    if "--json" in argv:
        write(error_text(error))
    return error.exit_code


def _usage(error: click.UsageError) -> InputError:
    """A wrong command line in our words, with the nearest option."""
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        close = tuple(error.possibilities or ())
        return InputError(
            f"no option is called {error.option_name}{did_you_mean(close)}",
            field=error.option_name,
            nearest=close,
        )
    if isinstance(error, click.BadOptionUsage):
        return InputError(message, field=error.option_name)
    command = error.ctx.command_path if error.ctx else "layoutopt"
    return InputError(f"{message}; see {command} --help", field="command line")


def _unreadable(error: OSError) -> LayoutoptError:
    """A file that cannot be read is the person's to mend; any other system error is a fault."""
    if error.filename is None:
        return _fault(error)
    reason = error.strerror or type(error).__name__
    return InputError(f"{error.filename}: {reason}", field="file", value=str(error.filename))


def _fault(error: Exception) -> InternalError:
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(where[-1].filename)}:{where[-1].lineno})" if where else ""
    return InternalError(
        f"a fault in layoutopt: {type(error).__name__}: {error}{place}; "
        f"please report it ({DEBUG}=1 prints the traceback)"
    )
