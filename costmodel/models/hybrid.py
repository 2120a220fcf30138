"""Nemotron-H configs (transformers, NemotronHForCausalLM): one block a layer, by a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layoutopt.costmodel.model import Mamba, Model, Moe
from layoutopt.costmodel.models.checks import check_model, refuse
from layoutopt.costmodel.models.families import Family
from layoutopt.costmodel.models.keys import Keys

NEMOTRON_H = "nemotron_h"
"""The ``model_type`` of these configs."""
BLOCKS = "M*E-"
"""Letters of ``hybrid_override_pattern``: Mamba-2 mixer, attention, experts, dense MLP."""


def nemotron_h(config: Mapping[str, Any], name: str, file: str) -> Model:
    """The architecture of a Nemotron-H config: squared-ReLU MLPs, RMSNorm, no position table.

    Raises ProfileError naming file, key and value.
    """
    keys = Keys(config, file, Family(gated=False))
    pattern = _pattern(keys)
    experts = _experts(keys, pattern)
    return check_model(
        Model(
            name=name,
            layers=len(pattern),
            hidden=keys.need("hidden", "hidden_size"),
            heads=keys.need("heads", "num_attention_heads"),
            kv_heads=keys.need("kv_heads", "num_key_value_heads"),
            head_dim=keys.need("head_dim", "head_dim", "attention_head_dim"),
            ffn=keys.need("ffn", "intermediate_size"),
            gated_mlp=False,
            vocab=keys.need("vocab", "vocab_size"),
            tied_embeddings=keys.flag("tie_word_embeddings", False),
            max_seq_len=keys.count("positions", "max_position_embeddings"),
            norms_per_layer=1,
            mlp_bias=keys.flag("mlp_bias", False),
            qkv_bias=keys.flag("attention_bias", False),
            attention_out_bias=keys.flag("attention_bias", False),
            moe=experts,
            mamba=_mixers(keys, pattern),
            source=file,
        ),
        file,
    )


def _pattern(keys: Keys) -> str:
    """The blocks of all layers; as many as ``num_hidden_layers`` says."""
    found = keys.find("hybrid_override_pattern")[1]
    layers = keys.need("layers", "num_hidden_layers")
    if not isinstance(found, str) or set(found) - set(BLOCKS):
        refuse(keys.file, "hybrid_override_pattern", found, f"not a text of {BLOCKS!r} alone")
    if len(found) != layers:
        why = f"which names {len(found)} layers, but num_hidden_layers is {layers}"
        refuse(keys.file, "hybrid_override_pattern", found, why, (layers,))
    if "M" not in found:
        refuse(keys.file, "hybrid_override_pattern", found, "without any Mamba layer (M)")
    return found


def _mixers(keys: Keys, pattern: str) -> Mamba:
    return Mamba(
        layers=pattern.count("M"),
        attention_layers=pattern.count("*"),
        heads=keys.need("heads", "mamba_num_heads"),
        head_dim=keys.need("head_dim", "mamba_head_dim"),
        state=keys.need("hidden", "ssm_state_size"),
        groups=keys.need("heads", "n_groups"),
        conv=keys.need("hidden", "conv_kernel"),
        chunk=keys.need("hidden", "chunk_size"),
    )


def _experts(keys: Keys, pattern: str) -> Moe | None:
    """Routed experts, each two matrices, and a shared one, in the layers that the pattern says."""
    layers = pattern.count("E")
    if not layers:
        return None
    return Moe(
        experts=keys.need("experts", "n_routed_experts"),
        top_k=keys.need("experts", "num_experts_per_tok"),
        expert_ffn=keys.need("ffn", "moe_intermediate_size"),
        shared_ffn=(keys.count("experts", "n_shared_experts", low=0) or 0)
        * keys.need("ffn", "moe_shared_expert_intermediate_size"),
        layers=layers,
        router_bias=True,
    )
