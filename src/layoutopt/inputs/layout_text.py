"""Layouts as text and as JSON: ``tp=8,pp=16,recompute=full:3`` and the same keys in an object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import groupby
from typing import Any

from layoutopt.costmodel.layout import CP_KINDS, RECOMPUTE, Layout
from layoutopt.errors import InputError
from layoutopt.inputs.numbers import MOST_BATCH, MOST_GPUS, read_count
from layoutopt.inputs.words import choice
from layoutopt.nearest import did_you_mean, nearest_names

SCHEDULES = ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-2p", "zbv")
AXIS_ORDER = ("tp", "cp", "ep", "dp", "pp")
MOST_STAGES = 100_000
DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp")
_TRUE = ("true", "on", "yes", "1")
_FALSE = ("false", "off", "no", "0")


def read_layout(value: object, field: str = "layout") -> dict[str, Any]:
    """The keys that a layout gives, as values of Layout's fields (plus gpus, global_batch).

    ``value`` is text (``key=value`` with commas, or a JSON object), a mapping, a Layout, or a
    whole answer of schema layoutopt.plan/1, whose ``layout`` is taken.
    """
    if isinstance(value, Layout):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, str):
        text = value.strip()
        value = _from_json(text, field) if text.startswith("{") else split_pairs(text, field)
    if not isinstance(value, Mapping):
        raise InputError(
            f"{field} is {type(value).__name__}; write tp=8,pp=16,... or an object of those keys",
            field=field,
            value=str(value),
        )
    if isinstance(value.get("schema"), str) and "layout" in value:
        return read_layout(value["layout"], field)
    return _read_keys(value, field)


def split_pairs(text: str, field: str) -> dict[str, str]:
    """``a=1,b=2`` as a mapping; refuses what has no ``=`` and what is said twice."""
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, word = (side.strip() for side in part.partition("="))
        if not equals or not key or not word:
            raise InputError(
                f"{field}: {part!r} is not key=value, as in tp=8", field=field, value=part
            )
        if key in pairs and pairs[key] != word:
            raise InputError(
                f"{field} says both {key}={pairs[key]} and {key}={word}", field=field, value=text
            )
        pairs[key] = word
    if not pairs:
        raise InputError(f"{field} is empty; write tp=8,pp=16,...", field=field, value=text)
    return pairs


def refuse_key(key: object, known: tuple[str, ...], field: str) -> InputError:
    """The refusal of a key that does not exist, with the nearest one that does."""
    close = nearest_names(str(key), known)
    hint = did_you_mean(close) or f"; keys are {', '.join(known)}"
    return InputError(
        f"{field} has no key {str(key)[:40]!r}{hint}",
        field=field,
        value=str(key)[:200],
        nearest=close,
    )


def layout_to_dict(layout: Layout, layers_per_stage: tuple[int, ...]) -> dict[str, Any]:
    """The JSON ``layout`` without gpus and global_batch: Layout's fields, texts as in --layout."""
    entry = {item.name: getattr(layout, item.name) for item in fields(layout)}
    entry["recompute"] = recompute_text(layout)
    del entry["recompute_layers"]
    entry["layers_per_stage"] = list(layers_per_stage)
    entry["pools_per_stage"] = list(layout.pools_per_stage) if layout.pools_per_stage else None
    return entry


def recompute_text(layout: Layout) -> str:
    """none, selective, full, full:3 for the first three layers of a stage, or full:4+3+2*0 for a
    number for each stage."""
    if layout.recompute_layers is None:
        return layout.recompute
    layers = layout.recompute_layers
    return f"{layout.recompute}:{layers if isinstance(layers, int) else stages_text(layers)}"


def stages_text(layers: tuple[int, ...] | list[int]) -> str:
    """``7+14*8+7``: runs of equal stages as count*value."""
    runs: list[list[int]] = []
    for value in layers:
        if runs and runs[-1][1] == value:
            runs[-1][0] += 1
        else:
            runs.append([1, value])
    return "+".join(str(value) if count == 1 else f"{count}*{value}" for count, value in runs)


