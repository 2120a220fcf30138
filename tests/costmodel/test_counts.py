"""Counts and FLOPs, against published figures and arithmetic by hand."""

from __future__ import annotations

import time

import pytest

from layoutopt.costmodel.counts import (
    attention_flops_per_token_forward,
    count,
    flops_6nd_per_token,
    matmul_flops_per_token_forward,
    mean_context_tokens,
    model_flops_per_token,
)
from layoutopt.costmodel.model import Model, Moe
from layoutopt.costmodel.models.catalog import load_model, published_facts

FACTS = published_facts()


def tiny(**changes: object) -> Model:
    """Hidden 8, 2 layers, 4 heads of 2, inner width 16, vocabulary 10."""
    base: dict[str, object] = {
        "name": "tiny", "layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 2,
        "ffn": 16, "gated_mlp": True, "vocab": 10, "tied_embeddings": False,
    }  # fmt: skip
    return Model.model_validate({**base, **changes})


def test_all_published_models_are_there() -> None:
    assert len(FACTS) == 28


@pytest.mark.parametrize("fact", FACTS, ids=[str(fact["name"]) for fact in FACTS])
def test_counts_equal_the_published_implementation(fact: dict[str, object]) -> None:
    counts = count(load_model(str(fact["name"])))
    assert counts.total == fact["total_params"]
    assert counts.active == fact["active_params"]
    assert counts.vocabulary_params == fact["embedding_params"]


def test_a_gated_model_by_hand() -> None:
    """q 8x8, k and v 8x4 each, o 8x8: 192. MLP 3 x 8 x 16 = 384. Norms 2 x 8 a layer, 8 last.

    Tables 2 x 80. In all 2 x (192 + 384 + 16) + 8 + 160 = 1,352.
    """
    counts = count(tiny())
    assert counts.attention_params == 192
    assert counts.dense_mlp_params == 384
    assert counts.norm_params == 16
    assert counts.dense_layer_params == 592
    assert (counts.embedding_params, counts.head_params) == (80, 80)
    assert counts.total == counts.active == 1352


def test_biases_positions_and_layernorm_by_hand() -> None:
    """A GPT: biases 16 + 8 in attention and 16 + 8 in the MLP, norms of 2 x 8 numbers."""
    counts = count(
        tiny(
            gated_mlp=False, norm="layernorm", qkv_bias=True, attention_out_bias=True,
            mlp_bias=True, learned_positions=5, tied_embeddings=True, embedding_norm=True,
        )
    )  # fmt: skip
    assert counts.attention_params == 192 + (8 + 4 + 4) + 8
    assert counts.dense_mlp_params == 2 * 8 * 16 + 16 + 8
    assert counts.norm_params == 2 * 16
    assert counts.embedding_params == 80 + 5 * 8 + 16
    assert counts.head_params == 0
    assert counts.vocabulary_params == 80


def test_experts_by_hand() -> None:
    """One dense and one MoE layer; 6 experts of 3 x 8 x 4 = 96, 2 of them active."""
    moe = Moe(experts=6, top_k=2, expert_ffn=4, shared_ffn=8, layers=1, first_dense_layers=1,
              router_bias=True, shared_gate=True)  # fmt: skip
    counts = count(tiny(moe=moe))
    assert counts.expert_params == 96
    assert counts.router_params == 6 * 8 + 6
    assert counts.shared_expert_params == 3 * 8 * 8 + 8
    assert counts.moe_layer_params(6) == 192 + 16 + 54 + 200 + 6 * 96
    assert counts.moe_layer_params(0) == counts.moe_layer_base_params
    assert counts.total == 160 + 8 + 592 + counts.moe_layer_params(6)
    assert counts.active == counts.total - 4 * 96
    assert counts.expert_total == 6 * 96


def test_a_prediction_block_stands_beside_the_total() -> None:
    """One layer, a 16 x 8 projection and three norms."""
    plain, with_mtp = count(tiny()), count(tiny(mtp_layers=2))
    assert plain.mtp_params == 0
    assert with_mtp.total == plain.total
    assert with_mtp.mtp_params == 592 + 2 * 64 + 3 * 8
    assert with_mtp.total_with_mtp == plain.total + 2 * with_mtp.mtp_params


