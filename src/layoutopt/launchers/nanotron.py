"""nanotron's YAML: the sections that a layout decides."""

from __future__ import annotations

from typing import Any

import yaml

from layoutopt.launchers.keys import Keys
from layoutopt.launchers.plan import Plan

NAME = "nanotron"
_ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}


def config(plan: Plan) -> str:
    """The YAML file; raises RuleError for what nanotron cannot say."""
    keys, training = Keys(plan, NAME), plan.training
    _refuse_shapes(keys)
    found: dict[str, Any] = {
        "parallelism": _parallelism(keys),
        "tokens": {
            "sequence_length": training.seq_len,
            "train_steps": training.steps,
            "micro_batch_size": keys.take("micro_batch"),
            "batch_accumulation_per_replica": plan.layout.microbatches,
        },
        "optimizer": {"zero_stage": _zero(keys)},
    }
    if training.precision not in ("bf16", "fp16", "fp32"):
        raise keys.cannot("precision", f"{training.precision} is not in its configuration", "bf16")
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    found["model"] = {"dtype": names[training.precision]}
    if plan.interval_steps:
        found["checkpoints"] = {
            "checkpoints_path": "checkpoints",
            "checkpoint_interval": plan.interval_steps,
        }
    keys.finish()
    head = f"# {plan.title()}; written by layoutopt: merge with your model and data sections.\n"
    return head + yaml.safe_dump(found, sort_keys=False)


def _refuse_shapes(keys: Keys) -> None:
    """nanotron's own checks: tp no larger than the key-value heads; even stages by cost."""
    model, layout = keys.plan.model, keys.plan.layout
    if layout.tp > model.kv_heads:
        raise keys.cannot("tp", f"it needs one of {model.kv_heads} key-value heads on every rank")
    if layout.vpp > 1:
        raise keys.cannot("vpp", "it does not interleave", 1)


def _parallelism(keys: Keys) -> dict[str, Any]:
    layout = keys.plan.layout
    schedule, kind = keys.take("schedule"), keys.take("cp_kind")
    if layout.pp > 1 and schedule not in _ENGINES:
        raise keys.cannot("schedule", "its engines are 1f1b and afab (gpipe)", *_ENGINES)
    if layout.cp > 1 and kind != "ring":
        raise keys.cannot("cp_kind", "its context parallelism is a ring", "ring")
    recompute = keys.take("recompute")
    if recompute == "selective":
        raise keys.cannot("recompute", "it recomputes whole layers", "full", "none")
    found: dict[str, Any] = {
        "dp": keys.take("dp"),
        "pp": keys.take("pp"),
        "tp": keys.take("tp"),
        "context_parallel_size": keys.take("cp"),
        "expert_parallel_size": keys.take("ep"),
        "pp_engine": _ENGINES.get(schedule, "1f1b"),
        "tp_mode": "REDUCE_SCATTER" if keys.take("sequence_parallel") else "ALL_REDUCE",
        "recompute_layer": recompute == "full",
    }
    return found


def _zero(keys: Keys) -> int:
    zero = int(keys.take("zero_stage"))
    if zero > 1:
        raise keys.cannot("zero_stage", "it shards the optimizer alone", 0, 1)
    return zero
