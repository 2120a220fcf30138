"""Hugging Face ``config.json`` to Model, with what each model class leaves unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from layoutopt.costmodel.model import Mla, Model, Moe
from layoutopt.costmodel.models.checks import (
    LIMITS,
    a_count,
    check_model,
    divisors_near,
    missing,
    refuse,
)
from layoutopt.costmodel.models.families import (
    ATTENTION_KINDS,
    FAMILIES,
    HYBRID_KEYS,
    NOT_GATED,
    Family,
)
from layoutopt.costmodel.models.hybrid import NEMOTRON_H, nemotron_h
from layoutopt.costmodel.models.keys import Keys

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
VOCAB = ("vocab_size",)
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k")
NESTED = ("text_config", "llm_config", "language_config")


def model_from_config(config: Mapping[str, Any], name: str, source_file: str) -> Model:
    """The architecture that a Hugging Face ``config.json`` describes.

    Quantisation, dropout and rotary settings are left aside; a nested ``text_config`` is taken
    for a model of text and images. Raises ProfileError naming file, key and value.
    """
    return imported(config, name, source_file)[0]


def imported(config: Mapping[str, Any], name: str, file: str) -> tuple[Model, str | None]:
    """As ``model_from_config``, with a note where the model class is not one we know."""
    flat = _text_part(config, file)
    if flat.get("model_type") == NEMOTRON_H:
        return nemotron_h(flat, name, file), None
    family, note = _family(flat, file)
    keys = Keys(flat, file, family)
    hidden, heads = keys.need("hidden", *HIDDEN), keys.need("heads", *HEADS)
    layers = keys.need("layers", *LAYERS)
    mla = _mla(keys)
    moe = _moe(keys, layers)
    positions = keys.count("positions", *POSITIONS)
    window, global_layers = _windows(keys, layers)
    model = Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(keys, heads),
        head_dim=mla.qk_nope_head_dim if mla else _head_dim(keys, hidden, heads),
        ffn=_dense_ffn(keys, hidden, moe),
        gated_mlp=family.gated,
        vocab=keys.need("vocab", *VOCAB),
        tied_embeddings=keys.flag("tie_word_embeddings", family.tied),
        max_seq_len=positions,
        learned_positions=_learned_positions(keys, positions),
        norm=family.norm,
        norms_per_layer=family.norms_per_layer,
        qk_norm=_qk_norm(keys),  # type: ignore[arg-type]
        embedding_norm=family.embedding_norm,
        attention_sinks=family.sinks,
        parallel_block=family.parallel,
        sliding_window=window,
        global_layers=global_layers,
        local_kind="chunk" if family.chunked else "window",
        moe=moe,
        mla=mla,
        mamba=None,
        mtp_layers=keys.count("layers", "num_nextn_predict_layers", low=0) or 0,
        source=file,
        **_biases(keys),
    )
    named = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "kv_heads": KV_HEADS, "ffn": FFN}
    return check_model(model, file, {ours: keys.find(*hf)[0] for ours, hf in named.items()}), note


def _text_part(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The language model's keys: those nested, with the outer ``tie_word_embeddings``."""
    for key in NESTED:
        inner = config.get(key)
        if inner is None:
            continue
        if not isinstance(inner, dict):
            refuse(file, key, inner, "not an object of keys")
        outer = {k: config[k] for k in ("tie_word_embeddings",) if k in config}
        model_type = config.get("model_type")
        if "model_type" not in inner and isinstance(model_type, str):
            outer["model_type"] = f"{model_type}_text"
        return {**outer, **inner}
    return dict(config)


def _family(config: Mapping[str, Any], file: str) -> tuple[Family, str | None]:
    """The class's fixed traits, and a note where it is read as a Llama-like one."""
    model_type = config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        refuse(file, "model_type", model_type, "not a name", sorted(FAMILIES))
    if config.get("is_encoder_decoder") is True:
        refuse(file, "is_encoder_decoder", True, "and only decoders are modelled", (False,))
    hybrid = [key for key in HYBRID_KEYS if config.get(key) is not None]
    if hybrid:
        why = "a key of state-space or linear-attention layers, which are not modelled"
        refuse(file, hybrid[0], config[hybrid[0]], why)
    kinds = config.get("layer_types")
    strange = [k for k in kinds if k not in ATTENTION_KINDS] if isinstance(kinds, list) else []
    if strange:
        why = "a kind of layer that is not modelled"
        refuse(file, "layer_types", strange[0], why, ATTENTION_KINDS)
    if model_type in FAMILIES:
        return _adapted(FAMILIES[model_type], config, file), None
    gated = config.get("hidden_act") not in NOT_GATED
    note = (
        f"model_type {model_type!r} is not known: read as a Llama-like decoder"
        f" ({'gated' if gated else 'two-matrix'} MLP, RMSNorm); counts may be slightly off"
    )
    return Family(gated=gated), note