def test_deepseek_prediction_block_is_what_the_report_says() -> None:
    """DeepSeek-V3, README: 685 B in all, 671 B main and 14 B of prediction, of which 11.5 B are
    its own and the rest is its copy of embedding and head (2 x 0.93 B)."""
    counts = count(load_model("deepseek-v3"))
    assert counts.mtp_params + counts.vocabulary_params == pytest.approx(14e9, rel=0.05)


def test_megatron_1t_has_its_published_size() -> None:
    assert count(load_model("megatron-1t")).total == pytest.approx(1.008e12, rel=1e-3)
    assert count(load_model("mt-nlg-530b")).total == pytest.approx(529.6e9, rel=1e-3)


def test_a_million_layers_cost_no_more_than_two() -> None:
    started = time.perf_counter()
    counts = count(tiny(layers=10**6))
    assert time.perf_counter() - started < 0.1
    assert counts.total == 10**6 * 592 + 168


def test_matmul_flops_are_two_per_weight_met() -> None:
    """Layers 2 x (192 + 384), head 80: no norms, no biases, no look-up."""
    assert matmul_flops_per_token_forward(tiny()) == 2 * (2 * (192 + 384) + 80)
    biased = tiny(qkv_bias=True, attention_out_bias=True, mlp_bias=True, attention_sinks=True)
    assert matmul_flops_per_token_forward(biased) == matmul_flops_per_token_forward(tiny())
    tied = tiny(tied_embeddings=True)
    assert matmul_flops_per_token_forward(tied) == matmul_flops_per_token_forward(tiny())


def test_matmul_flops_meet_only_the_chosen_experts() -> None:
    moe = Moe(experts=6, top_k=2, expert_ffn=4, layers=2, expert_bias=True, router_bias=True)
    met = 2 * (192 + 6 * 8 + 2 * 96) + 80
    assert matmul_flops_per_token_forward(tiny(moe=moe)) == 2 * met


def test_attention_flops_are_the_causal_half() -> None:
    """Per layer 2 x 2 x (s / 2) x heads x head_dim, s = 100."""
    assert attention_flops_per_token_forward(tiny(), 100) == 2 * (2 * 2 * 50 * 4 * 2)


def test_latent_attention_counts_its_own_widths() -> None:
    """DeepSeek-V3: 128 heads, 192 wide for scores, 128 for values, 61 layers."""
    flops = attention_flops_per_token_forward(load_model("deepseek-v3"), 4096)
    assert flops == 61 * 2 * 2048 * 128 * (192 + 128)


def test_context_of_a_window_is_the_mean_of_what_positions_see() -> None:
    seq_len, window = 1000, 100
    by_hand = sum(min(i, window) for i in range(1, seq_len + 1)) / seq_len
    context = mean_context_tokens(tiny(sliding_window=window), seq_len)
    assert context == pytest.approx(by_hand, rel=0.01)


def test_context_of_a_wide_window_is_that_of_full_attention() -> None:
    assert mean_context_tokens(tiny(sliding_window=4096), 1000) == 500
    assert mean_context_tokens(tiny(sliding_window=4096, local_kind="chunk"), 1000) == 500


def test_context_of_chunks_is_half_a_chunk() -> None:
    assert mean_context_tokens(tiny(sliding_window=100, local_kind="chunk"), 1000) == 50


def test_global_layers_are_weighed_in() -> None:
    model = tiny(layers=4, sliding_window=100, global_layers=1, local_kind="chunk")
    assert mean_context_tokens(model, 1000) == (1 * 500 + 3 * 50) / 4


def test_llama_405b_flops_of_its_training_run() -> None:
    """3.8e25 FLOPs for 15.6 T tokens (Llama 3 report, section 1): 6 N D, here 3.799e25."""
    flops = flops_6nd_per_token(load_model("llama-3.1-405b")) * 15.6e12
    assert flops == pytest.approx(3.8e25, rel=0.01)


def test_model_flops_are_6nd_and_three_attentions() -> None:
    """GPT-3 175B at 2,048: attention adds 6 x 96 x 2,048 x 12,288 a token, 1.4% of 6 N."""
    model = load_model("gpt3-175b")
    extra = model_flops_per_token(model, 2048) - flops_6nd_per_token(model)
    assert extra == 6 * 96 * 2048 * 12288
