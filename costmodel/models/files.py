"""Models from files: a Hugging Face ``config.json``, or YAML in our own field names."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from layoutopt.costmodel.model import Mamba, Mla, Model, Moe
from layoutopt.costmodel.models.catalog import closest
from layoutopt.costmodel.models.checks import (
    LIMITS,
    a_count,
    brief,
    check_model,
    divisors_near,
    plain,
    refuse,
)
from layoutopt.costmodel.models.huggingface import HEADS, HIDDEN, LAYERS, NESTED, imported
from layoutopt.costmodel.models.sizes import find_model
from layoutopt.errors import InputError, ProfileError
from layoutopt.hardware_profiles.reading import parse_yaml

MAX_BYTES = 2**20
"""No published config.json is near this size; reading stops here."""
STDIN = "standard input"
SUFFIXES = (".json", ".yaml", ".yml")
_PARTS: dict[str, type[Moe] | type[Mla] | type[Mamba]] = {
    "moe": Moe,
    "mla": Mla,
    "mamba": Mamba,
}
_NOISE = ("config", "model", "params")
"""File names that say nothing: the folder's is taken."""


def resolve_model(text: str, stdin: TextIO | None = None) -> tuple[Model, str | None]:
    """What ``--model`` means: a file, ``-`` for standard input, a catalogue name or a size.

    The note says what was taken where that is not obvious. Raises InputError (ProfileError for
    a file) with the field, the value and the nearest that would do.
    """
    text = text.strip()
    if text == "-" or text.lower().endswith(SUFFIXES):
        return _load(text, stdin)
    try:
        return find_model(text)
    except InputError:
        if not _is_there(text):
            raise
    return _load(text, stdin)


def load_model_file(path: str, stdin: TextIO | None = None) -> Model:
    """The model in a file, or on standard input for ``-``.

    A Hugging Face config (JSON) or our own field names (YAML or JSON), told apart by the keys.
    Raises ProfileError naming file, field, value and what would do.
    """
    return _load(path, stdin)[0]


def _load(path: str, stdin: TextIO | None) -> tuple[Model, str | None]:
    where = STDIN if path == "-" else path
    data = _parse(_read_stdin(stdin) if path == "-" else _read_file(path), path, where)
    fallback = "from-stdin" if path == "-" else _name_of(Path(path))
    if _is_ours(data):
        return _own(data, where, fallback), None
    return imported(data, _stated_name(data) or fallback, where)


