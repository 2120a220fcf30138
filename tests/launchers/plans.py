"""Plans of given layouts, without a search."""

from __future__ import annotations

from typing import Any

from layoutopt import estimate
from layoutopt.launchers.plan import Plan, read_plan


def plan_of(layout: str, model: str = "70B", gpus: int = 64, **options: Any) -> Plan:
    """The plan that ``estimate`` makes of a layout, read back from its JSON."""
    options = {"framework": "megatron", "seq_len": 8192, "global_batch": 256, **options}
    return read_plan(estimate(model=model, gpus=gpus, layout=layout, **options).to_dict())
