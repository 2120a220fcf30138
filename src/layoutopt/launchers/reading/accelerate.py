"""Accelerate's YAML, read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "parallelism_config_"


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ``estimate``; model and batch are the caller's."""
    sizes = {
        str(key).removeprefix(_PREFIX).removesuffix("_size"): value
        for key, value in _section(config, "parallelism_config").items()
    }
    tp, context = sizes.get("tp", 1), sizes.get("cp", 1)
    ulysses = sizes.get("sp", 1)
    layout: dict[str, Any] = {"tp": tp, "cp": max(context, ulysses)}
    if layout["cp"] > 1:
        ring = sizes.get("cp_comm_strategy") == "alltoall"
        layout["cp_kind"] = "ulysses" if ulysses > 1 else "ring" if ring else "all_gather"
    fsdp = _section(config, "fsdp_config")
    layout["zero_stage"] = 0 if not fsdp else 3
    if fsdp:
        layout["reshard"] = bool(fsdp.get("fsdp_reshard_after_forward", True))
        layout["recompute"] = "full" if fsdp.get("fsdp_activation_checkpointing") else "none"
    if sizes.get("dp_replicate", 1) > 1 and sizes.get("dp_shard"):
        layout["shard_degree"] = sizes["dp_shard"] * layout["cp"]
    # The profile of plain FSDP has neither tp nor cp; Accelerate composes them as FSDP2 does.
    framework = "fsdp" if tp == layout["cp"] == 1 else "generic"
    found: dict[str, Any] = {"framework": framework, "layout": layout}
    if (count := config.get("num_processes")) not in (None, -1):
        found["gpus"] = count
    mixed = config.get("mixed_precision") or "no"
    found["precision"] = "fp32" if mixed == "no" else mixed
    return found


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
