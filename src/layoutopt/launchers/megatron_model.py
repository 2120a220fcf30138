"""A model's architecture as Megatron-LM options."""

from __future__ import annotations

from layoutopt.costmodel.model import Mla, Model, Moe
from layoutopt.errors import RuleError
from layoutopt.launchers.shell import Flag


def model_flags(model: Model, seq_len: int) -> list[Flag]:
    """The options that build ``model``; raises RuleError for a part that Megatron has none for."""
    _refuse_parts(model)
    positions = max(seq_len, model.max_seq_len or 0)
    found: list[Flag] = [
        ("--num-layers", str(model.layers)),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(model.ffn)),
        ("--num-attention-heads", str(model.heads)),
        ("--seq-length", str(seq_len)),
        ("--max-position-embeddings", str(positions)),
        ("--position-embedding-type", "learned_absolute" if model.learned_positions else "rope"),
        ("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
    ]
    if model.gated_mlp:
        found.append(("--swiglu",))
    if not model.tied_embeddings:
        found.append(("--untie-embeddings-and-output-weights",))
    found += _biases(model)
    found += _mla(model.mla) if model.mla else _attention(model)
    found += _local_attention(model)
    if model.moe:
        found += _experts(model, model.moe)
    if model.mtp_layers:
        found.append(("--mtp-num-layers", str(model.mtp_layers)))
    return found


def _refuse_parts(model: Model) -> None:
    """Parts that pretrain_gpt.py has no option for."""
    for there, part in (
        (model.embedding_norm, "a norm behind the embedding"),
        (model.norms_per_layer != 2, f"{model.norms_per_layer} norms a layer"),
        (model.mamba is not None, "Mamba-2 layers"),
        (model.parallel_block, "attention and MLP side by side"),
    ):
        if there:
            raise RuleError(
                f"megatron cannot say {part} of {' '.join(model.name.split())}: pretrain_gpt.py "
                "has no option for it",
                field="model",
                value=model.name,
            )


def _biases(model: Model) -> list[Flag]:
    found: list[Flag] = []
    if not model.mlp_bias and not model.attention_out_bias:
        found.append(("--disable-bias-linear",))
        if model.qkv_bias:
            found.append(("--add-qkv-bias",))
    return found


def _attention(model: Model) -> list[Flag]:
    found: list[Flag] = []
    if model.head_dim * model.heads != model.hidden:
        found.append(("--kv-channels", str(model.head_dim)))
    if model.kv_heads != model.heads:
        found += [("--group-query-attention",), ("--num-query-groups", str(model.kv_heads))]
    if model.qk_norm != "none":
        found.append(("--qk-layernorm",))
    if model.attention_sinks:
        found.append(("--softmax-type", "learnable"))
    return found


def _mla(mla: Mla) -> list[Flag]:
    found: list[Flag] = [("--multi-latent-attention",)]
    if mla.q_lora_rank:
        found.append(("--q-lora-rank", str(mla.q_lora_rank)))
    return [
        *found,
        ("--kv-lora-rank", str(mla.kv_lora_rank)),
        ("--qk-head-dim", str(mla.qk_nope_head_dim)),
        ("--qk-pos-emb-head-dim", str(mla.qk_rope_head_dim)),
        ("--v-head-dim", str(mla.v_head_dim)),
        ("--qk-layernorm",),
    ]


def _local_attention(model: Model) -> list[Flag]:
    """Sliding windows; of every n layers one sees all (--window-attn-skip-freq n)."""
    if model.sliding_window is None:
        return []
    if model.local_kind == "chunk":
        raise RuleError(
            "megatron cannot say attention in chunks: pretrain_gpt.py has no option for it",
            field="model.local_kind",
            value="chunk",
        )
    found: list[Flag] = [("--window-size", f"{model.sliding_window - 1},0")]
    if model.global_layers:
        if model.layers % model.global_layers == 0:
            every = str(model.layers // model.global_layers)
        else:
            every = _pattern(model.layers, model.global_layers)
        found.append(("--window-attn-skip-freq", every))
    return found


def _pattern(layers: int, whole: int) -> str:
    """1 where a layer has a window, 0 where it sees all: the last of every run of equal length."""
    every = layers // whole
    marks = [0 if (n + 1) % every == 0 and (n + 1) // every <= whole else 1 for n in range(layers)]
    return f"[{','.join(map(str, marks))}]"


def _experts(model: Model, moe: Moe) -> list[Flag]:
    found: list[Flag] = [
        ("--num-experts", str(moe.experts)),
        ("--moe-router-topk", str(moe.top_k)),
        ("--moe-ffn-hidden-size", str(moe.expert_ffn)),
        ("--moe-grouped-gemm",),
        ("--moe-token-dispatcher-type", "alltoall"),
    ]
    if moe.shared_ffn:
        found.append(("--moe-shared-expert-intermediate-size", str(moe.shared_ffn)))
        if moe.shared_gate:
            found.append(("--moe-shared-expert-gate",))
    if moe.router_bias:
        found += [
            ("--moe-router-score-function", "sigmoid"),
            ("--moe-router-enable-expert-bias",),
        ]
    if moe.layers != model.layers:
        found.append(("--moe-layer-freq", _expert_layers(model, moe)))
    return found


def _expert_layers(model: Model, moe: Moe) -> str:
    """``[0]*3+[1]*58``: dense layers at the bottom; else every so many layers."""
    dense = moe.first_dense_layers
    rest = model.layers - dense
    if moe.layers == rest:
        return f"([0]*{dense}+[1]*{rest})" if dense else "1"
    if rest % moe.layers == 0:
        every = rest // moe.layers
        return f"([0]*{dense}+([0]*{every - 1}+[1])*{moe.layers})"
    raise RuleError(
        f"megatron cannot say which {moe.layers} of {model.layers} layers hold experts: the plan "
        "does not list them",
        field="model.moe.layers",
        value=moe.layers,
    )
