"""Flags of a shell script, literal or through plain variables and arrays; nothing is run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from layoutopt.errors import InputError

_ASSIGNED = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")


@dataclass(frozen=True)
class Flags:
    """Options by name, with the words that follow each; the last of a name counts."""

    values: dict[str, tuple[str, ...]]
    words: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether the option stands there."""
        return name in self.values

    def text(self, name: str) -> str | None:
        """The option's one value; None where the option is absent."""
        if name not in self.values:
            return None
        values = self.values[name]
        if not values or "$" in values[0]:
            shown = values[0] if values else "nothing"
            raise InputError(
                f"{name} is {shown}: write its value, or assign the variable in the script",
                field=name,
                value=shown,
            )
        return values[0]

    def count(self, name: str, default: int | None = None) -> int | None:
        """The option's value as a whole number."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError as error:
            raise InputError(
                f"{name} is {text!r}, not a whole number", field=name, value=text
            ) from error


def read_flags(text: str) -> Flags:
    """The options of a script or an argument line, ``--name value`` or ``--name=value``."""
    words = _words(text)
    found: dict[str, tuple[str, ...]] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[name] = (value,) if equals else ()
        elif name is not None:
            found[name] = (*found[name], word)
    return Flags(found, tuple(words))


def _words(text: str) -> list[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    words: list[str] = []
    known: dict[str, str] = {}
    for line in joined.splitlines():
        try:
            parts = shlex.split(line, comments=True)
        except ValueError:
            continue  # a quote that spans lines: prose of the script, not flags
        for part in parts:
            assigned = _ASSIGNED.match(part)
            if assigned and not part.startswith("--"):
                name, value = assigned.groups()
                if not value.startswith("("):
                    known[name] = _filled(value, known)
                    continue
                part = value[1:]
            closes = part.endswith(")") and part.count(")") > part.count("(")
            word = _filled(part[:-1] if closes else part, known)
            # A variable may hold several options: TP_ARGS="--tensor-model-parallel-size 8 ..."
            words += word.split() if "$" in part and " " in word else [word]
    return [word for word in words if word and word not in ("(", ")")]


def _filled(word: str, known: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return known.get(name, match[3] if match[3] is not None else match[0])

    return _VARIABLE.sub(value, word)
