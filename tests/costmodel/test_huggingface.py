"""Hugging Face configs: each trap of a model class, on its own."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.models.catalog import load_model, published_facts
from layoutopt.costmodel.models.families import FAMILIES
from layoutopt.costmodel.models.huggingface import imported, model_from_config
from layoutopt.errors import ProfileError

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {str(f["name"]): f["config"] for f in published_facts()}


def read(config: dict[str, Any]) -> Model:
    return model_from_config(config, "m", "config.json")


def refused(**changes: object) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        read({**LLAMA, **changes})
    assert caught.value.message.startswith("config.json: ")
    return caught.value


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("name", ["llama-4-scout", "gemma-3-27b"])
def test_the_text_part_of_a_model_of_images_is_taken(name: str) -> None:
    inner = without(CONFIGS[name], "tie_word_embeddings")
    outer = {
        "model_type": inner["model_type"].removesuffix("_text"), "text_config": inner,
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        "tie_word_embeddings": CONFIGS[name].get("tie_word_embeddings", False),
    }  # fmt: skip
    assert count(read(outer)) == count(load_model(name))


def test_a_nested_part_without_a_type_has_that_of_its_model() -> None:
    inner = without(CONFIGS["gemma-3-27b"], "model_type", "vocab_size")
    outer = {"model_type": "gemma3", "text_config": inner}
    assert count(read(outer)) == count(load_model("gemma-3-27b"))


@pytest.mark.parametrize(
    "renamed",
    [
        {"n_embed": 14336, "num_attention_heads": 112, "n_layer": 70},
        {"hidden_size": 14336, "n_head": 112, "num_hidden_layers": 70},
        {"n_embed": 14336, "n_head": 112, "n_layer": 70},
    ],
)
def test_bloom_under_any_of_its_key_names(renamed: dict[str, int]) -> None:
    base = without(CONFIGS["bloom-176b"], "hidden_size", "n_head", "n_layer")
    assert count(read({**base, **renamed})).total == 176_247_271_424


def test_falcon_has_no_inner_width_and_its_own_kv_key() -> None:
    model = read(CONFIGS["falcon-180b"])
    assert (model.ffn, model.kv_heads, model.parallel_block) == (4 * 14848, 8, True)


def test_falcon_7b_has_one_kv_head_and_one_norm() -> None:
    """tiiuae/falcon-7b: 6,921,720,704 parameters (its safetensors index)."""
    model = read(
        {
            "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
            "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True,
            "new_decoder_architecture": False, "parallel_attn": True, "bias": False,
        }
    )  # fmt: skip
    assert (model.kv_heads, model.norms_per_layer, model.gated_mlp) == (1, 1, False)
    assert count(model).total == 6_921_720_704


@pytest.mark.parametrize(
    "name", ["falcon-180b", "gemma-2-27b", "gemma-3-27b", "command-r-plus", "bloom-176b",
             "gpt3-175b"],
)  # fmt: skip
def test_an_absent_tie_is_what_the_class_defines(name: str) -> None:
    assert read(without(CONFIGS[name], "tie_word_embeddings")).tied_embeddings
    assert not read({**CONFIGS[name], "tie_word_embeddings": False}).tied_embeddings


def test_untied_falcon_is_the_published_180b() -> None:
    counts = count(read({**CONFIGS["falcon-180b"], "tie_word_embeddings": False}))
    assert counts.total == pytest.approx(179.52e9, rel=1e-4)


def test_null_kv_heads_are_as_many_as_heads() -> None:
    assert read({**LLAMA, "num_key_value_heads": None}).kv_heads == 32
    assert read({**CONFIGS["mistral-7b"], "num_key_value_heads": None}).kv_heads == 32


def test_absent_kv_heads_are_what_the_class_defines() -> None:
    assert read(without(LLAMA, "num_key_value_heads")).kv_heads == 32
    assert read(without(CONFIGS["mistral-7b"], "num_key_value_heads")).kv_heads == 8


def test_the_size_of_a_head_need_not_be_hidden_over_heads() -> None:
    assert read(CONFIGS["qwen3-32b"]).head_dim == 128
    assert read(LLAMA).head_dim == 128
    gemma = without(CONFIGS["gemma-2-27b"], "head_dim")
    assert read(gemma).head_dim == 256


@pytest.mark.parametrize(
    ("key", "name"),
    [("num_local_experts", "mixtral-8x7b"), ("num_experts", "qwen3-30b-a3b"),
     ("n_routed_experts", "glm-4.5")],
)  # fmt: skip
def test_experts_under_each_key(key: str, name: str) -> None:
    model = read(CONFIGS[name])
    assert model.moe
    assert model.moe.experts == CONFIGS[name][key]
    assert read({**CONFIGS[name], key: None}).moe is None


@pytest.mark.parametrize(
    ("changes", "layers", "first"),
    [
        ({"first_k_dense_replace": 3}, 58, 3),
        ({"first_k_dense_replace": 0}, 61, 0),
        ({"first_k_dense_replace": 61}, None, None),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, 30, 2),
        ({"first_k_dense_replace": 3, "moe_layer_freq": [0] * 5 + [1] * 56}, 56, 5),
    ],
)
def test_dense_layers_at_the_bottom(
    changes: dict[str, Any], layers: int | None, first: int | None
) -> None:
    moe = read({**CONFIGS["deepseek-v3"], **changes}).moe
    assert (moe.layers if moe else None) == layers
    assert (moe.first_dense_layers if moe else None) == first


@pytest.mark.parametrize(
    ("changes", "layers", "first"),
    [
        ({"decoder_sparse_step": 2}, 24, 1),
        ({"decoder_sparse_step": 0}, None, None),
        ({"mlp_only_layers": [0, 1, 47]}, 45, 2),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 1]}, 23, 3),
    ],
)
def test_every_so_many_layers_hold_experts(
    changes: dict[str, Any], layers: int | None, first: int | None
) -> None:
    moe = read({**CONFIGS["qwen3-30b-a3b"], **changes}).moe
    assert (moe.layers if moe else None) == layers
    assert (moe.first_dense_layers if moe else None) == first


def test_llama_4_keeps_two_inner_widths_and_a_shared_expert() -> None:
    model = read(CONFIGS["llama-4-maverick"])
    assert model.moe
    assert (model.ffn, model.moe.expert_ffn, model.moe.shared_ffn) == (16384, 8192, 8192)
    assert (model.moe.layers, model.moe.first_dense_layers) == (24, 1)
    listed = {**CONFIGS["llama-4-maverick"], "moe_layers": list(range(1, 48, 2))}
    assert read(listed) == model


def test_squared_relu_means_two_matrices() -> None:
    assert not read(CONFIGS["nemotron-4-340b"]).gated_mlp
    unknown, note = imported({**LLAMA, "model_type": "arcee", "hidden_act": "relu2"}, "m", "f")
    assert not unknown.gated_mlp
    assert note is not None
    assert "'arcee'" in note


def test_kimi_is_read_as_deepseek() -> None:
    as_deepseek = {**CONFIGS["kimi-k2"], "model_type": "deepseek_v3"}
    assert read(as_deepseek) == read(CONFIGS["kimi-k2"])


def test_prediction_layers_stand_apart() -> None:
    with_one, with_none = (
        read({**CONFIGS["deepseek-v3"], "num_nextn_predict_layers": n}) for n in (1, 0)
    )
    assert (with_one.mtp_layers, with_none.mtp_layers) == (1, 0)
    assert count(with_one).total == count(with_none).total


def test_quantisation_changes_nothing() -> None:
    quantised = {**LLAMA, "quantization_config": {"bits": 4, "group_size": 128}}
    assert read(quantised) == read(LLAMA)


def test_gemma_2_alternates_and_gemma_3_is_global_every_sixth() -> None:
    two, three = read(CONFIGS["gemma-2-27b"]), read(CONFIGS["gemma-3-27b"])
    assert (two.sliding_window, two.global_layers) == (4096, 23)
    assert (three.sliding_window, three.global_layers) == (1024, 10)


def test_a_list_of_layer_types_decides_over_the_class() -> None:
    kinds = ["sliding_attention"] * 40 + ["full_attention"] * 6
    assert read({**CONFIGS["gemma-2-27b"], "layer_types": kinds}).global_layers == 6


def test_a_window_that_is_switched_off_is_none() -> None:
    qwen = {**CONFIGS["qwen2.5-72b"], "sliding_window": 131072, "max_window_layers": 70}
    assert read(qwen).sliding_window is None
    on = read({**qwen, "use_sliding_window": True})
    assert (on.sliding_window, on.global_layers) == (131072, 70)
    assert read(CONFIGS["mistral-7b"]).sliding_window == 4096
    assert read(CONFIGS["mixtral-8x7b"]).sliding_window is None


def test_biases_follow_their_keys() -> None:
    llama = read({**LLAMA, "attention_bias": True, "mlp_bias": True})
    assert (llama.qkv_bias, llama.attention_out_bias, llama.mlp_bias) == (True, True, True)
    glm = read(CONFIGS["glm-4.5"])
    assert (glm.qkv_bias, glm.attention_out_bias) == (True, False)
    qwen = read(CONFIGS["qwen2.5-72b"])
    assert (qwen.qkv_bias, qwen.attention_out_bias) == (True, False)


@pytest.mark.parametrize(
    ("config", "params"),
    [
        pytest.param(
            {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
             "n_positions": 1024, "vocab_size": 50257}, 124_439_808, id="gpt2"),
        pytest.param(
            {"model_type": "opt", "hidden_size": 4096, "num_hidden_layers": 32, "ffn_dim": 16384,
             "num_attention_heads": 32, "max_position_embeddings": 2048, "vocab_size": 50272},
            6_658_473_984, id="opt-6.7b"),
        pytest.param(
            {"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44,
             "intermediate_size": 24576, "num_attention_heads": 64, "vocab_size": 50432},
            20_554_567_680, id="gpt-neox-20b"),
        pytest.param(
            {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32,
             "expansion_ratio": 4, "vocab_size": 50432, "no_bias": True,
             "attn_config": {"alibi": True}}, 6_649_286_656, id="mpt-7b"),
        pytest.param(
            {"model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32,
             "intermediate_size": 10240, "num_attention_heads": 32, "vocab_size": 51200},
            2_779_683_840 - 51_200, id="phi-2"),
        pytest.param(
            {"model_type": "starcoder2", "hidden_size": 3072, "num_hidden_layers": 30,
             "intermediate_size": 12288, "num_attention_heads": 24, "num_key_value_heads": 2,
             "vocab_size": 49152, "use_bias": True}, 3_030_371_328, id="starcoder2-3b"),
        pytest.param(
            {"model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24,
             "intermediate_size": 5632, "moe_intermediate_size": 1408, "num_experts": 60,
             "shared_expert_intermediate_size": 5632, "num_attention_heads": 16,
             "num_key_value_heads": 16, "num_experts_per_tok": 4, "vocab_size": 151936},
            14_315_784_192, id="qwen1.5-moe-a2.7b"),
    ],
)  # fmt: skip
def test_other_classes_have_the_size_of_their_checkpoints(
    config: dict[str, Any], params: int
) -> None:
    """Sizes of the released safetensors; phi-2's output bias (51,200) is not modelled."""
    assert count(read(config)).total == params


