"""MaxText's command line: base.yml and key=value overrides (MaxText 0.2.5)."""

from __future__ import annotations

from math import gcd
from typing import Any

from layoutopt.launchers.keys import Keys
from layoutopt.launchers.named import known_as
from layoutopt.launchers.plan import Plan
from layoutopt.launchers.shell import Flag, Script

NAME = "maxtext"
_QUANTIZATION = {"fp8": "fp8", "bf16": "", "nvfp4": None, "mxfp8": None, "fp16": None, "fp32": ""}
_CP_KINDS = {"all_gather": "all_gather", "ring": "ring"}


def script(plan: Plan) -> str:
    """A bash script with one command, started once on every node."""
    return Script(
        program=("python", "-m", "maxtext.trainers.pre_train.train", "base.yml"),
        flags=flags(plan),
        comments=(
            f"{plan.title()}; written by layoutopt.",
            f"Start it on each of {plan.nodes} nodes.",
        ),
    ).text()


def flags(plan: Plan) -> list[Flag]:
    """key=value words; ici_ axes lie inside a node, dcn_ axes across nodes."""
    keys, layout, training = Keys(plan, NAME), plan.layout, plan.training
    said: dict[str, Any] = {
        "model_name": known_as(plan, NAME),
        "hardware": "gpu_multiprocess" if plan.nodes > 1 else "gpu",
        "max_target_length": training.seq_len,
        "per_device_batch_size": _per_device(keys),
        "steps": training.steps,
        "remat_policy": _remat(keys),
    }
    quantization = _QUANTIZATION[training.precision]
    if quantization is None:
        raise keys.cannot("precision", f"its GPU path has no {training.precision}", "bf16", "fp8")
    if quantization:
        said["quantization"] = quantization
    said |= _axes(keys)
    if layout.pp > 1:
        said |= _pipeline(keys)
    else:
        said["gradient_accumulation_steps"] = layout.microbatches
    if plan.interval_steps:
        said |= {
            "enable_checkpointing": "true",
            "checkpoint_period": plan.interval_steps,
            "async_checkpointing": str(plan.software.async_save).lower(),
        }
    if keys.tuning("its trainer has no adapters, and document lengths are no option of it"):
        said["load_parameters_path"] = "pretrained"
    keys.finish()
    return [(f"{key}={value}",) for key, value in said.items()]


def _per_device(keys: Keys) -> float | int:
    """Sequences of one accumulation step over all GPUs; with a pipeline those of the whole step."""
    layout, plan = keys.plan.layout, keys.plan
    micro = int(keys.take("micro_batch"))
    sequences = micro * layout.dp * (layout.microbatches if layout.pp > 1 else 1)
    whole, rest = divmod(sequences, plan.gpus)
    return whole if not rest else sequences / plan.gpus


def _remat(keys: Keys) -> str:
    kind = keys.take("recompute")
    return {"none": "minimal", "full": "full", "selective": "save_qkv_proj"}[kind]


def _axes(keys: Keys) -> dict[str, int | str]:
    """Each degree as a part inside a node and a part across nodes, inner axes first."""
    layout, plan = keys.plan.layout, keys.plan
    zero, kind = keys.take("zero_stage"), keys.take("cp_kind")
    if layout.cp > 1 and kind not in _CP_KINDS:
        raise keys.cannot("cp_kind", "its strategies are all_gather and ring", *_CP_KINDS)
    keys.take("sequence_parallel")
    if zero in (1, 2):
        raise keys.cannot("zero_stage", "it shards all (fsdp) or nothing (data)", 0, 3)
    shard = keys.take("shard_degree")
    replicas, sharded = (layout.dp, 1) if zero == 0 else (1, layout.dp)
    if shard and zero:
        if shard % layout.cp or layout.cp > 1:
            raise keys.cannot("shard_degree", "its fsdp axis does not span cp")
        replicas, sharded = layout.dp // shard, shard
    degrees = {
        "tensor": keys.take("tp"),
        "context": keys.take("cp"),
        "expert": keys.take("ep"),
        "fsdp": sharded // layout.ep if sharded % layout.ep == 0 else sharded,
        "data": replicas,
        "pipeline": keys.take("pp"),
    }
    keys.take("dp")
    if sharded % layout.ep:
        raise keys.cannot("ep", f"its expert axis is cut out of {sharded} sharded replicas")
    if not keys.take("reshard") and zero == 3:
        raise keys.cannot("reshard", "XLA frees gathered weights as it sees fit", True)
    found: dict[str, int | str] = {}
    room = plan.gpus_a_node
    for axis, degree in degrees.items():
        inside = gcd(degree, room)
        room //= inside
        found[f"ici_{axis}_parallelism"] = inside
        found[f"dcn_{axis}_parallelism"] = degree // inside
    if layout.cp > 1:
        found["context_parallel_strategy"] = _CP_KINDS[kind]
    return found


def _pipeline(keys: Keys) -> dict[str, int]:
    layout, layers = keys.plan.layout, keys.plan.model.layers
    vpp, schedule = keys.take("vpp"), keys.take("schedule")
    keys.take("layers_per_stage")
    if schedule not in ("1f1b", "interleaved", "gpipe"):
        raise keys.cannot("schedule", "it has one pipeline, circular where repeats > 1", "gpipe")
    if layers % (layout.pp * vpp) or len(set(keys.plan.stages)) > 1:
        raise keys.cannot("layers_per_stage", f"pp x vpp has to divide {layers} layers")
    if layout.microbatches % layout.pp:
        raise keys.cannot("pp", f"it has to divide {layout.microbatches} microbatches")
    return {
        "num_pipeline_repeats": vpp,
        "num_layers_per_pipeline_stage": layers // (layout.pp * vpp),
        "num_pipeline_microbatches": layout.microbatches,
    }
