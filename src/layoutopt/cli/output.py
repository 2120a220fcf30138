"""Text to standard output, whoever reads it."""

from __future__ import annotations

import os
import sys

import click


def write(text: str) -> None:
    """Prints ``text`` with one line end; a reader that has gone away is no error."""
    try:
        click.echo(text.rstrip("\n"))
        sys.stdout.flush()
    except BrokenPipeError:
        # `layoutopt solve | head -3`: the answer was made; keep Python from failing at exit too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wants_color() -> bool:
    """Whether standard output is a terminal that has not been asked to stay plain."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
