"""Answers kept in a folder: the same question and version give the same bytes back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from layoutopt.errors import InputError

_FILES = ("model", "cluster", "calibration", "why_not")
"""Options that may name a file: what it holds is part of the question."""
_NOT_KEPT = ("feasible", "unknown")
"""A search that ran out of time is not reproducible."""


@dataclass(frozen=True)
class Made:
    """What a command prints, its exit code, and how the search ended."""

    text: str
    exit_code: int
    status: str


def kept_or_made(
    folder: str | None,
    command: str,
    form: str,
    options: Mapping[str, Any],
    make: Callable[[], Made],
) -> Made:
    """The answer that ``folder`` holds for this question, else ``make``'s, which is then kept.

    Without a folder, or with an option on standard input, always ``make``'s. Files are written
    whole or not at all; a damaged one counts as none. Raises InputError for a folder that cannot
    be written.
    """
    key = _key(command, form, options) if folder is not None else None
    if folder is None or key is None:
        return make()
    place = Path(folder).expanduser() / f"{key}.json"
    found = _read(place)
    if found is None:
        found = make()
        if found.status not in _NOT_KEPT:
            _write(place, found)
    return found


def _read(place: Path) -> Made | None:
    try:
        return Made(**json.loads(place.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _write(place: Path, made: Made) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(
            "w", encoding="utf-8", dir=place.parent, prefix=".", delete=False
        ) as file:
            json.dump(asdict(made), file)
        os.replace(file.name, place)
    except OSError as error:
        raise InputError(
            f"--cache {place.parent} cannot be written: {error.strerror}",
            field="cache",
            value=str(place.parent),
        ) from error


def _key(command: str, form: str, options: Mapping[str, Any]) -> str | None:
    """A name for the question: the options as given, what files hold, and the model's version.

    None where an option reads standard input: that question is not repeated.
    """
    from layoutopt.sweep.version import model_version

    given = {name: value for name, value in options.items() if value not in (None, (), False)}
    if "-" in given.values():
        return None
    held = {name: _content(given[name]) for name in _FILES if name in given}
    text = json.dumps([model_version(), command, form, given, held], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _content(value: object) -> str:
    """A digest of the file that an option names; empty where it names none."""
    try:
        return hashlib.sha256(Path(str(value)).read_bytes()).hexdigest()
    except OSError:
        return ""
