"""Words that have to be one of a few."""

from __future__ import annotations

from collections.abc import Iterable

from layoutopt.errors import InputError
from layoutopt.nearest import nearest_names


def choice(value: str, field: str, known: Iterable[str]) -> str:
    """``value`` if it is one of ``known`` (case aside); raises InputError naming the nearest."""
    known = tuple(known)
    word = value.strip().lower()
    if word in known:
        return word
    close = nearest_names(value, known)
    hint = f" (nearest: {close[0]})" if close else ""
    shown = repr(value if len(value) <= 40 else value[:40] + "...")
    raise InputError(
        f"{field} {shown} is unknown{hint}; it can be {', '.join(known)}",
        field=field,
        value=value[:200],
        nearest=close or known,
    )


def yes_or_no(value: object, field: str) -> bool:
    """A switch: a boolean, or its name."""
    if isinstance(value, bool):
        return value
    return choice(str(value), field, ("true", "false")) == "true"
