"""Overrides for a Megatron Bridge recipe, as YAML for its training scripts' --config-file."""

from __future__ import annotations

from typing import Any

import yaml

from layoutopt.costmodel.linears import Lora, adapted
from layoutopt.costmodel.model import Model
from layoutopt.launchers import megatron
from layoutopt.launchers.keys import Keys
from layoutopt.launchers.plan import Plan

NAME = "megatron-bridge"
_PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}


def config(plan: Plan) -> str:
    """The YAML file; raises RuleError for what Megatron, and so Bridge, cannot say."""
    said = {flag[0]: flag[1:] for flag in megatron.flags(plan, bridge=True)}
    keys, layout, training = Keys(plan, NAME), plan.layout, plan.training
    if training.precision not in _PRECISION:
        raise keys.cannot("precision", f"no recipe trains in {training.precision}", "bf16")
    model: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "context_parallel_size": layout.cp,
        "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
        "seq_length": training.seq_len,
        **_pipeline(said),
        **_recompute(said),
    }
    if layout.cp > 1:
        model["cp_comm_type"] = said["--cp-comm-type"][0]
        if "--hierarchical-context-parallel-sizes" in said:
            sizes = said["--hierarchical-context-parallel-sizes"]
            model["hierarchical_context_parallel_sizes"] = [int(size) for size in sizes]
    if plan.model.moe:
        model["expert_model_parallel_size"] = layout.ep
        model["expert_tensor_parallel_size"] = layout.etp
    found: dict[str, Any] = {
        "model": model,
        "dataset": _dataset(plan),
        "train": {
            "micro_batch_size": layout.micro_batch,
            "global_batch_size": training.global_batch,
            "train_iters": training.steps,
        },
        "mixed_precision": _PRECISION[training.precision],
        "ddp": _sharding(plan, said),
        "comm_overlap": {"tp_comm_overlap": "--tp-comm-overlap" in said},
        "dist": {"use_tp_pp_dp_mapping": "--use-tp-pp-dp-mapping" in said},
    }
    if layout.offload_activations:
        count = said["--cpu-offloading-num-layers"][0]
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": int(count)}
    if layout.offload_optimizer:
        found["optimizer"] = {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    if plan.interval_steps:
        found["checkpoint"] = _checkpoint(said)
    head = f"# {plan.title()}; written by layoutopt.\n"
    if training.finetune:
        found.setdefault("checkpoint", {})["pretrained_checkpoint"] = "pretrained"
        if layout.cp > 1:
            model["calculate_per_token_loss"] = True
            found["ddp"]["average_in_collective"] = False
    if training.lora:
        found["peft"], scheme = _adapters(plan.model, training.lora)
        head += f"# For a recipe of adapters: ..._peft_config(peft_scheme={scheme}).\n"
    return head + yaml.safe_dump(found, sort_keys=False)


_LAYERS = {"o_proj": "linear_proj", "down_proj": "linear_fc2"}
_PARTS = {
    "q_proj": "linear_q",
    "k_proj": "linear_k",
    "v_proj": "linear_v",
    "gate_proj": "linear_fc1_gate",
    "up_proj": "linear_fc1_up",
    **_LAYERS,
}
"""Names of layers in Megatron Bridge 0.3.1 (peft/lora.py, peft/canonical_lora.py)."""
_LATENT = {
    "q_proj": "linear_q_proj",
    "q_a_proj": "linear_q_down_proj",
    "q_b_proj": "linear_q_up_proj",
    "kv_a_proj_with_mqa": "linear_kv_down_proj",
    "kv_b_proj": "linear_kv_up_proj",
}
"""Latent attention's (Megatron Bridge 0.3.1, models/deepseek/common.py); either scheme of adapters
finds them by these names, for neither is a part of a merged layer."""


def _adapters(model: Model, lora: Lora) -> tuple[dict[str, Any], str]:
    """The recipe's ``peft`` section, and the scheme to ask the recipe for: one adapter beside
    layers that Megatron runs as one, or one for each where not all of them are adapted."""
    latent = _LATENT if model.mla else {}
    layers = {**_LAYERS, **latent}
    merged = [layer.name for layer in adapted(model, lora, merges=True)]
    whole = all(name.startswith("linear_") or name in layers for name in merged)
    names = [layers.get(name, name) for name in merged]
    if not whole:
        names = [{**_PARTS, **latent}[name] for name in lora.targets]
    scheme = "'lora'" if whole else "CanonicalLoRA()"
    return {"dim": lora.rank, "target_modules": names}, scheme


def _dataset(plan: Plan) -> dict[str, Any]:
    """Sequences of the pretraining dataset; or of a fine-tuning one, with documents packed."""
    training = plan.training
    if training.finetune is None:
        Keys(plan, NAME).tuning("packed documents are of its fine-tuning recipes")
        return {"sequence_length": training.seq_len}
    found: dict[str, Any] = {"seq_length": training.seq_len}
    if training.documents is None:
        return found
    if not training.documents.packed:
        return {**found, "packed_sequence_specs": None}
    specs = {"packed_sequence_size": training.seq_len}
    if plan.layout.cp > 1:
        specs["pad_seq_to_mult"] = 2 * plan.layout.cp
    return {**found, "packed_sequence_specs": specs}


def _pipeline(said: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "--pipeline-model-parallel-layout" in said:
        found["pipeline_model_parallel_layout"] = said["--pipeline-model-parallel-layout"][0]
    for part in ("embedding", "loss"):
        if f"--account-for-{part}-in-pipeline-split" in said:
            found[f"account_for_{part}_in_pipeline_split"] = True
    return found


def _recompute(said: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "--recompute-granularity" in said:
        found["recompute_granularity"] = said["--recompute-granularity"][0]
    if "--recompute-modules" in said:
        found["recompute_modules"] = list(said["--recompute-modules"])
    if "--recompute-method" in said:
        found["recompute_method"] = said["--recompute-method"][0]
        found["recompute_num_layers"] = int(said["--recompute-num-layers"][0])
    return found


def _sharding(plan: Plan, said: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "use_distributed_optimizer": plan.layout.zero_stage >= 1,
        "overlap_grad_reduce": "--overlap-grad-reduce" in said,
        "overlap_param_gather": "--overlap-param-gather" in said,
        "grad_reduce_in_fp32": "--grad-reduce-in-bf16" not in said,
    }
    if "--num-distributed-optimizer-instances" in said:
        count = said["--num-distributed-optimizer-instances"][0]
        found["num_distributed_optimizer_instances"] = int(count)
    if "--use-megatron-fsdp" in said:
        found["use_megatron_fsdp"] = True
        strategy = said["--data-parallel-sharding-strategy"][0]
        found["data_parallel_sharding_strategy"] = strategy
    return found


def _checkpoint(said: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    background = "--async-save" in said
    return {
        "save": said["--save"][0],
        "save_interval": int(said["--save-interval"][0]),
        "ckpt_format": said["--ckpt-format"][0],
        "async_save": background,
        "use_persistent_ckpt_worker": background,
    }
