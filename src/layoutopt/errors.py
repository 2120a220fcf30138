"""What can go wrong.

LayoutoptError
├── InputError        a file or option is wrong                exit 2
│   ├── ProfileError  a hardware or model file: names the file and the field
│   └── RuleError     a layout breaks arithmetic or a framework's rule
├── ToolError         an outside program is missing or hangs    exit 69
└── InternalError     a rule of ours was broken                 exit 70

A search that finds nothing is not an error: see optimizer.outcome (exit 3 or 4).
"""

from __future__ import annotations


class LayoutoptError(Exception):
    """Base of everything that layoutopt raises on purpose."""

    exit_code = 70
    code = "internal"


class InputError(LayoutoptError):
    """Something a person gave is wrong.

    ``message`` is one sentence with the numbers in it; ``field`` names the option or key,
    ``value`` is what was given, ``nearest`` the nearest legal values (may be empty).
    """

    exit_code = 2
    code = "input"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        nearest: tuple[object, ...] | list[object] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = value
        self.nearest = tuple(nearest)


class ProfileError(InputError):
    """A hardware, cluster or model file is wrong; the message names the file and the field."""

    code = "profile"


class RuleError(InputError):
    """A layout breaks a rule of arithmetic or of the framework."""

    code = "rule"


class ToolError(LayoutoptError):
    """An outside program is missing, fails or hangs."""

    exit_code = 69
    code = "tool"


class InternalError(LayoutoptError):
    """A rule of ours was broken: a fault in layoutopt itself."""

    exit_code = 70
    code = "internal"
