"""Estimates, layouts and searches as the JSON of schema layoutopt.plan/1."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from layoutopt.costmodel.checkpoint_plan import checkpoint_plan
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import BREAKDOWN, Estimate, Memory, StageMemory, StepTime
from layoutopt.costmodel.stages import even_split
from layoutopt.inputs.layout_text import layout_to_dict, pools_text, recompute_text, stages_text
from layoutopt.optimizer.outcome import Alternative, Miss, SearchReport
from layoutopt.optimizer.sensitivity import Worth
from layoutopt.units import HOUR

FLOPS_CONVENTION = (
    "model FLOPs: (6 x active parameters + causal attention) x tokens, recompute not counted, "
    "over the dense peak of the precision; mfu_6nd leaves attention out; hfu counts recompute"
)

LORA_CONVENTION = (
    "model FLOPs: (4 x active parameters + 6 x adapters + causal attention) x tokens: frozen "
    "weights have no weight gradients; recompute not counted, over the dense peak of the "
    "precision; mfu_6nd counts 6 x active parameters alone; hfu counts recompute"
)

_USUAL = Layout()


def layers_per_stage(layout: Layout, layers: int) -> tuple[int, ...]:
    """The layout's own split, or the even one that None stands for."""
    return layout.layers_per_stage or even_split(layers, layout.pp)


def layout_json(layout: Layout, job: Job) -> dict[str, Any]:
    """Every key of ``--layout``, and the totals: gpus and global_batch."""
    entry = layout_to_dict(layout, layers_per_stage(layout, job.model.layers))
    return {**entry, "gpus": layout.gpus, "global_batch": job.training.global_batch}


def layout_line(layout: Layout) -> str:
    """``layout`` in the words of ``--layout``; degrees of 1 and usual values are left out."""
    parts = [f"tp={layout.tp}"]
    parts += [f"cp={layout.cp}"] if layout.cp > 1 else []
    parts += [f"pp={layout.pp}", f"dp={layout.dp}"]
    inner = {axis: getattr(layout, axis) for axis in ("ep", "etp", "vpp")}
    parts += [f"{axis}={degree}" for axis, degree in inner.items() if degree > 1]
    parts += [f"micro_batch={layout.micro_batch}", f"microbatches={layout.microbatches}"]
    parts += [f"zero_stage={layout.zero_stage}", f"recompute={recompute_text(layout)}"]
    flags = ("offload_optimizer", "offload_activations")
    for name in ("shard_degree", "reshard", *flags, "cp_kind", "axis_order"):
        if getattr(layout, name) != getattr(_USUAL, name):
            parts.append(f"{name}={str(getattr(layout, name)).lower()}")
    if layout.schedule not in ("1f1b", "interleaved"):
        parts.append(f"schedule={layout.schedule}")
    if layout.tp > 1 and not layout.sequence_parallel:
        parts.append("sequence_parallel=false")
    if layout.layers_per_stage:
        parts.append(f"layers_per_stage={stages_text(layout.layers_per_stage)}")
    if layout.pools_per_stage:
        parts.append(f"pools_per_stage={pools_text(layout.pools_per_stage)}")
    return ",".join(parts)


def layout_difference(layout: Layout, best: Layout) -> str:
    """What ``layout`` has other than ``best``, in the words of ``--layout``."""
    mine, its = (layout_to_dict(one, one.layers_per_stage or ()) for one in (layout, best))
    follows = {"schedule", "sequence_parallel"} if layout.tp == 1 else {"schedule"}
    changed = {key: value for key, value in mine.items() if value != its[key]}
    words = {
        key: _list_text(key, value) if isinstance(value, list) else str(value).lower()
        for key, value in changed.items()
        if key not in follows and value not in (None, [])
    }
    return ", ".join(f"{key}={word}" for key, word in words.items())


def _list_text(key: str, value: list[Any]) -> str:
    return pools_text(value) if key == "pools_per_stage" else stages_text(value)


def step_json(step: StepTime, job: Job) -> dict[str, Any]:
    """Seconds and rates of one step."""
    return {
        "time_s": step.time_s,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "tflops_per_gpu": step.tflops_per_gpu,
        "mfu": step.mfu,
        "mfu_6nd": step.mfu_6nd,
        "hfu": step.hfu,
        "flops_convention": LORA_CONVENTION if job.training.lora else FLOPS_CONVENTION,
        "breakdown_s": {part: step.breakdown_s[part] for part in BREAKDOWN},
    }


