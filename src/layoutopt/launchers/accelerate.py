"""Hugging Face Accelerate's configuration file, for FSDP2 and N-D parallelism (accelerate 1.15)."""

from __future__ import annotations

from typing import Any

import yaml

from layoutopt.launchers.keys import Keys
from layoutopt.launchers.plan import Plan

NAME = "accelerate"
_MIXED = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "no"}
_CP_KINDS = {"all_gather": "allgather", "ring": "alltoall"}


def config(plan: Plan) -> str:
    """The YAML file; micro_batch, accumulation and saves are the training script's: a comment."""
    keys = Keys(plan, NAME)
    layout = plan.layout
    if keys.take("pp") > 1:
        raise keys.cannot("pp", "it has no pipeline", 1)
    if layout.ep > 1:
        raise keys.cannot("ep", "it has no expert parallelism", 1)
    precision = plan.training.precision
    if precision not in _MIXED:
        raise keys.cannot("precision", f"{precision} is not among {', '.join(_MIXED)}", "bf16")
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if layout.zero_stage else "MULTI_GPU",
        "mixed_precision": _MIXED[precision],
        "num_machines": plan.nodes,
        "num_processes": plan.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "c10d",
    }
    found |= _sharding(keys)
    keys.take("sequence_parallel")
    keys.take("micro_batch")
    starts = ""
    if keys.tuning("adapters and packing are the training script's (peft.LoraConfig, trl)"):
        starts = ", trained weights to start from"
    head = (
        f"# {plan.title()}; written by layoutopt.\n"
        "# Not said here, but in the training script: per_device_train_batch_size "
        f"{layout.micro_batch}, gradient_accumulation_steps {layout.microbatches}, "
        f"max_steps {plan.training.steps}, save_steps {plan.interval_steps}{starts}.\n"
    )
    keys.finish()
    return head + yaml.safe_dump(found, sort_keys=False)


def _sharding(keys: Keys) -> dict[str, Any]:
    zero, tp, cp = keys.take("zero_stage"), keys.take("tp"), keys.take("cp")
    dp, shard = keys.take("dp"), keys.take("shard_degree")
    recompute = _full_recompute(keys)
    if zero == 0:
        if tp * cp > 1:
            raise keys.cannot("zero_stage", "plain data parallelism takes no tp or cp", 2, 3)
        if recompute:
            raise keys.cannot("recompute", "without FSDP it is the script's own affair", "none")
        return {}
    if zero == 1:
        raise keys.cannot("zero_stage", "FSDP2 shards weights and gradients as well", 2, 3)
    ranks = shard or dp * cp
    if ranks % cp:
        raise keys.cannot("shard_degree", f"it has to be a multiple of cp {cp}")
    sizes: dict[str, Any] = {
        "parallelism_config_dp_replicate_size": dp * cp // ranks,
        "parallelism_config_dp_shard_size": ranks // cp,
        "parallelism_config_tp_size": tp,
    }
    sizes |= _context(keys, cp)
    always = bool(keys.take("reshard")) and zero == 3
    return {
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": always,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_activation_checkpointing": recompute,
            "fsdp_offload_params": False,
        },
        "parallelism_config": sizes,
    }


def _context(keys: Keys, cp: int) -> dict[str, Any]:
    if cp == 1:
        return {"parallelism_config_cp_size": 1}
    kind = keys.take("cp_kind")
    if kind == "ulysses":
        return {"parallelism_config_sp_size": cp, "parallelism_config_sp_backend": "deepspeed"}
    return {
        "parallelism_config_cp_size": cp,
        "parallelism_config_cp_comm_strategy": _CP_KINDS[kind],
    }


def _full_recompute(keys: Keys) -> bool:
    kind, layers = keys.take("recompute"), keys.take("recompute_layers")
    if kind == "selective" or layers is not None:
        raise keys.cannot("recompute", "it checkpoints whole layers, all of them", "full", "none")
    return bool(kind == "full")
