"""The keys of a Hugging Face ``config.json``, read one by one with checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layoutopt.costmodel.models.checks import LIMITS, a_count, missing, refuse
from layoutopt.costmodel.models.families import Family


class Keys:
    """The keys of one config, read with checks; knows the file for messages."""

    def __init__(self, config: Mapping[str, Any], file: str, family: Family) -> None:
        self.config, self.file, self.family = config, file, family

    def find(self, *names: str) -> tuple[str, Any]:
        """The first of ``names`` with a value (null is none), else the class's default."""
        for name in names:
            if self.config.get(name) is not None:
                return name, self.config[name]
        for name in names:  # null overrides a class's default, absence does not
            if name in self.family.defaults and name not in self.config:
                return name, self.family.defaults[name]
        return names[0], None

    def count(self, kind: str, *names: str, low: int = 1) -> int | None:
        """A whole number within low and the limit of its kind, or None where not given."""
        name, value = self.find(*names)
        return None if value is None else a_count(self.file, name, value, low, LIMITS[kind])

    def need(self, kind: str, *names: str) -> int:
        """As ``count``, for a key without which there is no architecture."""
        value = self.count(kind, *names)
        if value is None:
            missing(self.file, names[0], self.config, names)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false; null and absent are ``default``."""
        value = self.find(name)[1]
        if value is None:
            return default
        if not isinstance(value, bool):
            refuse(self.file, name, value, "neither true nor false", (True, False))
        return value

    def listed(self, name: str) -> list[Any] | None:
        """A list, or None where not given."""
        value = self.find(name)[1]
        if value is not None and not isinstance(value, list):
            refuse(self.file, name, value, "not a list")
        return value
