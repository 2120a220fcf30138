"""JSON Schemas (draft 2020-12) of requests and answers, one file each."""

from __future__ import annotations

from importlib import resources

from layoutopt.errors import InputError
from layoutopt.nearest import did_you_mean, nearest_names


def schema_names() -> tuple[str, ...]:
    """``request``, ``plan``, ``error``, ``validation`` and the rest, by name."""
    files = resources.files("layoutopt.schema").iterdir()
    return tuple(sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json")))


def schema_text(name: str) -> str:
    """The schema called ``name`` (``plan``, or ``layoutopt.plan/1``) as JSON text."""
    known = schema_names()
    short = name.removeprefix("layoutopt.").removesuffix("/1").removesuffix(".json").lower()
    if short not in known:
        close = nearest_names(name, known) or known
        raise InputError(
            f"no schema is called {name!r}{did_you_mean(close)}",
            field="name",
            value=name,
            nearest=close,
        )
    return resources.files("layoutopt.schema").joinpath(f"{short}.json").read_text("utf-8")
