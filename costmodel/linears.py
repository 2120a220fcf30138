"""The linear layers of a transformer by name, and the low-rank adapters that go beside them.

LoRA leaves a weight W as it is and trains A (inner x rank) and B (rank x columns) beside it:
y = x W + (alpha / rank) x A B (Hu et al. 2021, arXiv 2106.09685, section 4.1). What alpha is
changes no price.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from layoutopt.costmodel.model import Frozen, Model

Cut = Literal["columns", "rows", "none"]
"""How tensor parallelism divides a layer: by what it makes, by what it reads, or not at all."""
Place = Literal["attention", "dense", "routed", "shared"]
"""Attention, the MLP of a dense layer, one routed expert, or the shared experts of a layer."""

ATTENTION_NAMES = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
)
MLP_NAMES = ("gate_proj", "up_proj", "down_proj")
"""Names of linear layers as Hugging Face's configurations of Llama and DeepSeek have them."""

_MERGED = {
    "q_proj": "linear_qkv",
    "k_proj": "linear_qkv",
    "v_proj": "linear_qkv",
    "gate_proj": "linear_fc1",
    "up_proj": "linear_fc1",
}
"""Layers that Megatron Core runs as one, and adapts as one where all of them are adapted."""


class Lora(Frozen):
    """Low-rank adapters: the only weights that are trained."""

    rank: int
    targets: tuple[str, ...]
    """Names of the adapted layers, in the order of `target_names`."""


USUAL_RANK = 32
"""Default of Megatron Bridge 0.3.1 (peft/lora.py, dim)."""


@dataclass(frozen=True)
class Linear:
    """One linear layer of one transformer layer, or of one expert."""

    name: str
    inner: int
    columns: int
    cut: Cut
    place: Place


@lru_cache(maxsize=1024)
def linear_layers(model: Model) -> tuple[Linear, ...]:
    """Every linear layer that an adapter can go beside, by place; the router is none."""
    found = list(_attention(model)) if model.attention_layers else []
    if model.dense_layers:
        found += _mlp(model, model.ffn, "dense")
    if model.moe is not None:
        found += _mlp(model, model.moe.expert_ffn, "routed")
        if model.moe.shared_ffn:
            found += _mlp(model, model.moe.shared_ffn, "shared")
    return tuple(found)


def target_names(model: Model) -> tuple[str, ...]:
    """The names that ``model`` has, each once."""
    return tuple(dict.fromkeys(layer.name for layer in linear_layers(model)))


def usual_adapters(model: Model, merges: bool) -> Lora:
    """Adapters that nothing more is said of: of rank 32 beside every linear layer (Megatron Bridge
    0.3.1, peft/lora.py), or beside attention's alone where experts share them (its recipes of
    mixtures of experts)."""
    names = target_names(model)
    if merges and model.moe is not None:
        names = tuple(name for name in names if name in ATTENTION_NAMES)
    return Lora(rank=USUAL_RANK, targets=names)


def _attention(model: Model) -> tuple[Linear, ...]:
    mla, hidden = model.mla, model.hidden

    def one(name: str, inner: int, columns: int, cut: Cut = "columns") -> Linear:
        return Linear(name, inner, columns, cut, "attention")

    if mla is None:
        return (
            one("q_proj", hidden, model.q_width),
            one("k_proj", hidden, model.kv_width),
            one("v_proj", hidden, model.kv_width),
            one("o_proj", model.q_width, hidden, "rows"),
        )
    if mla.q_lora_rank is None:
        queries: tuple[Linear, ...] = (one("q_proj", hidden, model.q_width),)
    else:
        queries = (
            one("q_a_proj", hidden, mla.q_lora_rank, "none"),
            one("q_b_proj", mla.q_lora_rank, model.q_width),
        )
    latent, value = mla.kv_lora_rank, mla.v_head_dim
    return (
        *queries,
        one("kv_a_proj_with_mqa", hidden, latent + mla.qk_rope_head_dim, "none"),
        one("kv_b_proj", latent, model.heads * (mla.qk_nope_head_dim + value)),
        one("o_proj", model.heads * value, hidden, "rows"),
    )


def _mlp(model: Model, width: int, place: Place) -> list[Linear]:
    inner = ["gate_proj", "up_proj"] if model.gated_mlp else ["up_proj"]
    into = [Linear(name, model.hidden, width, "columns", place) for name in inner]
    return [*into, Linear("down_proj", width, model.hidden, "rows", place)]


@lru_cache(maxsize=1024)
def adapted(model: Model, lora: Lora, merges: bool) -> tuple[Linear, ...]:
    """The layers that have an adapter each.

    ``merges``: the framework runs q, k, v as one layer, and gate and up as one, and puts one
    adapter beside it where all of them are targets (Megatron Core's linear_qkv and linear_fc1).
    """
    chosen = [layer for layer in linear_layers(model) if layer.name in lora.targets]
    if not merges:
        return tuple(chosen)
    whole = {
        merged
        for merged in _MERGED.values()
        if all(
            name in lora.targets
            for name, into in _MERGED.items()
            if into == merged and name in target_names(model)
        )
    }
    found: dict[tuple[str, Place], Linear] = {}
    for layer in chosen:
        merged = _MERGED.get(layer.name)
        if merged not in whole or (model.mla is not None and layer.place == "attention"):
            found[layer.name, layer.place] = layer
            continue
        name = str(merged)
        before = found.get((name, layer.place))
        columns = layer.columns + (before.columns if before else 0)
        found[name, layer.place] = Linear(name, layer.inner, columns, layer.cut, layer.place)
    return tuple(found.values())
