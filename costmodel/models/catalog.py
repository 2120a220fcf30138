"""The models we know by name, each with its source."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from typing import Any

from layoutopt.costmodel.model import Model
from layoutopt.costmodel.models.huggingface import model_from_config
from layoutopt.errors import InputError

_DATA = "data"


def _read(name: str) -> str:
    folder = resources.files("layoutopt.costmodel.models").joinpath(_DATA)
    return folder.joinpath(name).read_text("utf-8")


@lru_cache(maxsize=1)
def _rows() -> dict[str, dict[str, Any]]:
    """Name to row: published configs first, then architectures in our own field names."""
    rows: dict[str, dict[str, Any]] = {}
    for file in ("published.jsonl", "architectures.jsonl"):
        for line in _read(file).splitlines():
            row: dict[str, Any] = json.loads(line)
            rows[row["name"]] = row
    return rows


@lru_cache(maxsize=1)
def size_table() -> dict[str, str]:
    """Sizes as people write them ("405B") to the catalogue name that stands for each."""
    table: dict[str, str] = json.loads(_read("sizes.json"))["table"]
    return table


def model_names() -> tuple[str, ...]:
    """Every catalogue name, in the order of the data files."""
    return tuple(_rows())


@lru_cache(maxsize=512)
def load_model(name: str) -> Model:
    """The catalogue entry called exactly ``name``; InputError with the nearest names if none."""
    row = _rows().get(name)
    if row is None:
        raise unknown(name)
    if "config" in row:
        model = model_from_config(row["config"], name, f"catalogue entry {name}")
        return model.model_copy(update={"source": row["source"]})
    return Model(name=name, source=row["source"], **row["model"])


def stated_params(name: str) -> int | None:
    """Parameters that the source itself states, where it does (often rounded)."""
    row = _rows()[name]
    value: int | None = row.get("total_params", row.get("stated_params"))
    return value


def published_facts() -> tuple[dict[str, Any], ...]:
    """Rows whose parameters were counted in the published implementation, with the counts."""
    return tuple(row for row in _rows().values() if "counted_by" in row)


def simplify(text: str) -> str:
    """Letters and digits alone, lower case: what two spellings of a name have in common."""
    return re.sub(r"[^a-z0-9]+", "", text.lower())


_TAILS = ("instruct", "base", "chat", "hf", "it", "pretrain", "pt", "v01", "v03")


@lru_cache(maxsize=1)
def _spellings() -> dict[str, str]:
    """Simplified spelling to catalogue name; a name's own spelling beats another's alias."""
    spellings: dict[str, str] = {}
    aliases: dict[str, str] = dict(json.loads(_read("sizes.json"))["aliases"])
    for name, row in _rows().items():
        aliases.update(dict.fromkeys(row.get("aliases", ()), name))
        if row.get("hf_id"):
            aliases[row["hf_id"].split("/")[-1]] = name
    for alias, name in aliases.items():
        spellings[simplify(alias.split("/")[-1])] = name
    for name in _rows():
        spellings[simplify(name)] = name
    return spellings


def match_name(text: str) -> str | None:
    """The catalogue name that ``text`` spells, or None.

    An organisation before a slash, a leading ``meta`` and tails like ``Instruct`` or ``hf`` are
    left aside; dashes, dots and case do not count.
    """
    spellings = _spellings()
    wanted = simplify(text.strip().split("/")[-1])
    if not wanted:
        return None
    for start in (wanted, wanted.removeprefix("meta")):
        stem = start
        while stem not in spellings:
            tail = next((t for t in _TAILS if stem.endswith(t) and len(stem) > len(t)), None)
            if tail is None:
                break
            stem = stem[: -len(tail)]
        if stem in spellings:
            return spellings[stem]
    return None


def nearest_names(text: str, most: int = 5) -> tuple[str, ...]:
    """Catalogue names that look most like ``text``, best first (may be empty)."""
    wanted, spellings = simplify(text.split("/")[-1]), _spellings()
    close = difflib.get_close_matches(wanted, list(spellings), n=3 * most, cutoff=0.5)
    return tuple(dict.fromkeys(spellings[spelling] for spelling in close))[:most]


def closest(text: str, among: Iterable[str]) -> tuple[str, ...]:
    """Up to three of ``among`` that look like ``text``, best first."""
    return tuple(difflib.get_close_matches(text, list(among), n=3, cutoff=0.6))


def unknown(text: str) -> InputError:
    """The error for a model that is neither a name nor a size."""
    near = nearest_names(text)
    shown = text if len(text) <= 60 else text[:57] + "..."
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return InputError(
        f"unknown model {shown!r}: no catalogue name, size (such as 70B) or file{hint}",
        field="model",
        value=text,
        nearest=near or tuple(size_table()),
    )
