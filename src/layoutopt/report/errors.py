"""Errors as the JSON of schema layoutopt.error/1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from layoutopt.errors import InputError, LayoutoptError
from layoutopt.report.guard import dumps

SCHEMA = "layoutopt.error/1"


def error_json(error: LayoutoptError) -> dict[str, Any]:
    """code, field, value, message, nearest; field and value are null where none is to blame."""
    blame = error if isinstance(error, InputError) else InputError("")
    return {
        "schema": SCHEMA,
        "code": error.code,
        "field": blame.field,
        "value": _plain(blame.value),
        "message": str(error),
        "nearest": [_plain(value) for value in blame.nearest],
    }


def with_nearest(message: str, nearest: Sequence[object]) -> str:
    """``message`` with the nearest legal values, unless it names them itself."""
    if not nearest or all(_names(message, value) for value in nearest):
        return message
    return f"{message} (nearest: {' or '.join(map(str, nearest))})"


def for_people(error: LayoutoptError) -> str:
    """The sentence that a person reads: what is wrong, and the nearest legal value."""
    return with_nearest(str(error), error.nearest if isinstance(error, InputError) else ())


def error_text(error: LayoutoptError) -> str:
    """The error as one JSON object."""
    return dumps(error_json(error))


def _names(message: str, value: object) -> bool:
    """Whether ``value`` stands in ``message``, with or without thousands separators."""
    if str(value) in message:
        return True
    return isinstance(value, int | float) and f"{value:,}" in message


def _plain(value: object) -> object:
    """What a person gave may be anything: what JSON cannot hold is shown as text."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
