"""Accelerate's own readers (accelerate 1.15): unknown keys, and the product of the degrees."""

from __future__ import annotations

import os
import sys
import tempfile
import types
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import judge

os.environ.pop("RANK", None)
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.parallelism_config import ParallelismConfig

_PREFIX = "parallelism_config_"


def check(case: dict[str, Any]) -> dict[str, Any]:
    """Loads the file as ``accelerate launch --config_file`` does, then builds the degrees."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        file.write(case["text"])
    config = load_config_from_file(file.name)
    os.unlink(file.name)
    assert config.num_processes == case["world"]
    sizes = {
        key.removeprefix(_PREFIX): value
        for key, value in (config.parallelism_config or {}).items()
        if key.endswith("_size") or key.endswith("_backend")
    }
    if not sizes:
        return {"total": config.num_processes}
    degrees = ParallelismConfig(**sizes)
    stand_in = types.SimpleNamespace(
        num_processes=case["world"], multi_device=True, is_fsdp2=True, device=None, state=None
    )
    degrees._validate_accelerator(stand_in)
    return {"total": degrees.total_size}


if __name__ == "__main__":
    judge(check)
