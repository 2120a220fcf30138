"""torchtitan's flags, read back."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

from layoutopt.costmodel.models import resolve_model
from layoutopt.costmodel.stages import even_split
from layoutopt.errors import InputError
from layoutopt.launchers.reading.words import Flags, read_flags
from layoutopt.launchers.reading.world import gpus
from layoutopt.launchers.torchtitan import on_ranks, split_of_parts

_SCHEDULES = {
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved",
    "gpipe": "gpipe",
    "zbvzerobubble": "zbv",
    "interleavedzerobubble": "zb-h1",
}


def options(text: str) -> dict[str, Any]:
    """Options of ``estimate``; the world comes from torchrun's words or from --gpus."""
    flags = read_flags(text)
    found: dict[str, Any] = {"framework": "torchtitan"}
    if (world := gpus(flags)) is not None:
        found["gpus"] = world
    model, precision = _named(flags)
    if model:
        found |= {"model": model, "precision": precision}
    for name, flag in (
        ("seq_len", "--training.seq_len"),
        ("global_batch", "--training.global_batch_size"),
    ):
        if (value := flags.count(flag)) is not None:
            found[name] = value
    found["layout"] = _layout(flags, world, model)
    return found


def _named(flags: Flags) -> tuple[str | None, str]:
    """Our name of the model, and the precision, of torchtitan's configuration."""
    config = flags.text("--config")
    path = resources.files("layoutopt.launchers").joinpath("data/torchtitan.yaml")
    table: dict[str, dict[str, str]] = yaml.safe_load(path.read_text("utf-8"))
    for model, known in table.items():
        for precision, name in known.items():
            if name == config and precision != "module":
                return model, precision
    return None, "bf16"


def _layout(flags: Flags, world: int | None, model: str | None) -> dict[str, Any]:
    p = "--parallelism."
    tp = flags.count(p + "tensor_parallel_degree", 1) or 1
    cp = flags.count(p + "context_parallel_degree", 1) or 1
    pp = flags.count(p + "pipeline_parallel_degree", 1) or 1
    layout: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp}
    layout["sequence_parallel"] = tp > 1 and not flags.has(p + "no-enable_sequence_parallel")
    if ep := flags.count(p + "expert_parallel_degree"):
        layout["ep"] = ep
    if cp > 1:
        layout["cp_kind"] = "all_gather"
    layout |= _sharding(flags, cp, None if world is None else world // (tp * cp * pp))
    layout |= _pipeline(flags, pp, model)
    for kind in ("none", "selective", "full"):
        if f"activation-checkpoint:{kind}" in flags.words:
            layout["recompute"] = kind
    if pp == 1 and (local := flags.count("--training.local_batch_size")) is not None:
        layout["micro_batch"] = local
    return layout


def _sharding(flags: Flags, cp: int, replicas: int | None) -> dict[str, Any]:
    replicate = flags.count("--parallelism.data_parallel_replicate_degree", 1) or 1
    shard = flags.count("--parallelism.data_parallel_shard_degree", -1) or -1
    if shard == -1 and replicas is not None:
        shard = replicas // replicate
    found: dict[str, Any] = {"dp": replicate * shard} if shard > 0 else {}
    if shard * cp == 1:
        return {**found, "zero_stage": 0}
    policy = flags.text("--parallelism.fsdp_reshard_after_forward") or "default"
    found["zero_stage"] = 3
    if policy != "default":
        found["reshard"] = policy == "always"
    if replicate > 1 and shard > 0:
        found["shard_degree"] = shard * cp
    return found


def _pipeline(flags: Flags, pp: int, model: str | None) -> dict[str, Any]:
    if pp == 1:
        return {}
    found: dict[str, Any] = {
        "micro_batch": flags.count("--parallelism.pipeline_parallel_microbatch_size", 1)
    }
    name = flags.text("--parallelism.pipeline_parallel_schedule") or "1F1B"
    if name.lower() not in _SCHEDULES:
        raise InputError(
            f"--parallelism.pipeline_parallel_schedule {name} has no word here; known: "
            f"{', '.join(_SCHEDULES)}",
            field="--parallelism.pipeline_parallel_schedule",
            value=name,
            nearest=tuple(_SCHEDULES),
        )
    schedule = _SCHEDULES[name.lower()]
    found["schedule"] = schedule
    chunks = 1 if schedule in ("1f1b", "gpipe") else 2
    each = flags.count("--parallelism.pipeline_parallel_layers_per_stage")
    if model is not None:
        layers = resolve_model(model)[0].layers
        first = flags.count("--parallelism.pipeline_parallel_first_stage_less_layers", 1) or 0
        last = flags.count("--parallelism.pipeline_parallel_last_stage_less_layers", 1) or 0
        parts = -(-(layers + first + last) // each) if each else pp * chunks
        split = split_of_parts(layers, parts, first, last) if parts % pp == 0 else None
        if split is None:
            raise InputError(
                f"{layers} layers with {each} a stage do not make a multiple of {pp} stages",
                field="--parallelism.pipeline_parallel_layers_per_stage",
                value=each,
            )
        chunks = parts // pp
        stages = on_ranks(split, pp, schedule == "zbv")
        if stages != even_split(layers, pp):
            found["layers_per_stage"] = list(stages)
    if chunks > 1 and schedule != "zbv":
        found["vpp"] = chunks
    return found
