"""Errors as the JSON of schema layoutopt.error/1."""

from __future__ import annotations

import math
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


def error_text(error: LayoutoptError) -> str:
    """The error as one JSON object."""
    return dumps(error_json(error))


def _plain(value: object) -> object:
    """What a person gave may be anything: what JSON cannot hold is shown as text."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