def test_an_unknown_class_with_the_usual_keys_is_taken_and_said() -> None:
    model, note = imported({**LLAMA, "model_type": "brandnew"}, "m", "config.json")
    assert count(model) == count(read(LLAMA))
    assert note is not None
    assert "'brandnew'" in note
    assert imported(LLAMA, "m", "config.json")[1] is None


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "vocab_size"],
)  # fmt: skip
@pytest.mark.parametrize("model_type", ["llama", "brandnew", None])
def test_a_missing_key_is_named(key: str, model_type: str | None) -> None:
    config = {**without(LLAMA, key, "model_type"), "model_type": model_type}
    with pytest.raises(ProfileError, match=f"config.json: no key {key}") as caught:
        read(config)
    assert caught.value.field == key


def test_a_misspelt_key_is_found() -> None:
    config = {**without(LLAMA, "hidden_size"), "hiden_size": 4096}
    with pytest.raises(ProfileError, match="the file has hiden_size"):
        read(config)


@pytest.mark.parametrize(
    "value", [True, "32", 32.0, 0, -1, 10**9, [32], {"a": 1}, float("nan"), float("inf"), 10**400]
)
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "num_key_value_heads", "intermediate_size"]
)
def test_a_count_is_a_whole_number_within_reason(key: str, value: object) -> None:
    error = refused(**{key: value})
    assert error.field == key
    assert error.nearest
    assert len(error.message) < 250


