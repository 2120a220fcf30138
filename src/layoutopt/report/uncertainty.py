"""How far a predicted step time is from measured ones: read from the shipped residual table."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def uncertainty() -> dict[str, Any]:
    """``{step_time_rel, basis}``; step_time_rel is null until residuals have been recorded."""
    table = resources.files("layoutopt.costmodel").joinpath("data/uncertainty.json")
    if not table.is_file():
        return {"step_time_rel": None, "basis": "not yet calibrated against measured runs"}
    entry = json.loads(table.read_text("utf-8"))
    return {"step_time_rel": entry["step_time_rel"], "basis": entry["basis"]}
