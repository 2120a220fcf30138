"""What a sweep asks for: a YAML file with axes, zipped axes, fixed options and a filter.

    axes: {gpus: {pow2: [64, 4096]}, gpu: [h100, b200]}
    zip: [{model: [8B, 70B], seq_len: [8192, 4096]}]
    fixed: {precision: bf16, fix.tp: 8}
    filter: "gpus >= 64 and model != '8B'"

Names are those of the command line. Axes are crossed; the lists of one zip entry advance together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from layoutopt.errors import InputError, ProfileError
from layoutopt.hardware_profiles.reading import parse_yaml, read_file
from layoutopt.inputs.options import SOLVE_OPTIONS
from layoutopt.nearest import did_you_mean, nearest_names
from layoutopt.optimizer.question import KEYS
from layoutopt.sweep.condition import Condition, parse
from layoutopt.sweep.values import PerGpu, read_values

MOST_POINTS = 10_000_000
FIX = "fix."
_NOT_OF_A_ROW = ("workers", "why_not", "top", "pareto", "sensitivity")
OPTIONS = tuple(name for name in SOLVE_OPTIONS if name not in _NOT_OF_A_ROW)
"""Options of ``solve`` that a sweep can vary or fix; the rest does not change an answer's row."""
NAMES = (*OPTIONS, *(FIX + axis for axis in KEYS))
"""The same with the axes that ``--fix`` takes, one by one: ``fix.tp``."""


class SpecFile(BaseModel):
    """The keys of a spec as written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    axes: dict[str, Any] = Field(default_factory=dict)
    zip: list[dict[str, Any]] = Field(default_factory=list)
    fixed: dict[str, Any] = Field(default_factory=dict)
    filter: str | None = None


@dataclass(frozen=True)
class Block:
    """Names whose values advance together: one of an axis, several of a zip entry."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Spec:
    """A sweep that can be expanded: blocks to be crossed, and what holds for all points."""

    blocks: tuple[Block, ...]
    fixed: dict[str, Any]
    condition: Condition | None
    text: str
    """The file and the settings as they were given, for the record."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of what varies, in their order."""
        return tuple(name for block in self.blocks for name in block.names)

    @property
    def crossed(self) -> int:
        """How many combinations there are before the filter."""
        return prod(len(block.rows) for block in self.blocks)

    def combinations(self) -> Iterator[dict[str, Any]]:
        """The values of each point that passes the filter, by name; the last axis runs fastest."""
        for rows in product(*(block.rows for block in self.blocks)):
            values = dict(self.fixed)
            for block, row in zip(self.blocks, rows, strict=True):
                values.update(zip(block.names, row, strict=True))
            if self.condition is None or self.condition.holds(values):
                yield values


def load_spec(path: str | Path | None, settings: Sequence[str] = ()) -> Spec:
    """The spec of a file, with ``--set name=a,b`` on top; either can be absent, not both."""
    if path is None and not settings:
        raise InputError(
            "the sweep is missing: name a YAML file, or use --set gpus=64,128", field="spec"
        )
    try:
        data = parse_yaml(read_file(Path(path)), str(path)) if path is not None else {}
    except ProfileError as error:
        raise InputError(error.message, field="spec", value=error.value) from None
    written = dict(data)
    for setting in settings:
        _set(written, setting)
    return read_spec(written)


def read_spec(data: Mapping[str, Any]) -> Spec:
    """A spec from its keys; raises InputError naming the axis for anything wrong in it."""
    try:
        file = SpecFile.model_validate(dict(data))
    except ValidationError as error:
        raise _refused_key(error) from None
    file = _snake_case(file)
    blocks = [*(_axis(name, given) for name, given in file.axes.items())]
    blocks += [_zipped(entry) for entry in file.zip]
    fixed = {name: _fixed(name, value) for name, value in file.fixed.items()}
    _refuse_unknown([name for block in blocks for name in block.names], "axis")
    _refuse_unknown(fixed, "fixed option")
    _refuse_twice([*(name for block in blocks for name in block.names), *fixed])
    condition = parse(file.filter, NAMES) if file.filter is not None else None
    _refuse_absent(condition, {*fixed, *(name for block in blocks for name in block.names)})
    spec = Spec(tuple(blocks), fixed, condition, _text(file))
    if spec.crossed > MOST_POINTS:
        raise InputError(
            f"the axes make {spec.crossed:,} points; at most {MOST_POINTS:,} are solved",
            field="axes",
            value=spec.crossed,
        )
    return spec


