"""What a model class fixes and its config.json does not say.

Read off the configuration and modelling classes of transformers 5.24 (src/transformers/models):
which norms and biases a layer has, whether its MLP is gated, and what an absent key stands for.
A test compares the counts of 28 published models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Norm = Literal["rmsnorm", "layernorm", "layernorm_no_bias"]
QkNorm = Literal["none", "head", "per_head", "width"]


@dataclass(frozen=True)
class Family:
    """One ``model_type``. ``defaults`` are the values of absent keys."""

    norm: Norm = "rmsnorm"
    norms_per_layer: int = 2
    gated: bool = True
    tied: bool = False
    qk_norm: QkNorm = "none"
    qk_norm_key: str | None = None
    """The key that switches ``qk_norm`` on (None: always on)."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    bias_key: str | None = "attention_bias"
    """The key that sets the biases of ``biased`` (None: fixed)."""
    biased: tuple[str, ...] = ("qkv", "out")
    parallel: bool = False
    learned_positions: bool = False
    position_offset: int = 0
    embedding_norm: bool = False
    sinks: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    ffn_of_hidden: int | None = None
    """Absent inner width: so many times the hidden size."""
    global_every: int | None = None
    """Every so-manieth layer sees the whole sequence, where the file does not list layers."""
    window_key: str = "sliding_window"
    window_switch: str | None = None
    """The key that has to be true for the window to be used."""
    chunked: bool = False
    shared_default: int = 0
    """Shared experts of a layer, each as wide as a routed one, where no key counts them."""
    shared_gate: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)


_LLAMA = Family(bias_key="attention_bias")
_GPT = Family(
    norm="layernorm",
    gated=False,
    tied=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    bias_key=None,
    learned_positions=True,
    ffn_of_hidden=4,
)
_ALL = ("qkv", "out", "mlp")
_DEEPSEEK = Family(defaults={"first_k_dense_replace": 0, "moe_layer_freq": 1})

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "aquila": _LLAMA,
    "granite": Family(tied=True),
    "mistral": Family(bias_key=None, defaults={"num_key_value_heads": 8, "sliding_window": 4096}),
    "ministral": Family(bias_key=None, defaults={"num_key_value_heads": 8}),
    "mixtral": Family(bias_key=None, defaults={"num_key_value_heads": 8}),
    "qwen2": Family(qkv_bias=True, bias_key=None, window_switch="use_sliding_window"),
    "qwen2_moe": Family(
        qkv_bias=True,
        bias_key="qkv_bias",
        biased=("qkv",),
        shared_gate=True,
        window_switch="use_sliding_window",
        defaults={"decoder_sparse_step": 1, "shared_expert_intermediate_size": 5632},
    ),
    "qwen3": Family(qk_norm="head", window_switch="use_sliding_window", defaults={"head_dim": 128}),
    "qwen3_moe": Family(
        qk_norm="head", window_switch="use_sliding_window", defaults={"decoder_sparse_step": 1}
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm4": Family(norms_per_layer=4, biased=("qkv",), defaults={"head_dim": 128}),
    "glm4_moe": Family(biased=("qkv",), qk_norm="head", qk_norm_key="use_qk_norm"),
    "gpt_oss": Family(
        qkv_bias=True,
        out_bias=True,
        sinks=True,
        router_bias=True,
        expert_bias=True,
        global_every=2,
        defaults={"head_dim": 64, "sliding_window": 128},
    ),
    "llama4_text": Family(
        shared_default=1,
        global_every=4,
        chunked=True,
        window_key="attention_chunk_size",
        defaults={"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "head_dim": 128},
    ),
    "gemma": Family(tied=True, defaults={"head_dim": 256}),
    "gemma2": Family(
        tied=True,
        norms_per_layer=4,
        global_every=2,
        defaults={"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096},
    ),
    "gemma3_text": Family(
        tied=True,
        norms_per_layer=4,
        qk_norm="head",
        global_every=6,
        defaults={
            "head_dim": 256,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 262208,
            "sliding_window": 4096,
            "max_position_embeddings": 131072,
        },
    ),
    "phi3": Family(bias_key=None),
    "phi": Family(
        norm="layernorm",
        norms_per_layer=1,
        gated=False,
        parallel=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        bias_key=None,
    ),
    "olmo2": Family(qk_norm="width"),
    "olmo3": Family(qk_norm="width", global_every=4, defaults={"sliding_window": 4096}),
    "cohere": Family(
        norm="layernorm_no_bias",
        norms_per_layer=1,
        tied=True,
        parallel=True,
        qk_norm="per_head",
        qk_norm_key="use_qk_norm",
    ),
    "cohere2": Family(
        norm="layernorm_no_bias",
        norms_per_layer=1,
        tied=True,
        parallel=True,
        global_every=4,
        defaults={"sliding_window": 4096},
    ),
    "nemotron": Family(norm="layernorm", gated=False),
    "starcoder2": Family(
        norm="layernorm",
        gated=False,
        tied=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        bias_key="use_bias",
        biased=_ALL,
    ),
    "stablelm": Family(norm="layernorm", bias_key="use_qkv_bias", biased=("qkv",)),
    "falcon": Family(
        norm="layernorm",
        gated=False,
        tied=True,
        bias_key="bias",
        biased=_ALL,
        parallel=True,
        ffn_of_hidden=4,
    ),
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "opt": Family(
        norm="layernorm",
        gated=False,
        tied=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        bias_key="enable_bias",
        biased=_ALL,
        learned_positions=True,
        position_offset=2,
    ),
    "bloom": Family(
        norm="layernorm",
        gated=False,
        tied=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        bias_key=None,
        embedding_norm=True,
        ffn_of_hidden=4,
    ),
    "gpt_neox": Family(
        norm="layernorm",
        gated=False,
        parallel=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        bias_key=None,
    ),
    "mpt": Family(norm="layernorm_no_bias", gated=False, tied=True, bias_key=None, ffn_of_hidden=4),
    "internlm": Family(qkv_bias=True, out_bias=True, bias_key="bias"),
    "internlm2": Family(bias_key="bias"),
}

NOT_GATED = ("relu", "relu2", "relu_squared", "xielu")
"""Activations that, in a class not listed above, mean an MLP of two matrices."""

HYBRID_KEYS = (
    "mamba_d_state", "mamba_num_heads", "ssm_cfg", "state_size", "hybrid_override_pattern",
    "linear_num_value_heads", "full_attention_interval", "layers_block_type", "attn_layer_period",
)  # fmt: skip
"""Keys of state-space and linear-attention layers."""

ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention")
"""What ``layer_types`` may name; anything else is another kind of layer."""