def _from_json(text: str, field: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{field} is not JSON: {error}", field=field, value=text[:60]) from error
    return value


def _read_keys(pairs: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Each key's value by its own reader; null means not given."""
    layout: dict[str, Any] = {}
    for key, word in pairs.items():
        if key not in _READERS:
            raise refuse_key(key, tuple(_READERS), field)
        if word is not None:
            layout[key] = _READERS[key](word, f"{field}.{key}")
    if "recompute" in layout:
        layout["recompute"], layout["recompute_layers"] = layout["recompute"]
    return layout


def _degree(word: object, field: str) -> int:
    return read_count(word, field, most=MOST_GPUS)


def _batch(word: object, field: str) -> int:
    return read_count(word, field, most=MOST_BATCH)


def _zero_stage(word: object, field: str) -> int:
    return read_count(word, field, least=0, most=3)


def read_flag(word: object, field: str) -> bool:
    """true or false, as words or as JSON."""
    if isinstance(word, bool):
        return word
    return choice(str(word), field, _TRUE + _FALSE) in _TRUE


def _recompute(word: object, field: str) -> tuple[str, int | tuple[int, ...] | None]:
    """``full:3`` as ("full", 3), ``full:4+3+2*0`` as ("full", (4, 3, 0, 0))."""
    kind, colon, layers = str(word).partition(":")
    kind = choice(kind, field, RECOMPUTE)
    if not colon:
        return kind, None
    if kind != "full":
        raise InputError(
            f"{field} {str(word)!r}: only full takes a number of layers, as in full:3",
            field=field,
            value=str(word),
            nearest=(kind, f"full:{layers}"),
        )
    if "+" in layers or "*" in layers:
        return kind, _stages(layers, field)
    return kind, read_count(layers, field, most=MOST_STAGES)


def _stages(word: object, field: str) -> tuple[int, ...]:
    """``7+14*8+7`` (count*value), a list of integers, or one integer."""
    parts = word if isinstance(word, list | tuple) else str(word).split("+")
    layers: list[int] = []
    for part in parts:
        count, star, value = str(part).partition("*")
        times = read_count(count, field, most=MOST_STAGES) if star else 1
        if len(layers) + times > MOST_STAGES:
            raise InputError(
                f"{field} lists more than {MOST_STAGES:,} stages", field=field, value=str(word)[:60]
            )
        layers += [read_count(value if star else count, field, least=0, most=MOST_STAGES)] * times
    return tuple(layers)


def _axis_order(word: object, field: str) -> str:
    """Every axis once, innermost first."""
    text = str(word).strip().lower()
    if sorted(text.split("-")) != sorted(AXIS_ORDER):
        raise InputError(
            f"{field} {text[:60]!r} has to name {', '.join(AXIS_ORDER)} once each, innermost first",
            field=field,
            value=text[:60],
            nearest=("-".join(AXIS_ORDER),),
        )
    return text


def _pools(word: object, field: str) -> tuple[str, ...]:
    """``4*h100+12*a100`` (count*pool, either way round), or a list of names."""
    if isinstance(word, list | tuple):
        return tuple(str(name) for name in word)
    names: list[str] = []
    for part in str(word).split("+"):
        count, star, name = (side.strip() for side in part.partition("*"))
        if star and name.isdigit():
            count, name = name, count
        times = read_count(count, field, most=MOST_STAGES) if star else 1
        if len(names) + times > MOST_STAGES:
            raise InputError(
                f"{field} lists more than {MOST_STAGES:,} stages", field=field, value=str(word)[:60]
            )
        names += [name if star else count] * times
    return tuple(names)


def pools_text(pools: tuple[str, ...] | list[str]) -> str:
    """``4*h100+12*a100``: runs of equal pools as count*pool."""
    runs = [(name, len(list(same))) for name, same in groupby(pools)]
    return "+".join(name if count == 1 else f"{count}*{name}" for name, count in runs)


def _one_of(known: tuple[str, ...]) -> Callable[[object, str], str]:
    return lambda word, field: choice(str(word), field, known)


_READERS: dict[str, Callable[[object, str], Any]] = {
    **dict.fromkeys(DEGREES, _degree),
    "micro_batch": _batch,
    "microbatches": _batch,
    "zero_stage": _zero_stage,
    "shard_degree": _degree,
    "reshard": read_flag,
    "offload_optimizer": read_flag,
    "recompute": _recompute,
    "offload_activations": read_flag,
    "sequence_parallel": read_flag,
    "cp_kind": _one_of(CP_KINDS),
    "schedule": _one_of(SCHEDULES),
    "layers_per_stage": _stages,
    "axis_order": _axis_order,
    "pools_per_stage": _pools,
    "gpus": _degree,
    "global_batch": _batch,
}
LAYOUT_KEYS = tuple(_READERS)