def _snake_case(file: SpecFile) -> SpecFile:
    """``seq-len`` as on the command line is the same name as ``seq_len``."""
    return SpecFile(
        axes={_name(key): value for key, value in file.axes.items()},
        zip=[{_name(key): value for key, value in entry.items()} for entry in file.zip],
        fixed={_name(key): value for key, value in file.fixed.items()},
        filter=file.filter,
    )


def _name(key: str) -> str:
    return key.removeprefix("--").replace("-", "_")


def _axis(name: str, given: Any) -> Block:
    return Block((name,), tuple((value,) for value in read_values(given, name)))


def _zipped(entry: dict[str, Any]) -> Block:
    """The columns of one zip entry, all of the same length; repeated values stay."""
    columns = {
        name: given if isinstance(given, list) else list(read_values(given, name))
        for name, given in entry.items()
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(
            f"zip: lists have to be equally long; {shown or 'the entry is empty'}",
            field=next(iter(lengths), "zip"),
            value=str(lengths),
        )
    for name, column in columns.items():
        read_values(column, name)
        if name == "global_batch":
            columns[name] = [read_values(value, name)[0] for value in column]
    return Block(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _fixed(name: str, value: Any) -> Any:
    if name == "global_batch" and isinstance(value, Mapping):
        batches = read_values(value, name)
        if len(batches) > 1:
            raise InputError(f"fixed {name} has {len(batches)} values; make it an axis", field=name)
        return batches[0]
    return value


def _set(data: dict[str, Any], setting: str) -> None:
    """``gpus=1024,2048``: the axis of that name, wherever the file had it."""
    name, equals, text = (part.strip() for part in setting.partition("="))
    name = _name(name)
    values = [part.strip() for part in text.split(",") if part.strip()]
    if not equals or not name or not values:
        raise InputError(
            f"--set {setting!r} is not NAME=VALUE,VALUE, as in gpus=64,128",
            field="set",
            value=setting,
        )
    for entry in data.get("zip") or []:
        if isinstance(entry, dict) and name in entry:
            raise InputError(
                f"--set {name}: the spec zips it with {', '.join(k for k in entry if k != name)}",
                field=name,
                value=setting,
            )
    if isinstance(fixed := data.get("fixed"), dict):
        data["fixed"] = {key: value for key, value in fixed.items() if key != name}
    if isinstance(axes := data.get("axes") or {}, dict):
        data["axes"] = {**axes, name: values}


def _refuse_unknown(names: Sequence[str] | Mapping[str, Any], what: str) -> None:
    for name in names:
        if name not in NAMES:
            close = nearest_names(name, NAMES)
            hint = did_you_mean(close) or f"; names are {', '.join(OPTIONS)}"
            raise InputError(
                f"no option is called {name!r}, so it can be no {what}{hint}",
                field=name,
                value=name,
                nearest=close,
            )


def _refuse_twice(names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"{twice} is given twice: once an axis, a zip or fixed", field=twice)
    if "fix" in names and any(name.startswith(FIX) for name in names):
        raise InputError("fix and fix.AXIS are both given; use one of them", field="fix")


def _refuse_absent(condition: Condition | None, there: set[str]) -> None:
    """A filter on an option that the spec leaves to ``solve`` would compare with nothing."""
    missing = sorted(condition.names() - there) if condition else []
    if missing:
        raise InputError(
            f"filter: the spec gives no {missing[0]}; it gives {', '.join(sorted(there))}",
            field="filter",
            value=missing[0],
            nearest=nearest_names(missing[0], there),
        )


def _refused_key(error: ValidationError) -> InputError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    known = tuple(SpecFile.model_fields)
    if first["type"] == "extra_forbidden":
        close = nearest_names(where, known)
        hint = did_you_mean(close) or f"; keys are {', '.join(known)}"
        return InputError(f"spec has no key {where!r}{hint}", field=where, nearest=close)
    return InputError(
        f"spec: {where}: {first['msg'].lower()}", field=where, value=str(first["input"])[:200]
    )


def _text(file: SpecFile) -> str:
    import yaml

    kept = {key: value for key, value in file.model_dump().items() if value}
    return yaml.safe_dump(kept, sort_keys=False)


def shown(value: Any) -> str:
    """A value as the sweep's messages print it."""
    return repr(value) if isinstance(value, PerGpu) else str(value)
