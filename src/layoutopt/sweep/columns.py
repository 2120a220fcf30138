"""An answer as a row: plain values under names that carry their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.results import BREAKDOWN, Estimate, StageMemory
from layoutopt.inputs.layout_text import layout_to_dict, recompute_text, stages_text
from layoutopt.inputs.tuning import Tuning, tuning_json
from layoutopt.report.plan_json import layers_per_stage, layout_line
from layoutopt.report.uncertainty import uncertainty
from layoutopt.units import DAY, GIB

if TYPE_CHECKING:
    from layoutopt.inputs.request import Request
    from layoutopt.report.answer import Answer

TEXT, INTEGER, REAL = "TEXT", "INTEGER", "REAL"

STATUSES = ("optimal", "feasible", "infeasible", "unknown", "refused", "failed")
"""How a point can end. The first two have a layout; ``refused``: arithmetic or a framework's rule
excludes every layout; ``failed``: a fault of ours, or of the machine, named in ``reason``."""
PROVED = ("optimal", "infeasible", "refused")
"""Answers that the same question gets again."""

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "reserve")
_DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch", "microbatches")

QUESTION: dict[str, str] = {
    "model": TEXT,
    "gpu": TEXT,
    "cluster": TEXT,
    "gpus": INTEGER,
    "gpus_per_node": INTEGER,
    "seq_len_tokens": INTEGER,
    "global_batch_sequences": INTEGER,
    "run_tokens": INTEGER,
    "precision": TEXT,
    "framework": TEXT,
    "finetune": TEXT,
    "lora_rank": INTEGER,
    "lora_targets": TEXT,
    "document_length": TEXT,
    "packing": INTEGER,
    "objective": TEXT,
    "fix": TEXT,
    "limits": TEXT,
    "deadline_s": REAL,
    "budget_usd": REAL,
    "parameters": INTEGER,
    "active_parameters": INTEGER,
    "layers": INTEGER,
    "hidden": INTEGER,
    "ffn_hidden": INTEGER,
}
ANSWER: dict[str, str] = {
    "layout": TEXT,
    **dict.fromkeys(_DEGREES, INTEGER),
    "zero_stage": INTEGER,
    "recompute": TEXT,
    "sequence_parallel": INTEGER,
    "schedule": TEXT,
    "layers_per_stage": TEXT,
    "step_time_s": REAL,
    "step_time_uncertainty_rel": REAL,
    "tokens_per_s_per_gpu": REAL,
    "tflops_per_gpu": REAL,
    "mfu": REAL,
    "hfu": REAL,
    **{f"{part}_s": REAL for part in BREAKDOWN},
    "peak_memory_gib": REAL,
    "usable_memory_gib": REAL,
    **{f"{part}_gib": REAL for part in MEMORY_PARTS},
    "checkpoint_interval_s": REAL,
    "checkpoint_bytes": INTEGER,
    "run_steps": INTEGER,
    "ideal_days": REAL,
    "wall_days": REAL,
    "overhead_share": REAL,
    "interruptions": REAL,
    "cost_usd": REAL,
    "energy_kwh": REAL,
    "objective_gap_rel": REAL,
    "legal_layouts": INTEGER,
    "search_s": REAL,
    "uncertainty_basis": TEXT,
    "assumptions": TEXT,
    "warnings": TEXT,
}
RESULT = {"status": TEXT, "reason": TEXT, **QUESTION, **ANSWER}
"""Columns that an answer fills, in their order."""


def answer_row(answer: Answer) -> dict[str, Any]:
    """Every column of RESULT for an answer of ``solve``; what there is no figure for is None."""
    row: dict[str, Any] = dict.fromkeys(RESULT)
    row.update(request_row(answer.request))
    row.update(status=answer.status, reason=_reason(answer))
    if answer.plan is not None:
        row.update(_plan_row(answer.plan, answer.request.job.model.layers))
        band = uncertainty(answer.request)
        row.update(step_time_uncertainty_rel=band["step_time_rel"], uncertainty_basis=band["basis"])
    if answer.search is not None:
        row.update(
            objective_gap_rel=answer.search.gap,
            legal_layouts=answer.search.candidates,
            search_s=answer.search.wall_s,
        )
    row["warnings"] = "; ".join(answer.warnings) or None
    return row


def request_row(request: Request) -> dict[str, Any]:
    """The columns of QUESTION for a request."""
    job, asked = request.job, request.asked
    counts, training = count(job.model), job.training
    return {
        "model": job.model.name,
        "gpu": job.cluster.gpu.name,
        "cluster": job.cluster.name,
        "gpus": job.gpus,
        "gpus_per_node": job.cluster.gpus_per_node,
        "seq_len_tokens": training.seq_len,
        "global_batch_sequences": training.global_batch,
        "run_tokens": training.tokens,
        "precision": training.precision,
        "framework": job.software.name,
        **_tuning_row(request),
        "objective": asked.get("objective"),
        "fix": _pairs(asked.get("fix") or {}),
        "limits": ",".join(asked.get("limit") or ()) or None,
        "deadline_s": asked.get("deadline_s"),
        "budget_usd": asked.get("budget_usd"),
        "parameters": counts.total,
        "active_parameters": counts.active,
        "layers": job.model.layers,
        "hidden": job.model.hidden,
        "ffn_hidden": job.model.ffn,
    }


def _tuning_row(request: Request) -> dict[str, Any]:
    """What of a trained model is trained, and how documents fill sequences; None: not asked."""
    training = request.job.training
    said = tuning_json(Tuning(training.finetune, training.lora, training.documents))
    length, packing = said.get("document_length"), said.get("packing")
    return {
        "finetune": said.get("finetune"),
        "lora_rank": said.get("lora_rank"),
        "lora_targets": ",".join(said.get("lora_targets", ())) or None,
        "document_length": None if length is None else str(length),
        "packing": None if packing is None else int(packing),
    }


def _pairs(values: Mapping[str, Any]) -> str | None:
    return ",".join(f"{name}={value}" for name, value in values.items()) or None


def _plan_row(plan: Estimate, layers: int) -> dict[str, Any]:
    layout, step, worst, run = plan.layout, plan.step, plan.memory.worst, plan.run
    stages = layers_per_stage(layout, layers)
    entry = layout_to_dict(layout, stages)
    return {
        "layout": layout_line(layout),
        **{name: entry[name] for name in (*_DEGREES, "zero_stage", "schedule")},
        "recompute": recompute_text(layout),
        "sequence_parallel": int(layout.sequence_parallel),
        "layers_per_stage": stages_text(stages),
        "step_time_s": step.time_s,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "tflops_per_gpu": step.tflops_per_gpu,
        "mfu": step.mfu,
        "hfu": step.hfu,
        **{f"{part}_s": step.breakdown_s[part] for part in BREAKDOWN},
        "peak_memory_gib": worst.reserved / GIB,
        "usable_memory_gib": plan.memory.usable_bytes / GIB,
        **_memory_row(worst),
        "checkpoint_interval_s": plan.checkpoint.interval_s,
        "checkpoint_bytes": plan.checkpoint.bytes,
        "run_steps": run.steps,
        "ideal_days": run.ideal_s / DAY,
        "wall_days": run.wall_time_s / DAY,
        "overhead_share": run.overhead_share,
        "interruptions": run.expected_interruptions,
        "cost_usd": run.cost_usd,
        "energy_kwh": run.energy_kwh,
        "assumptions": ",".join(plan.assumptions) or None,
    }


def _memory_row(worst: StageMemory) -> dict[str, float]:
    return {f"{part}_gib": getattr(worst, part) / GIB for part in MEMORY_PARTS}


def _reason(answer: Answer) -> str | None:
    """Why there is no layout, in one sentence."""
    if answer.status == "unknown":
        return "out of time with no layout"
    if answer.status == "feasible" and answer.search and answer.search.gap is not None:
        return f"out of time: at most {answer.search.gap:.1%} better is possible"
    if answer.status != "infeasible" or not answer.misses:
        return None
    miss = answer.misses[0]
    over = {
        "bytes": miss.over_bytes and f"{miss.over_bytes / GIB:,.2f} GiB on stage {miss.stage}",
        "s": miss.over_s and f"{miss.over_s / DAY:,.2f} days",
        "usd": miss.over_usd and f"{miss.over_usd:,.0f} US dollars",
    }
    by = next((text for text in over.values() if text), "an unknown amount")
    return f"{miss.limit} is exceeded by {by}, at the least"
