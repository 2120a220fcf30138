"""DeepSpeed's JSON configuration, as DeepSpeed 0.19's own reader takes it."""

from __future__ import annotations

import json
from typing import Any

from layoutopt.launchers.keys import Keys
from layoutopt.launchers.plan import Plan

NAME = "deepspeed"


def config(plan: Plan) -> str:
    """The JSON file. DeepSpeed's pipeline and experts are written in the model's code: refused."""
    keys = Keys(plan, NAME)
    layout = plan.layout
    _refuse_code(keys)
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": keys.take("micro_batch"),
        "gradient_accumulation_steps": layout.microbatches,
        **_precision(keys),
        "gradient_clipping": 1.0,
        "zero_optimization": _zero(keys),
    }
    if keys.take("tp") > 1:
        found["tensor_parallel"] = {"autotp_size": layout.tp}
    else:
        # With autotp and no mpu DeepSpeed takes the whole world for dp: then it stays unsaid.
        found["train_batch_size"] = plan.training.global_batch
    keys.take("dp")
    keys.take("sequence_parallel")
    if keys.take("cp") > 1:
        if keys.take("cp_kind") != "ulysses":
            raise keys.cannot("cp_kind", "its sequence parallelism is Ulysses", "ulysses")
        found["sequence_parallel_size"] = layout.cp
    found |= _recompute(keys)
    found["layoutopt"] = _notes(plan)
    if keys.tuning("adapters and packing are the training script's (peft.LoraConfig)"):
        found["layoutopt"]["start_from"] = "trained weights, which train.py loads"
    keys.finish()
    return json.dumps(found, indent=2) + "\n"


def _refuse_code(keys: Keys) -> None:
    layout = keys.plan.layout
    if keys.take("pp") > 1:
        raise keys.cannot(
            "pp", "stages are written in code (PipelineModule(num_stages=...)), not in the file", 1
        )
    if layout.ep > 1:
        raise keys.cannot("ep", "expert groups are written in code (MoE(ep_size=...))", 1)


def _precision(keys: Keys) -> dict[str, Any]:
    precision = keys.plan.training.precision
    if precision in ("bf16", "fp16"):
        return {precision: {"enabled": True}}
    if precision == "fp32":
        return {}
    raise keys.cannot("precision", f"{precision} is not in its configuration", "bf16", "fp16")


def _zero(keys: Keys) -> dict[str, Any]:
    stage = keys.take("zero_stage")
    found: dict[str, Any] = {"stage": stage}
    if keys.take("offload_optimizer"):
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if stage:
        found["overlap_comm"] = keys.plan.software.overlap_grad_reduce > 0
    if stage == 3 and not keys.take("reshard"):
        raise keys.cannot("reshard", "stage 3 frees weights after use", True)
    return found


def _recompute(keys: Keys) -> dict[str, Any]:
    kind, layers = keys.take("recompute"), keys.take("recompute_layers")
    offloaded = keys.take("offload_activations")
    if kind == "none" and not offloaded:
        return {}
    if kind == "selective" or layers is not None:
        raise keys.cannot("recompute", "it checkpoints whole layers, all of them", "full", "none")
    if kind == "none":
        raise keys.cannot("offload_activations", "it moves checkpoints of whole layers", False)
    checkpoints = {"partition_activations": False, "number_checkpoints": keys.plan.model.layers}
    if offloaded:
        checkpoints["cpu_checkpointing"] = True
    return {"activation_checkpointing": checkpoints}


def _notes(plan: Plan) -> dict[str, Any]:
    """What the file cannot say: DeepSpeed passes over top-level keys that it does not know."""
    return {
        "launch": f"deepspeed --num_nodes {plan.nodes} --num_gpus {plan.gpus_a_node} train.py",
        "gpus": plan.gpus,
        "seq_len": plan.training.seq_len,
        "save_interval_steps": plan.interval_steps,
        "train_steps": plan.training.steps,
    }