def _adapted(family: Family, config: Mapping[str, Any], file: str) -> Family:
    """The family with what the config's own switches change in its blocks."""
    keys = Keys(config, file, family)
    model_type = config["model_type"]
    if model_type == "falcon":
        new, parallel = (
            keys.flag("new_decoder_architecture", False),
            keys.flag("parallel_attn", True),
        )
        given = keys.count("layers", "num_ln_in_parallel_attn")
        norms = (given or (2 if new else 1)) if parallel else 2
        return replace(family, parallel=parallel, norms_per_layer=norms)
    if model_type == "mpt" and not keys.flag("no_bias", True):
        return replace(family, norm="layernorm", qkv_bias=True, out_bias=True, mlp_bias=True)
    if model_type == "gpt_neox":
        biased = keys.flag("attention_bias", True)
        parallel = keys.flag("use_parallel_residual", True)
        return replace(family, qkv_bias=biased, out_bias=biased, parallel=parallel)
    return family


def _kv_heads(keys: Keys, heads: int) -> int:
    """Key/value heads: as given, one where ``multi_query`` says so, else as many as heads."""
    given = keys.count("kv_heads", *KV_HEADS)
    multi_query_default = keys.config.get("model_type") in ("falcon", "gpt_bigcode")
    new_falcon = keys.flag("new_decoder_architecture", False)
    if multi_query_default and not new_falcon:
        return 1 if keys.flag("multi_query", True) else given or heads
    return given or heads


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    given = keys.count("head_dim", "head_dim")
    if given:
        return given
    if hidden % heads:
        name = keys.find(*HEADS)[0]
        why = f"which does not divide {keys.find(*HIDDEN)[0]} {hidden}, and there is no head_dim"
        refuse(keys.file, name, heads, why, divisors_near(hidden, heads))
    return hidden // heads


def _dense_ffn(keys: Keys, hidden: int, moe: Moe | None) -> int:
    """Inner width of the dense MLP; Llama 4 keeps it apart from the experts' width."""
    given = keys.count("ffn", "intermediate_size_mlp", *FFN)
    if given:
        return given
    if keys.config.get("model_type") == "mpt":
        ratio = keys.count("ffn", "expansion_ratio")
        return (ratio or 4) * hidden
    if keys.family.ffn_of_hidden:
        return keys.family.ffn_of_hidden * hidden
    if moe:
        return moe.expert_ffn
    missing(keys.file, FFN[0], keys.config, FFN)


def _learned_positions(keys: Keys, positions: int | None) -> int:
    """Rows of the position table, where the class has one (MPT: unless it uses ALiBi)."""
    if keys.config.get("model_type") == "mpt":
        attention = keys.config.get("attn_config")
        alibi = isinstance(attention, dict) and attention.get("alibi") is True
        return 0 if alibi else positions or 2048
    if not keys.family.learned_positions:
        return 0
    if positions is None:
        missing(keys.file, POSITIONS[0], keys.config, POSITIONS)
    return positions + keys.family.position_offset


def _qk_norm(keys: Keys) -> str:
    switch = keys.family.qk_norm_key
    if switch and not keys.flag(switch, False):
        return "none"
    return keys.family.qk_norm


def _biases(keys: Keys) -> dict[str, bool]:
    """Which projections have a bias: by class, changed by the key that the class reads."""
    family = keys.family
    bias = {"qkv": family.qkv_bias, "out": family.out_bias, "mlp": family.mlp_bias}
    if family.bias_key and keys.config.get(family.bias_key) is not None:
        value = keys.flag(family.bias_key, False)
        bias.update(dict.fromkeys(family.biased, value))
    if family.gated or keys.config.get("model_type") == "nemotron":
        bias["mlp"] = keys.flag("mlp_bias", bias["mlp"])
    return {
        "qkv_bias": bias["qkv"],
        "attention_out_bias": bias["out"],
        "mlp_bias": bias["mlp"],
    }


