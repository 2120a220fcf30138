"""Numbers as people write them, checked against a range; every refusal names the field."""

from __future__ import annotations

import math
import re

from layoutopt import units
from layoutopt.errors import InputError

MOST_GPUS = 10**7
MOST_SEQ_LEN = 10**9
MOST_BATCH = 10**9
MOST_TOKENS = 10**18
MOST_PHASES = 16
"""Beyond these a figure is a slip of the hand; exact integers and floats hold up to them."""

_PLAIN = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z")


def read_count(
    value: object, field: str, *, most: int, least: int = 1, fraction: bool = False
) -> int:
    """A whole number from ``least`` to ``most``.

    ``fraction`` allows ``15.6T``: a fraction of a suffix that is whole in the end.
    """
    number = _exact(value, field, fraction)
    if number < least or number > most:
        side, bound = ("below", least) if number < least else ("above", most)
        raise InputError(
            f"{field} {_shown(value)} is {side} {bound:,}; "
            f"it can be a whole number from {least:,} to {most:,}",
            field=field,
            value=value,
            nearest=(bound,),
        )
    return number


def read_seconds(value: object, field: str, *, bare: bool = False) -> float:
    """A positive duration in seconds: text with a unit (``30d``), or a number of seconds.

    ``bare`` allows text without a unit to mean seconds too.
    """
    if isinstance(value, str) and not (bare and _PLAIN.match(value.strip())):
        try:
            return _positive(units.parse_seconds(value), value, field)
        except ValueError as error:
            raise InputError(f"{field}: {error}", field=field, value=value[:60]) from error
    return _positive(_number(value, field), value, field)


def read_money(value: object, field: str) -> float:
    """A positive amount of US dollars: ``2500000``, ``2.5M``, ``$2.5M``."""
    if isinstance(value, str):
        text = value.strip().removeprefix("$")
        if not _PLAIN.match(text):
            return _positive(float(_exact(text, field, fraction=True)), value, field)
        value = text
    return _positive(_number(value, field), value, field)


def read_watts(value: object, field: str) -> float:
    """A positive power in watts: text with a unit (``2MW``), or a number of watts."""
    if isinstance(value, str) and not _PLAIN.match(value.strip()):
        try:
            return _positive(units.parse_power(value), value, field)
        except ValueError as error:
            raise InputError(f"{field}: {error}", field=field, value=value[:60]) from error
    return _positive(_number(value, field), value, field)


def _exact(value: object, field: str, fraction: bool) -> int:
    """``value`` as a whole number; text goes through the shared suffixes."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _not_whole(value, field)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            raise _not_whole(value, field)
        return int(value)
    try:
        return units.parse_count(value, allow_fraction=fraction)
    except ValueError as error:
        raise _not_whole(value, field, str(error)) from error


def _not_whole(value: object, field: str, why: str = "") -> InputError:
    """The refusal of something that is no whole number, with the whole numbers beside it."""
    beside: tuple[int, ...] = ()
    try:
        number = float(value) if isinstance(value, str | float) else math.nan
    except ValueError:
        number = math.nan
    if 0 < number <= MOST_TOKENS:
        beside = tuple(n for n in sorted({math.floor(number), math.ceil(number)}) if n > 0)
    hint = f" (nearest: {' or '.join(map(str, beside))})" if beside else ""
    return InputError(
        f"{field}: {why or _shown(value) + ' is not a whole number'}{hint}",
        field=field,
        value=value if not isinstance(value, float) or math.isfinite(value) else repr(value),
        nearest=beside,
    )


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{field} {_shown(value)} is not a number", field=field, value=value)
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{field} {_shown(value)} is not a number", field=field, value=str(value)
        ) from error


def _positive(number: float, value: object, field: str) -> float:
    if not (math.isfinite(number) and number > 0):
        raise InputError(
            f"{field} {_shown(value)} has to be finite and above 0", field=field, value=str(value)
        )
    return number


def _shown(value: object) -> str:
    """``value`` for a message, cut short: a slip can be megabytes long."""
    is_number = isinstance(value, str) and len(value) < 60 and _PLAIN.match(value)
    text = str(value) if is_number else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
