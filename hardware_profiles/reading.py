"""Reading YAML that a person wrote: sizes, duplicate keys, wrong types, units, misspelt keys.

Every refusal is a ProfileError that names the file, the field, the value and the nearest legal one.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import yaml

from layoutopt import units
from layoutopt.errors import ProfileError
from layoutopt.hardware_profiles.schema import MAX_GPUS, Figure
from layoutopt.nearest import did_you_mean, nearest_names

MAX_BYTES = 2**20
"""No profile is near this size; reading stops here."""

_FIGURE_KEYS = ("value", "source", "inferred", "note")


@dataclass(frozen=True)
class Kind:
    """What sort of figure a key holds: its SI unit, its owner, how it is read."""

    unit: str
    per: str
    read: Callable[[Any], float | int]


def read_file(path: Path, most: int = MAX_BYTES) -> str:
    """Text of a user's file, refused when it is a directory, too large or not UTF-8."""
    if path.is_dir():
        raise ProfileError(f"{path} is a directory, not a file", field="cluster", value=str(path))
    try:
        with path.open("rb") as stream:
            raw = stream.read(most + 1)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise ProfileError(message, field="cluster", value=str(path)) from None
    if len(raw) > most:
        raise _too_large(str(path), most)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text (byte {error.start})"
        raise ProfileError(message, field="cluster", value=str(path)) from None


def read_stream(stream: TextIO, most: int = MAX_BYTES) -> str:
    """Text of standard input, at most so many characters."""
    try:
        text = stream.read(most + 1)
    except UnicodeDecodeError:
        raise ProfileError("standard input is not UTF-8 text", field="cluster") from None
    if len(text) > most:
        raise _too_large("standard input", most)
    return text


def refuse_long(text: str, where: str) -> None:
    """Raises ProfileError for a text that is longer than any profile."""
    if len(text) > MAX_BYTES:
        raise _too_large(where, MAX_BYTES)


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """A mapping from YAML or JSON text, refused when it is empty, a list or has duplicate keys."""
    try:
        data = yaml.load(text, Loader=_Loader)
    except _DuplicateKeyError as error:
        raise ProfileError(f"{where}: {error.message}", field=error.key) from None
    except yaml.YAMLError as error:
        raise ProfileError(f"{where} is not YAML: {_one_line(error)}") from None
    except (RecursionError, ValueError) as error:
        # ValueError: a date or number that YAML's own rules accept and Python's do not.
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ProfileError(f"{where} cannot be read: {reason}") from None
    if data is None:
        raise ProfileError(f"{where} is empty")
    if not isinstance(data, dict):
        raise ProfileError(f"{where} holds {_a(data)}; keys with values are needed")
    return data


