"""layoutopt: finds, and proves, the fastest layout of a training run on a GPU cluster.

    import layoutopt
    answer = layoutopt.solve(model="1T", gpus=16384)
    print(answer.status, answer.layout, answer.step.time_s)

Names are looked up when they are first used: importing layoutopt loads no solver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layoutopt.api import estimate, simulate, solve, validate
    from layoutopt.costmodel.layout import Layout
    from layoutopt.costmodel.model import Model
    from layoutopt.errors import (
        InputError,
        InternalError,
        LayoutoptError,
        ProfileError,
        RuleError,
        ToolError,
    )
    from layoutopt.hardware_profiles.schema import Cluster
    from layoutopt.report.answer import Answer

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Cluster",
    "InputError",
    "InternalError",
    "Layout",
    "LayoutoptError",
    "Model",
    "ProfileError",
    "RuleError",
    "ToolError",
    "__version__",
    "estimate",
    "simulate",
    "solve",
    "validate",
]

_HOME = {
    "Answer": "layoutopt.report.answer",
    "Cluster": "layoutopt.hardware_profiles.schema",
    "InputError": "layoutopt.errors",
    "InternalError": "layoutopt.errors",
    "Layout": "layoutopt.costmodel.layout",
    "LayoutoptError": "layoutopt.errors",
    "Model": "layoutopt.costmodel.model",
    "ProfileError": "layoutopt.errors",
    "RuleError": "layoutopt.errors",
    "ToolError": "layoutopt.errors",
    "estimate": "layoutopt.api",
    "simulate": "layoutopt.api",
    "solve": "layoutopt.api",
    "validate": "layoutopt.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
