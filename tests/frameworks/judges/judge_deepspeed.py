"""DeepSpeed's own configuration reader (deepspeed 0.19.8), on a CPU."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import judge

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed.runtime.config as runtime


def check(case: dict[str, Any]) -> dict[str, Any]:
    """Reads the file for a world of so many ranks."""
    runtime.dist.get_world_size = lambda *args, **kwargs: case["world"]
    runtime.dist.get_rank = lambda *args, **kwargs: 0
    config = runtime.DeepSpeedConfig(json.loads(case["text"]))
    return {
        "batch": config.train_batch_size,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "microbatches": config.gradient_accumulation_steps,
        "zero_stage": int(config.zero_config.stage),
    }


if __name__ == "__main__":
    judge(check)
