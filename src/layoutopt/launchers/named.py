"""Models that a framework knows by a name of its own."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

from layoutopt.errors import RuleError
from layoutopt.launchers.plan import Plan


def known_as(plan: Plan, launcher: str) -> Any:
    """What ``launcher`` calls the plan's model; raises RuleError where it has no name for it."""
    path = resources.files("layoutopt.launchers").joinpath(f"data/{launcher}.yaml")
    names: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    if plan.model.name not in names:
        raise RuleError(
            f"{launcher} has no configuration of {' '.join(plan.model.name.split())}; it has "
            f"{', '.join(names)}",
            field="model",
            value=plan.model.name,
            nearest=tuple(names),
        )
    return names[plan.model.name]
