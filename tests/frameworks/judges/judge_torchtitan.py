"""torchtitan's own parser, mesh and stage split (torchtitan 0.3.0), on a CPU."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import judge, without_triton, words_after

without_triton("torchtitan.distributed.minimal_async_ep.kernels")
from torchtitan.config import ConfigManager
from torchtitan.distributed import pipeline_parallel
from torchtitan.distributed.parallel_dims import ParallelDims


def check(case: dict[str, Any]) -> dict[str, Any]:
    """Parses, builds the mesh's dimensions, and splits layers over stages."""
    with contextlib.redirect_stderr(io.StringIO()):
        config = ConfigManager().parse_args(words_after(case["text"], "torchtitan.train"))
    dims = ParallelDims.from_config(config.parallelism, case["world"])
    seq, batch = config.training.seq_len, config.training.global_batch_size
    assert seq % dims.seq_len_divisor == 0, f"seq_len {seq} % {dims.seq_len_divisor}"
    local = config.training.local_batch_size
    replicas = dims.dp_replicate * dims.dp_shard
    assert batch % (local * replicas) == 0, f"batch {batch}, local {local}, replicas {replicas}"
    ranks = dims.dp_shard * dims.cp * dims.tp
    assert ranks % dims.ep == 0, f"ep {dims.ep} over {ranks} ranks"
    stages = None
    if dims.pp > 1:
        meta = pipeline_parallel._get_pipeline_metadata(
            dims, config.parallelism, config.model_spec.model
        )
        parts = pipeline_parallel._generate_llm_fqn_per_model_part(*meta)
        counts = [sum(name.startswith("layers.") for name in part) for part in parts]
        stages = counts
    return {"dp": replicas, "stages": stages}


if __name__ == "__main__":
    judge(check)
