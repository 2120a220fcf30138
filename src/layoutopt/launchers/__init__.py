"""Launch configurations of training frameworks and clusters, from a plan."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from layoutopt.errors import InputError
from layoutopt.nearest import did_you_mean, nearest_names

if TYPE_CHECKING:
    from layoutopt.launchers.plan import Plan

FORMATS = {
    "megatron": ("megatron", "script"),
    "megatron-bridge": ("megatron_bridge", "config"),
    "torchtitan": ("torchtitan", "script"),
    "deepspeed": ("deepspeed", "config"),
    "accelerate": ("accelerate", "config"),
    "nanotron": ("nanotron", "config"),
    "maxtext": ("maxtext", "script"),
    "skypilot": ("skypilot", "task"),
    "trainjob": ("kubernetes", "trainjob"),
    "jobset": ("kubernetes", "jobset"),
    "job": ("kubernetes", "job"),
    "kueue": ("kubernetes", "kueue"),
}
"""Format to the module and the function that write it; imported when asked for."""

ON_KUBERNETES = ("trainjob", "jobset", "job", "kueue")


def format_named(name: str) -> str:
    """The format called ``name``; raises InputError with the nearest one."""
    text = name.strip().lower()
    if text not in FORMATS:
        close = nearest_names(text, FORMATS) or tuple(FORMATS)
        raise InputError(
            f"no format is called {name!r}{did_you_mean(close)}; known: {', '.join(FORMATS)}",
            field="format",
            value=name,
            nearest=close,
        )
    return text


def emit(plan: Plan, launcher: str, /, **cluster: Any) -> str:
    """The text of ``plan`` in a format; ``cluster`` holds Kubernetes' name, image, queue, ...

    Raises RuleError for what the format cannot say: nothing of a layout is dropped.
    """
    text = format_named(launcher)
    module, function = FORMATS[text]
    write: Callable[..., str] = getattr(import_module(f"layoutopt.launchers.{module}"), function)
    if text not in ON_KUBERNETES:
        return write(plan)
    from layoutopt.launchers.kubernetes import Cluster

    return write(plan, Cluster(**{key: value for key, value in cluster.items() if value}))