def memory_json(memory: Memory) -> dict[str, Any]:
    """Bytes per GPU: the worst stage's, and each listed stage's by part."""
    worst = memory.worst
    return {
        "capacity_bytes": memory.capacity_bytes,
        "usable_bytes": memory.usable_bytes,
        "peak_bytes": worst.reserved,
        "peak_allocated_bytes": worst.allocated,
        "peak_moment": worst.peak_moment,
        "fits": memory.fits,
        "peak_stage": worst.stage,
        "stages": [_stage_json(stage) for stage in memory.stages],
        "host_bytes": memory.host_bytes,
        "host_usable_bytes": memory.host_usable_bytes,
    }


def estimate_json(estimate: Estimate | None, job: Job) -> dict[str, Any]:
    """layout, step, memory, checkpoint and run; all null where there is no plan."""
    if estimate is None:
        return dict.fromkeys(("layout", "step", "memory", "checkpoint", "run"))
    return {
        "layout": layout_json(estimate.layout, job),
        "step": step_json(estimate.step, job),
        "memory": memory_json(estimate.memory),
        "checkpoint": {
            **asdict(estimate.checkpoint),
            **asdict(checkpoint_plan(job, estimate)),
        },
        "run": asdict(estimate.run),
    }


def search_json(search: SearchReport | None) -> dict[str, Any] | None:
    """What the solver did; null where none ran."""
    return asdict(search) if search else None


def alternative_json(alternative: Alternative, job: Job) -> dict[str, Any]:
    """A layout that lost, with its figures and the reason."""
    estimate = alternative.estimate
    return {
        "layout": layout_json(estimate.layout, job),
        "step_time_s": estimate.step.time_s,
        "wall_time_s": estimate.run.wall_time_s,
        "cost_usd": estimate.run.cost_usd,
        "energy_kwh": estimate.run.energy_kwh,
        "memory": {
            "peak_bytes": estimate.memory.worst.reserved,
            "peak_stage": estimate.memory.worst.stage,
        },
        "reason": alternative.reason,
    }


def point_json(estimate: Estimate, job: Job) -> dict[str, Any]:
    """A point of the front: the best layout of one GPU count, with its run."""
    return {
        "gpus": estimate.layout.gpus,
        "layout": layout_json(estimate.layout, job),
        "step_time_s": estimate.step.time_s,
        "wall_time_s": estimate.run.wall_time_s,
        "cost_usd": estimate.run.cost_usd,
        "energy_kwh": estimate.run.energy_kwh,
        "gpu_hours": estimate.run.wall_time_s * estimate.layout.gpus / HOUR,
        "peak_bytes": estimate.memory.worst.reserved,
    }


def worth_json(worth: Worth, plan: Estimate | None, job: Job) -> dict[str, Any]:
    """What one improvement of the machine saves; nulls where time was up before its proof."""
    best, saved = worth.estimate, worth.saved_s
    if best is None or plan is None or saved is None:
        keys = ("saved_s", "saved_share", "wall_time_s", "layout", "same_layout")
        return {"change": worth.change, **dict.fromkeys(keys)}
    return {
        "change": worth.change,
        "saved_s": saved,
        "saved_share": saved / plan.run.wall_time_s,
        "wall_time_s": best.run.wall_time_s,
        "layout": layout_json(best.layout, job),
        "same_layout": best.layout == plan.layout,
    }


def miss_json(miss: Miss, job: Job) -> dict[str, Any]:
    """The layout that came nearest to a limit, by how much it missed, and what would help."""
    return {
        "limit": miss.limit,
        "stage": miss.stage,
        "over_bytes": miss.over_bytes,
        "over_s": miss.over_s,
        "over_usd": miss.over_usd,
        "over_w": miss.over_w,
        "layout": layout_json(miss.layout, job),
        "changes": [asdict(change) for change in miss.changes],
    }


def _stage_json(stage: StageMemory) -> dict[str, Any]:
    return {**asdict(stage), "allocated": stage.allocated, "reserved": stage.reserved}
