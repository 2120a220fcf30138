"""Fine-tuning in the words of launchers: said in full, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from layoutopt.errors import RuleError
from layoutopt.launchers import emit
from layoutopt.launchers.reading.megatron import options as read_megatron
from tests.launchers.plans import plan_of

BRIDGE: dict[str, Any] = {"framework": "megatron-bridge", "seq_len": 4096, "global_batch": 64}


def bridge(layout: str, **options: Any) -> tuple[dict[str, Any], str]:
    text = emit(plan_of(layout, **{**BRIDGE, **options}), "megatron-bridge")
    return yaml.safe_load(text), text


def test_adapters_of_all_layers() -> None:
    said, text = bridge("tp=8,dp=8", finetune="lora", lora_rank=16)
    layers = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    assert said["peft"] == {"dim": 16, "target_modules": layers}
    assert said["checkpoint"]["pretrained_checkpoint"] == "pretrained"
    assert "peft_scheme='lora'" in text


def test_adapters_of_a_part_of_merged_layers() -> None:
    said, text = bridge("tp=8,dp=8", finetune="lora", lora_targets="q_proj,v_proj,o_proj")
    assert said["peft"]["target_modules"] == ["linear_q", "linear_v", "linear_proj"]
    assert "CanonicalLoRA()" in text


def test_adapters_of_latent_attention() -> None:
    """Names as models/deepseek/common.py of Megatron Bridge 0.3.1 maps them."""
    options: dict[str, Any] = {"model": "deepseek-v3", "gpus": 256, "gpu": "h800"}
    said, text = bridge("tp=8,pp=8,ep=32", finetune="lora", **options)
    assert said["peft"]["target_modules"] == [
        "linear_q_down_proj",
        "linear_q_up_proj",
        "linear_kv_down_proj",
        "linear_kv_up_proj",
        "linear_proj",
    ]
    assert "peft_scheme='lora'" in text


def test_adapters_of_latent_attention_with_whole_queries() -> None:
    """DeepSeek-V2-Lite has no latent of its queries: no part of a merged linear_qkv either."""
    options: dict[str, Any] = {"model": "deepseek-v2-lite", "lora_targets": "q_proj,kv_b_proj"}
    said, text = bridge("tp=4,ep=8", finetune="lora", **options)
    assert said["peft"]["target_modules"] == ["linear_q_proj", "linear_kv_up_proj"]
    assert "peft_scheme='lora'" in text


def test_packed_documents_and_a_cut_sequence() -> None:
    said, _ = bridge("tp=4,cp=2,dp=8", finetune="full", document_length=512)
    specs = {"packed_sequence_size": 4096, "pad_seq_to_mult": 4}
    assert said["dataset"] == {"seq_length": 4096, "packed_sequence_specs": specs}
    assert said["model"]["calculate_per_token_loss"] is True
    padded, _ = bridge("tp=8,dp=8", finetune="full", document_length=512, packing=False)
    assert padded["dataset"]["packed_sequence_specs"] is None


def test_full_fine_tuning_starts_from_weights() -> None:
    plan = plan_of("tp=8,dp=8", finetune="full")
    assert "--finetune" in emit(plan, "megatron")
    assert "--pretrained-checkpoint pretrained" in emit(plan, "megatron")
    assert read_megatron(emit(plan, "megatron"))["finetune"] == "full"
    titan = plan_of("tp=8,dp=8,zero_stage=3", framework="torchtitan", finetune="full")
    assert "--checkpoint.initial_load_path pretrained" in emit(titan, "torchtitan")
    speed = plan_of("dp=64,zero_stage=3", framework="deepspeed", finetune="full")
    assert "start_from" in json.loads(emit(speed, "deepspeed"))["layoutopt"]
    assert "trained weights to start from" in emit(speed, "accelerate")


@pytest.mark.parametrize("launcher", ["megatron", "deepspeed", "accelerate", "jobset"])
@pytest.mark.parametrize("option", ["finetune", "document_length"])
def test_what_a_launcher_cannot_say_is_refused(launcher: str, option: str) -> None:
    options: dict[str, Any] = (
        {"finetune": "lora"} if option == "finetune" else {"document_length": 512}
    )
    plan = plan_of("dp=64,zero_stage=3", framework="generic", **options)
    with pytest.raises(RuleError, match=rf"cannot say {option}") as refused:
        emit(plan, launcher)
    assert refused.value.field == option


def test_packing_is_of_fine_tuning() -> None:
    with pytest.raises(RuleError, match="fine-tuning recipes"):
        bridge("tp=8,dp=8", document_length=512)


def test_nanotron_has_no_fine_tuning() -> None:
    plan = plan_of("tp=8,dp=8,zero_stage=0", framework="nanotron", finetune="full")
    with pytest.raises(RuleError, match="cannot say finetune full"):
        emit(plan, "nanotron")
