"""Nothing leaves as JSON that is not plain, finite JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from layoutopt.errors import InternalError


def dumps(payload: dict[str, Any]) -> str:
    """``payload`` as one JSON object, keys in their order; raises InternalError if it cannot."""
    return json.dumps(plain(payload), indent=2, allow_nan=False, ensure_ascii=False)


def plain(value: Any, where: str = "$") -> Any:
    """``value`` itself, of dicts, lists, text, booleans, integers and finite floats alone.

    Tuples become lists. Raises InternalError naming the place of anything else.
    """
    if isinstance(value, dict):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    # exact types: numpy scalars and enumerations print differently from what they compare to
    if value is None or type(value) in (str, bool, int):
        return value
    if type(value) is float:
        if math.isfinite(value):
            return value
        raise InternalError(f"{where} of the answer is {value}: only finite numbers are allowed")
    raise InternalError(f"{where} of the answer is a {type(value).__name__}, which is not JSON")