@dataclass
class Fields:
    """The keys of one mapping, taken one by one; ``done`` refuses those that nobody took."""

    data: Mapping[str, Any]
    where: str
    path: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    must_have_source: bool = False
    figures: list[Figure] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def has(self, key: str) -> bool:
        """The key is there and not null."""
        return self.data.get(key) is not None

    def take(self, key: str, *, required: bool = False) -> Any:
        """The raw value; None where it is missing."""
        self.taken.append(key)
        value = self.data.get(key)
        if value is None and required:
            near = nearest_names(key, [str(k) for k in self.data if k not in self.taken], 1)
            hint = f" ({near[0]} is there)" if near else ""
            raise self.error(key, f"is missing{hint}", near)
        return value

    def text(self, key: str, *, required: bool = False) -> str | None:
        """A string of at most 200 characters."""
        value = self.take(key, required=required)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or len(value) > 2000:
            raise self.error(key, f"is {_a(value)}; text is needed", value=value)
        return value

    def mapping(self, key: str, *, required: bool = False) -> Fields | None:
        """A nested mapping, which shares sources and figures with this one."""
        value = self.take(key, required=required)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"is {_a(value)}; keys with values are needed", value=value)
        return self.nested(value, key)

    def items(self, key: str) -> list[Fields]:
        """A list of mappings; empty where the key is missing."""
        value = self.take(key)
        if value is None:
            return []
        if not isinstance(value, list) or not value:
            raise self.error(key, f"is {_a(value)}; a list with entries is needed", value=value)
        for n, one in enumerate(value):
            if not isinstance(one, dict):
                raise self.error(f"{key}[{n}]", f"is {_a(one)}; keys with values are needed")
        return [self.nested(one, f"{key}[{n}]") for n, one in enumerate(value)]

    def nested(self, data: Mapping[str, Any], key: str) -> Fields:
        """Fields of ``data`` under ``key``."""
        path = self._path(key)
        return Fields(data, self.where, path, self.sources, self.must_have_source, self.figures)

    def figure(self, key: str, kind: Kind, *, required: bool = False) -> float | int | None:
        """A number in SI units, written plainly or as ``{value, source}``; kept for display."""
        raw = self.take(key, required=required)
        if raw is None:
            return None
        value, source = self._split(key, raw)
        number = self._number(key, value, kind)
        self.figures.append(
            Figure(
                field=self._path(key),
                value=str(value),
                number=float(number),
                unit=kind.unit,
                per=kind.per,
                source=source,
            )
        )
        return number

    def done(self) -> None:
        """Refuses keys that nobody took, naming the nearest that would have been."""
        for key in self.data:
            if key not in self.taken:
                near = nearest_names(str(key), self.taken, 3)
                raise self.error(str(key), f"is not known{did_you_mean(near)}", near)

    def error(
        self, key: str, message: str, nearest: Iterable[object] = (), value: object = None
    ) -> ProfileError:
        """The refusal, with file and field in front."""
        path = self._path(key)
        return ProfileError(
            f"{self.where}: {path} {message}",
            field=path,
            value=_presentable(value),
            nearest=tuple(nearest),
        )

    def _number(self, key: str, value: Any, kind: Kind) -> float | int:
        try:
            return kind.read(value)
        except ValueError as error:
            raise self.error(key, f"is wrong: {error}", value=value) from None

    def _split(self, key: str, raw: Any) -> tuple[Any, str | None]:
        """Value and source of a figure; a shipped one without a source is refused."""
        if not isinstance(raw, dict):
            if self.must_have_source:
                raise self.error(key, "has no source", value=raw)
            return raw, None
        inner = self.nested(raw, key)
        value = inner.take("value", required=True)
        name = inner.text("source", required=self.must_have_source)
        remarks = [f"{k}: {v}" for k in _FIGURE_KEYS[2:] if (v := inner.text(k))]
        inner.done()
        if name is None:
            return value, None
        if " " not in name and name not in self.sources:
            near = nearest_names(name, self.sources)
            raise self.error(key, f"names the source {name}, which is not under sources", near)
        return value, "; ".join([self.sources.get(name, name), *remarks])

    def _path(self, key: str) -> str:
        shown = key if len(key) <= 60 else key[:60] + "..."
        return f"{self.path}.{shown}" if self.path else shown


