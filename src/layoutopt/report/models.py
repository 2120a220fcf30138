"""What is known of models, with sources: a list, or one of them in full."""

from __future__ import annotations

from typing import Any

from layoutopt.costmodel.counts import Counts, count
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.models import load_model, model_names
from layoutopt.report.console import render, table
from layoutopt.units import format_count

SCHEMA = "layoutopt.models/1"


def models_list(*, color: bool = False) -> str:
    """Every model of the catalogue, one line each, smallest first."""
    models = sorted((load_model(name) for name in model_names()), key=lambda m: count(m).total)
    header = ("Model", "layers", "hidden", "heads", "kv", "vocab", "params", "active")
    items: list[Any] = [
        table([_row(model) for model in models], header, right=range(1, 8)),
        "\n`layoutopt models NAME` shows one with its source. --model also takes a size (405B), a\n"
        "Hugging Face config.json, a YAML file, or - for standard input.",
    ]
    return render(items, color=color)


def model_page(model: Model, note: str | None = None, *, color: bool = False) -> str:
    """One model: its shape, its exact counts by part, its source."""
    counts = count(model)
    shape = [
        (name, str(value))
        for name, value in model.model_dump(exclude={"name", "source", "moe", "mla"}).items()
        if value not in (None, False, 0, "none", ())
        and (name != "local_kind" or model.sliding_window is not None)
    ]
    nested = [
        (f"{kind}.{name}", str(value))
        for kind, part in (("moe", model.moe), ("mla", model.mla))
        if part is not None
        for name, value in part.model_dump().items()
    ]
    items: list[Any] = [f"{model.name}: {format_count(counts.total)} parameters"]
    items += [note] if note else []
    items += ["", table([*shape, *nested], ("shape", "value"), right=(1,))]
    items += ["", table(_count_rows(counts), ("parameters", "count"), right=(1,))]
    return render([*items, f"\nsource: {model.source or 'yours'}"], color=color)


def model_json(model: Model, note: str | None = None) -> dict[str, Any]:
    """One model as plain values."""
    counts = count(model)
    return {
        "schema": SCHEMA,
        "kind": "model",
        **model.model_dump(mode="json"),
        "parameters": counts.total,
        "active_parameters": counts.active,
        "note": note,
    }


def models_list_json() -> dict[str, Any]:
    """Names of the catalogue."""
    return {"schema": SCHEMA, "kind": "list", "models": list(model_names())}


def _row(model: Model) -> tuple[str, ...]:
    counts = count(model)
    return (
        model.name,
        f"{model.layers}",
        f"{model.hidden:,}",
        f"{model.heads}",
        f"{model.kv_heads}",
        f"{model.vocab:,}",
        format_count(counts.total),
        format_count(counts.active) if counts.active < counts.total else "",
    )


def _count_rows(counts: Counts) -> list[tuple[str, str]]:
    dense, moe = counts.layers - counts.moe_layers, counts.moe_layers
    if counts.mamba_layers:
        return _hybrid_rows(counts)
    rows = [
        ("input embedding", counts.embedding_params),
        (f"{dense} dense layers, each", counts.dense_layer_params if dense else 0),
        (f"{moe} expert layers, each", counts.moe_layer_params(counts.experts) if moe else 0),
        ("one expert", counts.expert_params),
        ("final norm", counts.final_norm_params),
        ("output matrix", counts.head_params),
        ("total", counts.total),
        ("active for a token", counts.active),
    ]
    return [(name, f"{value:,}") for name, value in rows if value]


def _hybrid_rows(counts: Counts) -> list[tuple[str, str]]:
    """The same of a hybrid stack, block by block."""
    routed = counts.router_params + counts.shared_expert_params
    experts = routed + counts.experts * counts.expert_params
    rows = [
        ("input embedding", counts.embedding_params, 1),
        (f"{counts.mamba_layers} Mamba-2 mixers, each", counts.mamba_params, 1),
        (f"{counts.attention_layers} attentions, each", counts.attention_params, 1),
        (f"{counts.dense_layers} dense MLPs, each", counts.dense_mlp_params, counts.dense_layers),
        (f"{counts.moe_layers} expert MLPs, each", experts, counts.moe_layers),
        ("one expert", counts.expert_params, 1),
        (f"norms of {counts.layers} layers, each", counts.norm_params, 1),
        ("final norm", counts.final_norm_params, 1),
        ("output matrix", counts.head_params, 1),
        ("total", counts.total, 1),
        ("active for a token", counts.active, 1),
    ]
    return [(name, f"{value:,}") for name, value, there in rows if value and there]
