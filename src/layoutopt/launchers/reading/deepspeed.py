"""DeepSpeed's JSON, read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ``estimate``; model and GPUs are the caller's, save for layoutopt's own notes."""
    zero = _section(config, "zero_optimization")
    layout: dict[str, Any] = {"zero_stage": zero.get("stage", 0)}
    layout["tp"] = _section(config, "tensor_parallel").get("autotp_size", 1)
    if (parts := config.get("sequence_parallel_size", 1)) > 1:
        layout |= {"cp": parts, "cp_kind": "ulysses"}
    for key, name in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("microbatches", "gradient_accumulation_steps"),
    ):
        if config.get(name) is not None:
            layout[key] = config[name]
    layout["recompute"] = "full" if "activation_checkpointing" in config else "none"
    if _section(zero, "offload_optimizer").get("device", "none") != "none":
        layout["offload_optimizer"] = True
    if _section(config, "activation_checkpointing").get("cpu_checkpointing") is True:
        layout["offload_activations"] = True
    found: dict[str, Any] = {"framework": "deepspeed", "layout": layout}
    if config.get("train_batch_size") is not None:
        found["global_batch"] = config["train_batch_size"]
    found["precision"] = next(
        (name for name in ("bf16", "fp16") if _section(config, name).get("enabled")), "fp32"
    )
    notes = _section(config, "layoutopt")
    found |= {key: notes[key] for key in ("gpus", "seq_len") if key in notes}
    return found


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
