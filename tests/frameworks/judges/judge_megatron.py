"""Megatron-LM's own parser, checks and memory formula (megatron-core 0.19.2), on a CPU.

What is faked: typing.override (Python 3.12), one triton module, the device's compute capability,
and Transformer Engine's version where fp8 or fp4 asks for it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types
import typing
import warnings
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import judge, without_triton, words_after

warnings.filterwarnings("ignore")
if not hasattr(typing, "override"):
    typing.override = lambda function: function
without_triton("megatron.core.transformer.moe.ops.paged_stash")
os.environ.setdefault("RANK", "0")
import megatron.training.arguments as arguments
import torch
from megatron.core.num_microbatches_calculator import (
    destroy_num_microbatches_calculator,
    get_num_microbatches,
    init_num_microbatches_calculator,
)
from megatron.core.parallel_state import RankGenerator
from megatron.training.theoretical_memory_usage import compute_weight_and_optimizer_memory

torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(major=9, minor=0)
torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
arguments.get_device_arch_version = lambda: 9


def check(case: dict[str, Any]) -> dict[str, Any]:
    """Parses and validates; also what start-up would raise: expert groups, interleaving groups."""
    world, text = case["world"], case["text"]
    os.environ["WORLD_SIZE"] = str(world)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if "CUDA_DEVICE_MAX_CONNECTIONS=1" in text:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    # No Transformer Engine here: its fused rotary kernel is switched off.
    sys.argv = ["pretrain_gpt.py", *words_after(text, "pretrain_gpt.py"), "--no-rope-fusion"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            args = arguments.parse_args()
            arguments.validate_args(args, {})
            config = arguments.core_transformer_config_from_args(args)
            init_num_microbatches_calculator(
                0,
                None,
                args.global_batch_size,
                args.micro_batch_size,
                args.data_parallel_size,
                False,
            )
            microbatches = get_num_microbatches()
            memory = _memory(args)
    finally:
        with contextlib.suppress(Exception):
            destroy_num_microbatches_calculator()
    pp, ep = args.pipeline_model_parallel_size, args.expert_model_parallel_size
    experts = args.expert_tensor_parallel_size * ep * pp
    assert world % experts == 0, f"world {world} not divisible by etp*ep*pp {experts}"
    if args.virtual_pipeline_model_parallel_size:
        group = config.microbatch_group_size_per_vp_stage
        assert pp <= group <= microbatches and not 0 < microbatches % group < pp, (
            f"{microbatches} microbatches, group {group}, pp {pp}"
        )
    return {
        "dp": args.data_parallel_size,
        "vpp": args.virtual_pipeline_model_parallel_size or 1,
        "microbatches": microbatches,
        "weight_and_optimizer_bytes": memory,
        "groups": _groups(case, args) if case.get("groups") else None,
    }


def _memory(args: Any) -> float | None:
    """Weights and optimizer of the worst rank, where Megatron's formula covers the model."""
    multiple = 128 * args.tensor_model_parallel_size
    args.padded_vocab_size = -(-args.vocab_size // multiple) * multiple
    try:
        return float(compute_weight_and_optimizer_memory(args, verbose=False))
    except Exception:
        return None


def _groups(case: dict[str, Any], args: Any) -> dict[str, list[list[int]]]:
    """Ranks of each kind of group, as Megatron numbers them."""
    order = "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp"
    generator = RankGenerator(
        tp=args.tensor_model_parallel_size,
        ep=1,
        dp=args.data_parallel_size,
        pp=args.pipeline_model_parallel_size,
        cp=args.context_parallel_size,
        order=order,
    )
    return {axis: generator.get_ranks(axis) for axis in ("tp", "cp", "dp", "pp")}


if __name__ == "__main__":
    judge(check)
