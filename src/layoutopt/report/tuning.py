"""What a fine-tuning run trains, and how documents fill its sequences: JSON and lines."""

from __future__ import annotations

from typing import Any

from layoutopt.costmodel.adapters import adapter_parameters
from layoutopt.costmodel.counts import count, mean_context_tokens
from layoutopt.costmodel.job import Job
from layoutopt.units import format_count


def finetune_json(job: Job) -> dict[str, Any] | None:
    """Parameters that are trained and frozen; None for pretraining."""
    training = job.training
    if training.finetune is None:
        return None
    total = count(job.model).total_with_mtp
    trained = adapter_parameters(job) if training.lora else total
    held = total + (trained if training.lora else 0)
    return {
        "trained_parameters": trained,
        "frozen_parameters": total if training.lora else 0,
        "trained_share": trained / held,
    }


def documents_json(job: Job) -> dict[str, Any] | None:
    """Tokens and positions of a step, and what a token attends to; None without documents."""
    training = job.training
    if training.documents is None:
        return None
    context = mean_context_tokens(job.model, training.seq_len, training.documents)
    return {
        "tokens_per_step": training.tokens_per_step * training.filled_share,
        "positions_per_step": training.tokens_per_step,
        "filled_share": training.filled_share,
        "mean_context_tokens": context,
    }


def tuning_lines(job: Job) -> list[tuple[str, str]]:
    """Lines of the table."""
    lines, tuned, documents = [], finetune_json(job), documents_json(job)
    lora = job.training.lora
    if tuned and lora:
        lines.append(
            (
                "Trains",
                f"{format_count(tuned['trained_parameters'])} of adapters, rank {lora.rank} beside "
                f"{', '.join(lora.targets)}: {tuned['trained_share']:.2%} of what is held",
            )
        )
    elif tuned:
        lines.append(("Trains", "every parameter of a trained model"))
    said = job.training.documents
    if documents and said:
        kind = "" if said.lengths == "fixed" else " on average, exponential"
        how = "packed" if said.packed else "each padded to the sequence"
        lines.append(
            (
                "Documents",
                f"{said.mean_tokens:,} tokens{kind}, {how}: {documents['filled_share']:.1%} of "
                f"positions hold tokens, which attend to {documents['mean_context_tokens']:,.0f}",
            )
        )
    return lines
