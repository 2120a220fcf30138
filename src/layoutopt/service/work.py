"""One request in a worker process: options in, status and JSON text out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layoutopt.errors import InputError, InternalError, LayoutoptError

INLINE = ("model", "cluster")
"""Options that a request may hold as objects: a config.json, a cluster file's content."""
_PATHS = ("model", "cluster", "calibration", "layout", "why_not", "from_launch", "phases")
"""Options that name files on the command line; over HTTP nobody reads the server's files."""


def warm() -> None:
    """Imports what answers need, before the first request."""
    import layoutopt.api
    import layoutopt.optimizer.search
    import layoutopt.report.guard  # noqa: F401


def answer(command: str, options: Mapping[str, Any], most_seconds: float) -> tuple[int, str]:
    """HTTP status and JSON: 200 an answer, 422 an error of the request, 500 of ours."""
    from layoutopt.report.errors import error_text

    try:
        return 200, _answer(command, dict(options), most_seconds)
    except InputError as error:
        return 422, error_text(error)
    except LayoutoptError as error:
        return 500, error_text(error)
    except Exception as error:  # a worker answers, whatever happens
        return 500, error_text(InternalError(f"a fault in layoutopt: {type(error).__name__}"))


def _answer(command: str, options: dict[str, Any], most_seconds: float) -> str:
    from layoutopt.api import answer_estimate, answer_solve
    from layoutopt.inputs.numbers import read_seconds
    from layoutopt.report.guard import dumps

    refuse_files(options)
    with tempfile.TemporaryDirectory(prefix="layoutopt-") as folder:
        for name in INLINE:
            if isinstance(options.get(name), Mapping):
                file = Path(folder) / f"{name}.json"
                file.write_text(json.dumps(options[name]), encoding="utf-8")
                options[name] = str(file)
        if command == "estimate":
            return dumps(answer_estimate(options, None).to_dict())
        asked = options.get("time_limit")
        wanted = most_seconds if asked is None else read_seconds(asked, "time_limit", bare=True)
        options["time_limit"] = min(wanted, most_seconds)
        return dumps(answer_solve(options, None).to_dict())


def refuse_files(options: Mapping[str, Any]) -> None:
    """Raises InputError for an option that would read a file or standard input of the server."""
    for name in _PATHS:
        value = options.get(name)
        if not isinstance(value, str):
            continue
        text = value.strip()
        names_file = text == "-" or "/" in text or "\\" in text or "\0" in text
        names_file |= name == "phases" and "=" not in text
        if names_file or text.lower().endswith((".json", ".yaml", ".yml")) or name == "from_launch":
            raise InputError(
                f"{name} {text[:60]!r} would read a file of the server: send its content"
                + (" as an object" if name in INLINE else ""),
                field=name,
                value=text[:60],
            )
        if name in ("model", "cluster", "calibration") and Path(text).exists():
            raise InputError(f"{name} {text[:60]!r} is no name that is known", field=name)
