"""Reads measured runs: JSON lines, one object a run (fields: benchmarks/measured/README.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from layoutopt.errors import InputError

MAX_BYTES = 256 * 2**20
"""A larger file is not a file of records; the shipped ones are under 4 MiB."""

SECTIONS = ("model", "hardware", "training", "layout", "measured")
"""Objects that every record has."""

_COUNTS = {
    "model": ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"),
    "hardware": ("gpus", "gpus_per_node", "nvlink_domain"),
    "training": ("seq_len", "global_batch", "micro_batch"),
    "layout": ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "shard_degree"),
}
_AMOUNTS = {
    "hardware": ("internode_gbps_per_gpu",),
    "measured": ("step_time_s", "tokens_per_s_per_gpu", "peak_memory_gib"),
}
_CHOICES: dict[str, dict[str, tuple[object, ...]]] = {
    "layout": {
        "zero_stage": (0, 1, 2, 3),
        "recompute": ("none", "selective", "full"),
        "sequence_parallel": (True, False),
        "flash_attention": (True, False),
    },
    "measured": {
        "memory_kind": ("allocated", "reserved", "nvidia-smi"),
        "oom": (True, False),
    },
}


@dataclass(frozen=True)
class Record:
    """One measured run as its source states it. A value that is not given is None."""

    id: str
    source_file: str
    """File name without folders."""
    line: int
    framework: str
    notes: str
    model: Mapping[str, Any]
    hardware: Mapping[str, Any]
    training: Mapping[str, Any]
    layout: Mapping[str, Any]
    measured: Mapping[str, Any]
    source: str = ""
    """Where the figures were published, in the record's words."""


def read_records(paths: Sequence[str | Path]) -> list[Record]:
    """All records of ``paths``, in order.

    Raises InputError, with file and line, for what is not a record, and for an id given twice.
    """
    if not paths:
        raise InputError("no file of records was given", field="records", value=None)
    records: list[Record] = []
    seen: dict[str, str] = {}
    for path in paths:
        for record in _read_file(Path(path)):
            place = f"{path}, line {record.line}"
            if record.id in seen:
                raise InputError(
                    f"record id {record.id!r} stands in {seen[record.id]} and again in {place}",
                    field="id",
                    value=record.id,
                )
            seen[record.id] = place
            records.append(record)
    return records


def _read_file(path: Path) -> list[Record]:
    records = [
        _record(line, path, number)
        for number, line in enumerate(_text(path).split("\n"), start=1)
        if line.strip()
    ]
    if not records:
        raise InputError(f"{path} holds no record", field="records", value=str(path))
    return records


def _text(path: Path) -> str:
    def refuse(why: str) -> NoReturn:
        raise InputError(f"{path} {why}", field="records", value=str(path)) from None

    try:
        if path.is_dir():
            refuse("is a directory, not a file of JSON lines")
        if path.stat().st_size > MAX_BYTES:
            refuse(f"has {path.stat().st_size} bytes; at most {MAX_BYTES} are read")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        refuse("is not UTF-8 text")
    except (OSError, ValueError) as error:
        refuse(f"cannot be read: {getattr(error, 'strerror', None) or error}")


def _record(line: str, path: Path, number: int) -> Record:
    place = f"{path}, line {number}"
    row = _json_object(line, place)
    for name in SECTIONS:
        if not isinstance(row.get(name), dict):
            _refuse(place, name, row.get(name), f"must be an object{_nearest_hint(name, row)}")
    for name in ("id", "framework", "notes", "source"):
        if row.get(name) is not None and not isinstance(row[name], str):
            _refuse(place, name, row[name], "must be text")
    _check_values(row, place)
    return Record(
        id=row.get("id") or f"{path.name}:{number}",
        source_file=path.name,
        line=number,
        framework=row.get("framework") or "",
        notes=row.get("notes") or "",
        source=row.get("source") or "",
        **{name: row[name] for name in SECTIONS},
    )


def _json_object(line: str, place: str) -> dict[str, Any]:
    def not_finite(word: str) -> NoReturn:
        raise InputError(f"{place}: {word} is not a number", field="records", value=word)

    try:
        row = json.loads(line, parse_constant=not_finite)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{place}: not a JSON object ({error})", field="records", value=line[:80]
        ) from None
    if not isinstance(row, dict):
        _refuse(place, "records", row, "must be one JSON object a line")
    return row


def _nearest_hint(name: str, row: Iterable[str]) -> str:
    near = get_close_matches(name, list(row), n=1)
    return f" (did you mean {near[0]!r}?)" if near and near[0] != name else ""


def _check_values(row: dict[str, Any], place: str) -> None:
    for section, keys in _COUNTS.items():
        for key in keys:
            value = row[section].get(key)
            if value is not None and not _is_count(value):
                _refuse(place, f"{section}.{key}", value, "must be a whole number above 0")
    for section, keys in _AMOUNTS.items():
        for key in keys:
            value = row[section].get(key)
            if value is not None and not _is_amount(value):
                _refuse(place, f"{section}.{key}", value, "must be a finite number above 0")
    for section, choices in _CHOICES.items():
        for key, allowed in choices.items():
            value = row[section].get(key)
            if value is not None and not _is_choice(value, allowed):
                _refuse(place, f"{section}.{key}", value, f"must be one of {allowed}", allowed)
    _check_use(row["measured"].get("use"), place)


def _check_use(use: object, place: str) -> None:
    if use is not None and not isinstance(use, dict):
        _refuse(place, "measured.use", use, 'must be an object such as {"time": false, "why": ""}')


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        # `experts: null` is fine, `moe: true` is not a count.
        return False
    return isinstance(value, int) and 0 < value < 10**15


def _is_amount(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]


def _is_choice(value: object, allowed: tuple[object, ...]) -> bool:
    # True == 1 in Python: a zero_stage of `true` is not 1.
    return any(type(value) is type(choice) and value == choice for choice in allowed)


def _refuse(
    place: str, field: str, value: object, rule: str, nearest: tuple[object, ...] = ()
) -> NoReturn:
    raise InputError(
        f"{place}: {field} {rule}, not {_short(value)}", field=field, value=value, nearest=nearest
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
