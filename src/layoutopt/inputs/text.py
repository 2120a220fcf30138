"""A file's text, or standard input's, of a size that is believed."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from layoutopt.errors import InputError


def read_text(source: str, field: str, stdin: TextIO | None, most: int) -> str:
    """At most ``most`` characters of a file, or of standard input (``-``).

    Raises InputError of ``field`` for what cannot be read, is empty, or is longer.
    """
    try:
        if source == "-":
            text = stdin.read(most + 1) if stdin else ""
        else:
            with Path(source).open(encoding="utf-8") as file:
                text = file.read(most + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{field}: cannot read {source}: {reason}", field=field, value=source
        ) from error
    if not text.strip() or len(text) > most:
        size = "empty" if not text.strip() else f"larger than {most:,} characters"
        raise InputError(f"{field}: {source} is {size}", field=field, value=source)
    return text
