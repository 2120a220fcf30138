"""What an answer depends on besides its question: the version of the model."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from layoutopt import __version__

_ROOMS = ("costmodel", "optimizer")
_SUFFIXES = (".py", ".yaml", ".json", ".jsonl")


@lru_cache
def model_version() -> str:
    """The package's version and twelve hex digits over the cost model, its data and the solver.

    Hardware figures are left out: those that count stand in the question itself.
    """
    digest = hashlib.sha256(__version__.encode())
    for room in _ROOMS:
        for name, file in sorted(_files(resources.files("layoutopt").joinpath(room), room)):
            digest.update(name.encode())
            digest.update(file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def _files(folder: Traversable, name: str) -> list[tuple[str, Traversable]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _files(entry, f"{name}/{entry.name}")
        elif entry.name.endswith(_SUFFIXES):
            found.append((f"{name}/{entry.name}", entry))
    return found
