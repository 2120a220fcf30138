"""What was filled in for a person, and why: kept beside the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Filled:
    """One default: the option, the value it got, the reason in words."""

    option: str
    value: Any
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """The entry of ``request.filled``."""
        return {"option": self.option, "value": self.value, "reason": self.reason}


@dataclass
class Notebook:
    """Defaults and warnings, in the order in which they arose."""

    filled: list[Filled] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def fill(self, option: str, value: Any, reason: str) -> None:
        """Notes that ``option`` was not given and got ``value``."""
        self.filled.append(Filled(option, value, reason))

    def warn(self, sentence: str) -> None:
        """Notes something that the reader of the answer should know."""
        self.warnings.append(sentence)