def test_limits_are_printed() -> None:
    assert "10,000" in refused(num_hidden_layers=10_001).message
    assert "1,000,000" in refused(hidden_size=1_000_001).message


def test_heads_that_do_not_divide_are_refused_with_the_nearest() -> None:
    assert refused(num_key_value_heads=5).nearest == (4, 8)
    assert refused(num_attention_heads=33, num_key_value_heads=None).nearest == (32, 64)


def test_more_chosen_experts_than_there_are() -> None:
    error = refused(num_local_experts=8, num_experts_per_tok=9)
    assert (error.field, error.nearest) == ("num_experts_per_tok", (8,))


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("tie_word_embeddings", "no", (True, False)),
        ("tie_word_embeddings", 1, (True, False)),
        ("attention_bias", "true", (True, False)),
        ("is_encoder_decoder", True, (False,)),
    ],
)
def test_switches_are_true_or_false(key: str, value: object, nearest: tuple[object, ...]) -> None:
    error = refused(**{key: value})
    assert (error.field, error.nearest) == (key, nearest)


@pytest.mark.parametrize("key", ["mamba_d_state", "hybrid_override_pattern", "layer_types"])
def test_other_kinds_of_layers_are_refused(key: str) -> None:
    value = ["linear_attention"] * 32 if key == "layer_types" else "M-M*"
    assert "not modelled" in refused(**{key: value}).message


def test_a_list_of_the_wrong_length_is_refused() -> None:
    gemma = {**CONFIGS["gemma-2-27b"], "layer_types": ["full_attention"] * 3}
    with pytest.raises(ProfileError, match="46 layers"):
        read(gemma)


def test_a_type_that_is_no_name_lists_those_known() -> None:
    assert refused(model_type=3).nearest == tuple(sorted(FAMILIES))
