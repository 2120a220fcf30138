"""Text to standard output, whoever reads it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

import click

from layoutopt.errors import InputError


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


def write_file(path: str, text: str, *, force: bool) -> None:
    """Writes a whole file or nothing; raises InputError where it exists and ``force`` is off."""
    place = Path(path)
    if place.is_dir() or not place.parent.is_dir():
        why = "is a folder" if place.is_dir() else f"is in no folder: {place.parent} does not exist"
        raise InputError(f"--out {path} {why}", field="out", value=path)
    if place.exists() and not force:
        raise InputError(f"--out {path} exists; --force overwrites it", field="out", value=path)
    try:
        with NamedTemporaryFile("w", encoding="utf-8", dir=place.parent, delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o666 & ~_umask())
        os.replace(file.name, place)
    except OSError as error:
        raise InputError(
            f"--out {path} cannot be written: {error.strerror}", field="out", value=path
        ) from error


def _umask() -> int:
    """The process's mask; there is no way to read it but to set it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
