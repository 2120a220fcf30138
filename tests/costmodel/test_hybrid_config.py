"""Nemotron-H configs: the pattern says which layers are what."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.costmodel.models.catalog import load_model
from layoutopt.costmodel.models.huggingface import model_from_config
from layoutopt.errors import ProfileError

NANO: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 1856, "vocab_size": 131072, "tie_word_embeddings": False,
    "max_position_embeddings": 262144, "mamba_num_heads": 64, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
    "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 3712,
}  # fmt: skip


def test_a_config_is_the_catalogues_model() -> None:
    got = model_from_config(NANO, "nano", "config.json")
    known = load_model("nemotron-3-nano-30b-a3b")
    assert got.model_copy(update={"name": known.name, "source": known.source}) == known


def test_a_stack_without_experts() -> None:
    """Nemotron-H as first published: mixers, attention and dense MLPs."""
    dense = {**NANO, "num_hidden_layers": 6, "hybrid_override_pattern": "M-M*-M"}
    got = model_from_config(dense, "small", "config.json")
    assert got.moe is None
    assert got.mamba is not None
    assert (got.mamba.layers, got.attention_layers, got.dense_layers) == (3, 1, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hybrid_override_pattern": "MX"}, "not a text of"),
        ({"hybrid_override_pattern": "M-"}, "names 2 layers, but num_hidden_layers is 52"),
        ({"num_hidden_layers": 2, "hybrid_override_pattern": "*-"}, "without any Mamba layer"),
        ({"ssm_state_size": None}, "ssm_state_size"),
        ({"n_groups": 7}, "which does not divide the 64 Mamba heads"),
    ],
)
def test_impossible_configs_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        model_from_config({**NANO, **changes}, "wrong", "config.json")