def _is_there(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _read_file(path: str) -> str:
    """A file's text; refused when missing, a directory, too large or not UTF-8."""
    try:
        if Path(path).is_dir():
            inner = Path(path) / "config.json"
            near: tuple[str, ...] = (str(inner),) if inner.is_file() else ()
            hint = f"; did you mean {inner}?" if near else ""
            raise _error(f"{path} is a directory, not a file{hint}", path, near)
        with Path(path).open("rb") as stream:
            return _decode(stream.read(MAX_BYTES + 1), path)
    except FileNotFoundError:
        near = _neighbours(Path(path))
        hint = f"; there is {', '.join(near)}" if near else ""
        raise _error(f"no file {path}{hint}", path, near) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _error(f"{path[:200]!r} cannot be read: {reason}", path) from None


def _read_stdin(stdin: TextIO | None) -> str:
    try:
        text = (stdin or sys.stdin).read(MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise _error(f"{STDIN} is not UTF-8 text", "-") from None
    return _decode(text.encode("utf-8", "replace"), STDIN)


def _decode(raw: bytes, where: str) -> str:
    if len(raw) > MAX_BYTES:
        raise _error(f"{where} is larger than {MAX_BYTES // 2**20} MiB", where)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _error(f"{where} is not UTF-8 text (byte {error.start})", where) from None
    if not text.strip():
        raise _error(f"{where} is empty; a config.json or the fields of a model are needed", where)
    return text


def _error(message: str, value: str, nearest: tuple[object, ...] = ()) -> ProfileError:
    return ProfileError(message, field="model", value=value[:200], nearest=nearest)


def _neighbours(path: Path) -> tuple[str, ...]:
    """Model files next to a missing one whose names are close."""
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix.lower() in SUFFIXES]
    except (OSError, ValueError):
        return ()
    return tuple(str(path.parent / name) for name in closest(path.name, names))


def _parse(text: str, path: str, where: str) -> dict[str, Any]:
    """The keys of a file: JSON where it is named so or starts like it, else YAML."""
    if not (path.lower().endswith(".json") or text.lstrip().startswith(("{", "["))):
        return _parse_yaml(text, where)
    try:
        data = json.loads(text, object_pairs_hook=_no_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise _error(
            f"{where} is not JSON: {error.msg}, line {error.lineno} column {error.colno}", where
        ) from None
    except RecursionError:
        raise _error(f"{where} cannot be read: it is nested too deeply", where) from None
    except _TwiceError as error:
        raise ProfileError(f"{where}: {error}", field=error.key) from None
    except ValueError as error:
        raise _error(f"{where}: {error}", where) from None
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else brief(data)
        raise _error(f"{where} holds {kind}; an object with the keys of a model is needed", where)
    return data


def _parse_yaml(text: str, where: str) -> dict[str, Any]:
    try:
        return parse_yaml(text, where)
    except ProfileError as error:
        if error.field is None:
            raise _error(error.message, where) from None
        raise


class _TwiceError(ValueError):
    def __init__(self, key: str, first: object, second: object) -> None:
        self.key = key
        super().__init__(f"the key {key} stands twice ({brief(first)} and {brief(second)})")


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise _TwiceError(key, seen[key], value)
        seen[key] = value
    return seen


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number that a model has")


def _is_ours(data: dict[str, Any]) -> bool:
    """Our own field names, and none of Hugging Face's for the same figures."""
    theirs = ("model_type", "architectures", *NESTED, *LAYERS, *HIDDEN, *HEADS)
    return not any(key in data for key in theirs)


def _stated_name(data: dict[str, Any]) -> str | None:
    """The name that a config carries, without its organisation or path."""
    value = data.get("_name_or_path")
    if not isinstance(value, str):
        return None
    return value.rstrip("/").split("/")[-1][:100] or None


def _name_of(path: Path) -> str:
    if path.stem.lower() in _NOISE and path.resolve().parent.name:
        return path.resolve().parent.name
    return path.stem


def _own(data: dict[str, Any], where: str, name: str) -> Model:
    """A model in our own field names; strict: no text or booleans for counts."""
    for prefix, known, keys in _levels(data, where):
        for key in keys:
            if key not in known:
                near = closest(str(key), known)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ProfileError(
                    f"{where}: {prefix}{key} is not a field of a model{hint}",
                    field=f"{prefix}{key}",
                    nearest=near or tuple(known),
                )
            _refuse_nested(where, prefix, key, keys[key])
    try:
        model = Model.model_validate_json(
            json.dumps({"name": name, "source": where, **_llama_defaults(data, where), **data}),
            strict=True,
        )
    except (TypeError, ValueError) as error:
        raise _first_fault(error, where) from None
    return check_model(model, where)


def _levels(data: dict[str, Any], where: str) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """Prefix, known fields and given keys of the model and of its nested parts."""
    yield "", list(Model.model_fields), data
    for part, kind in _PARTS.items():
        inner = data.get(part)
        if inner is None:
            continue
        if not isinstance(inner, dict):
            refuse(where, part, inner, "not a set of keys", tuple(kind.model_fields))
        yield f"{part}.", list(kind.model_fields), inner


def _refuse_nested(where: str, prefix: str, key: str, value: object) -> None:
    """Lists and sets of keys where one figure belongs (YAML aliases can make them huge)."""
    if isinstance(value, list) or (isinstance(value, dict) and (prefix or key not in _PARTS)):
        refuse(where, f"{prefix}{key}", value, "not one figure or word")


def _llama_defaults(data: dict[str, Any], where: str) -> dict[str, Any]:
    """What a short file may leave out: heads of hidden/heads, a key/value head for each."""
    for field in ("layers", "hidden", "heads"):
        if data.get(field) is not None:
            a_count(where, field, data[field], 1, LIMITS[field])
    filled: dict[str, Any] = {"gated_mlp": True, "tied_embeddings": False}
    hidden, heads = data.get("hidden"), data.get("heads")
    if heads is None or hidden is None:
        return filled
    filled["kv_heads"] = heads
    if hidden % heads == 0:
        filled["head_dim"] = hidden // heads
    elif data.get("head_dim") is None:
        why = f"which does not divide hidden {hidden}, and there is no head_dim"
        refuse(where, "heads", heads, why, divisors_near(hidden, heads))
    return filled


def _first_fault(error: Exception, where: str) -> ProfileError:
    """The first thing wrong, in words; pydantic's own list is for programs."""
    if not isinstance(error, ValidationError):
        return _error(f"{where} holds a value that no model has: {error}", where)
    fault = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing":
        return ProfileError(f"{where}: no key {field}", field=field, nearest=(field,))
    value = fault.get("input")
    message = f"{where}: {field} is {brief(value)}: {fault['msg'].lower()}"
    return ProfileError(message, field=field, value=plain(value), nearest=_legal(fault))


def _legal(fault: Any) -> tuple[object, ...]:
    """What would do in place of a faulty value, as far as pydantic says."""
    if fault["type"] == "bool_type":
        return (True, False)
    expected = fault.get("ctx", {}).get("expected")
    if isinstance(expected, str):
        return tuple(re.findall(r"'([^']+)'", expected))
    value = fault.get("input")
    if fault["type"] == "int_type" and isinstance(value, str) and value.isdecimal():
        return (int(value[:18]),)
    return (1,) if fault["type"] == "int_type" else ()