def _windows(keys: Keys, layers: int) -> tuple[int | None, int | None]:
    """Window of the local layers in tokens, and how many layers see everything."""
    family = keys.family
    window = keys.count("positions", family.window_key)
    if window is None or (family.window_switch and not keys.flag(family.window_switch, False)):
        return None, None
    kinds = keys.listed("layer_types")
    if kinds is not None:
        if len(kinds) != layers:
            refuse(keys.file, "layer_types", len(kinds), f"names for {layers} layers", (layers,))
        return window, sum(kind == "full_attention" for kind in kinds)
    first_full = keys.count("layers", "max_window_layers", low=0) if family.window_switch else None
    if first_full is not None:
        return window, min(first_full, layers)
    every = keys.count("layers", "sliding_window_pattern", "_sliding_window_pattern")
    every = every or family.global_every
    return window, layers // every if every else None


def _mla(keys: Keys) -> Mla | None:
    latent = keys.count("hidden", "kv_lora_rank")
    if latent is None:
        return None
    return Mla(
        q_lora_rank=keys.count("hidden", "q_lora_rank"),
        kv_lora_rank=latent,
        qk_nope_head_dim=keys.need("head_dim", "qk_nope_head_dim"),
        qk_rope_head_dim=keys.need("head_dim", "qk_rope_head_dim"),
        v_head_dim=keys.need("head_dim", "v_head_dim"),
    )


def _moe(keys: Keys, layers: int) -> Moe | None:
    """The experts, and which layers have them, under any of the names in use."""
    experts = keys.count("experts", *EXPERTS, low=0)
    if not experts:
        return None
    width = keys.need("ffn", "moe_intermediate_size", *FFN)
    count, first = _moe_layers(keys, layers)
    if not count:
        return None
    top_k = keys.need("experts", *TOP_K)
    if top_k > experts:
        refuse(
            keys.file, keys.find(*TOP_K)[0], top_k, f"more than the {experts} experts", (experts,)
        )
    shared = keys.count("ffn", "shared_expert_intermediate_size", "shared_intermediate_size", low=0)
    if shared is None:
        number = keys.count("experts", "n_shared_experts", "num_shared_experts", low=0)
        shared = (keys.family.shared_default if number is None else number) * width
    return Moe(
        experts=experts,
        top_k=top_k,
        expert_ffn=width,
        shared_ffn=shared,
        layers=count,
        first_dense_layers=first,
        router_bias=keys.family.router_bias,
        expert_bias=keys.family.expert_bias,
        shared_gate=keys.family.shared_gate and shared > 0,
    )


def _moe_layers(keys: Keys, layers: int) -> tuple[int, int]:
    """How many layers hold experts, and how many dense ones stand before the first."""
    chosen = keys.listed("moe_layers")
    frequency = keys.config.get("moe_layer_freq")
    if isinstance(frequency, list):
        chosen = [i for i, one in enumerate(frequency[:layers]) if one]
    if chosen is not None:
        picked = sorted({a_count(keys.file, "moe_layers", i, 0, layers - 1) for i in chosen})
        return len(picked), picked[0] if picked else 0
    dense = keys.count("layers", "first_k_dense_replace", low=0) or 0
    if dense:
        dense = min(dense, layers)
        step = keys.count("layers", "moe_layer_freq") or 1
        first = -(-dense // step) * step
        return len(range(first, layers, step)), min(first, layers)
    return _every_so_many(keys, layers)


def _every_so_many(keys: Keys, layers: int) -> tuple[int, int]:
    """Layers step, 2*step, ... (counted from 1), without those in ``mlp_only_layers``."""
    step = keys.count("layers", "interleave_moe_layer_step", "decoder_sparse_step", low=0)
    step = 1 if step is None else step
    if step == 0:
        return 0, 0
    plain = {
        a_count(keys.file, "mlp_only_layers", i, 0, LIMITS["layers"])
        for i in keys.listed("mlp_only_layers") or []
    }
    picked = [i for i in range(step - 1, layers, step) if i not in plain]
    return len(picked), picked[0] if picked else 0