def whole(value: Any) -> int:
    """A count: an integer from 1 to MAX_GPUS, no boolean, no string."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{_a(value)}, but a whole number is needed")
    if not 1 <= value <= MAX_GPUS:
        raise ValueError(f"{_REPR.repr(value)} is not between 1 and {MAX_GPUS:,}")
    return value


def plain(value: Any) -> float:
    """A finite number from 0 up, with no unit (a rate per hour, a price)."""
    if isinstance(value, str) and len(value) <= 40 and value.isascii():
        # YAML 1.1 takes 2e-5 for text: only 2.0e-5 is a number there.
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{_a(value)}, but a number is needed")
    if not 0 <= value < 1e12 or not math.isfinite(value):
        raise ValueError(f"{_REPR.repr(value)} is not a number between 0 and 1e12")
    return float(value)


def factor(value: Any) -> float:
    """A finite number from 1 up (oversubscription)."""
    number = plain(value)
    if number < 1:
        raise ValueError(f"{number:g} is less than 1 (1 is none, 2 is 2:1)")
    return number


def watts(value: Any) -> float:
    """``1275`` or ``"1.3kW"``: the key itself says watts."""
    number = units.parse_power(value) if isinstance(value, str) else plain(value)
    if number == 0:
        raise ValueError("it is zero")
    return number


def _with_unit(parse: Callable[[str], float], *, zero: bool = False) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"{_a(value)}, but a number with a unit is needed")
        number = parse(str(value))
        if number == 0 and not zero:
            raise ValueError(f"{value!r} is zero")
        return number

    return read


COUNT = Kind("", "", whole)
BYTES = Kind("bytes", "per GPU", lambda v: int(_with_unit(units.parse_bytes)(v)))
MEMORY_BANDWIDTH = Kind("bytes/s", "per GPU", _with_unit(units.parse_bandwidth))
LINK = Kind("bytes/s", "per GPU, one direction, all peers together", MEMORY_BANDWIDTH.read)
PEER = Kind("bytes/s", "per GPU, one direction, to one peer", MEMORY_BANDWIDTH.read)
ADAPTER = Kind("bytes/s", "per GPU, one direction", MEMORY_BANDWIDTH.read)
NODE_ADAPTERS = Kind("bytes/s", "per node, one direction", MEMORY_BANDWIDTH.read)
STORAGE = Kind("bytes/s", "all nodes together", MEMORY_BANDWIDTH.read)
HOST_COPY = Kind("bytes/s", "per GPU, to its host's memory", MEMORY_BANDWIDTH.read)
NODE_STORAGE = Kind("bytes/s", "per node", MEMORY_BANDWIDTH.read)
FLOPS = Kind("FLOP/s", "per GPU, dense", _with_unit(units.parse_flops))
MEASURED_FLOPS = Kind("FLOP/s", "per GPU, measured", FLOPS.read)
WATTS = Kind("W", "per GPU", _with_unit(units.parse_power))
PLAIN_WATTS = Kind("W", "per GPU", watts)
LATENCY = Kind("s", "per message", _with_unit(units.parse_seconds, zero=True))
RECOVERY = Kind("s", "per failure", LATENCY.read)
OVERSUBSCRIPTION = Kind("", "", factor)
FAILURES = Kind("1/h", "per GPU", plain)
GPU_PRICE = Kind("USD/h", "per GPU", plain)
NODE_PRICE = Kind("USD/h", "per node", plain)


class _DuplicateKeyError(Exception):
    def __init__(self, key: str, line: int) -> None:
        self.key = key
        self.message = f"the key {key} stands twice, the second time in line {line}"
        super().__init__(self.message)


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys, which YAML would silently overwrite."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key.value, str) else None
            if name is not None and name in seen:
                raise _DuplicateKeyError(name, key.start_mark.line + 1)
            seen.add(name)
        result: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return result


_REPR = reprlib.Repr()
_REPR.maxlevel = 2  # YAML anchors fold gigabytes into a line; unfolded two levels deep at most


def _presentable(value: object) -> object:
    """A value that may stand in a message or in JSON: short, and no NaN or infinity."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and abs(value) < 1e18:
        return value
    return value if isinstance(value, str) and len(value) <= 200 else _REPR.repr(value)[:200]


def _too_large(where: str, most: int) -> ProfileError:
    return ProfileError(f"{where} is larger than {most // 2**20} MiB", field="cluster")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _a(value: object) -> str:
    """What a value is, in the words of someone who wrote YAML."""
    for kind, word in ((bool, "true or false"), (dict, "a mapping"), (list, "a list")):
        if isinstance(value, kind):
            return word
    return f"{_REPR.repr(value)}"
