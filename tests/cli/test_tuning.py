"""Fine-tuning from the command line: options, defaults, answers and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import layoutopt
from layoutopt.errors import InputError, RuleError

ASKED: dict[str, Any] = {"model": "8B", "gpus": 8, "layout": "tp=2,dp=4"}


def answer(**options: Any) -> dict[str, Any]:
    return layoutopt.estimate(**{**ASKED, **options}).to_dict()


def test_defaults_of_fine_tuning_have_a_source() -> None:
    """4,096 tokens, 64 sequences, 8,750 steps; adapters of rank 32 beside every layer."""
    request = answer(finetune="lora")["request"]
    assert (request["seq_len"], request["global_batch"]) == (4096, 64)
    assert request["tokens"] == 8750 * 64 * 4096
    assert request["lora_rank"] == 32
    assert len(request["lora_targets"]) == 7
    reasons = {entry["option"]: entry["reason"] for entry in request["filled"]}
    assert "Touvron" in reasons["seq_len"]
    assert "Touvron" in reasons["global_batch"]
    assert "Llama Team" in reasons["tokens"]
    assert "Megatron Bridge" in reasons["lora_rank"]


def test_an_answer_says_what_is_trained_and_filled() -> None:
    said = answer(finetune="lora", lora_targets="attention", document_length="exponential:512")
    # 32 layers x rank 32 x (q and o 4,096 + 4,096, k and v 4,096 + 1,024).
    assert said["finetune"]["trained_parameters"] == 32 * 32 * (2 * 8192 + 2 * 5120)
    assert said["documents"]["filled_share"] == 1
    assert said["documents"]["mean_context_tokens"] == pytest.approx(512, rel=0.01)
    assert "4 x active parameters" in said["step"]["flops_convention"]
    assert {"finetune", "documents"} & set(answer()) == set()


def test_an_echoed_request_asks_the_same_again() -> None:
    said = answer(finetune="lora", lora_targets="q_proj,v_proj", document_length=300, packing=False)
    names = ("finetune", "lora_rank", "lora_targets", "document_length", "packing")
    again = answer(**{name: said["request"][name] for name in names})
    assert again["step"] == said["step"]
    assert again["run"] == said["run"]


def test_padding_costs_run_time() -> None:
    packed, padded = (answer(document_length=1024, packing=how) for how in ("true", "false"))
    assert padded["documents"]["filled_share"] == 1024 / 8192
    assert padded["run"]["steps"] == pytest.approx(8 * packed["run"]["steps"], rel=1e-3)
    ratio = packed["step"]["tokens_per_s_per_gpu"] / padded["step"]["tokens_per_s_per_gpu"]
    assert ratio > 8


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"finetune": "qlora"}, "finetune", "not modelled"),
        ({"finetune": "lroa"}, "finetune", "lora"),
        ({"finetune": "lora", "framework": "torchtitan"}, "finetune", "frameworks that do"),
        ({"finetune": "lora", "lora_rank": 0}, "lora_rank", "lora_rank"),
        ({"finetune": "lora", "lora_targets": "q_porj"}, "lora_targets", "q_proj"),
        ({"finetune": "lora", "lora_targets": ""}, "lora_targets", "no layer"),
        ({"lora_rank": 8}, "lora_rank", "needs finetune lora"),
        ({"finetune": "full", "lora_targets": "all"}, "lora_targets", "needs finetune lora"),
        ({"packing": True}, "packing", "needs document_length"),
        ({"document_length": "weibull:100"}, "document_length", "exponential"),
        ({"document_length": 0}, "document_length", "document_length"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        answer(**options)
    assert refused.value.field == field


def test_experts_of_megatron_bridge_take_adapters_of_attention() -> None:
    asked = {"model": "mixtral-8x7b", "framework": "megatron-bridge", "finetune": "lora"}
    assert answer(**asked)["request"]["lora_targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    with pytest.raises(RuleError, match="one adapter beside all experts"):
        answer(**asked, lora_targets="all")


def test_megatron_bridge_packs_one_sequence_a_microbatch(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "framework": "megatron-bridge",
        "finetune": "full",
        "document_length": 512,
    }
    with pytest.raises(RuleError, match="microbatches of one sequence"):
        answer(**asked, layout="tp=2,dp=4,micro_batch=2")
    refused = tmp_path / "refused.jsonl"
    best = layoutopt.solve(model="8B", gpus=8, rejected=refused, **asked)
    assert best.layout is not None
    assert best.layout.micro_batch == 1
    said = [json.loads(line) for line in refused.read_text("utf-8").splitlines()]
    packs = [one["layout"]["micro_batch"] for one in said if one["rule"] == "framework_packs"]
    assert packs == [2, 4, 8, 16, 32, 64]


def test_a_zero_bubble_is_no_choice_with_adapters() -> None:
    with pytest.raises(RuleError, match="with adapters does not run schedule zb-h1"):
        layoutopt.solve(model="8B", gpus=8, finetune="lora", fix="schedule=zb-h1")


def test_a_step_of_adapters_event_by_event() -> None:
    asked: dict[str, Any] = {**ASKED, "layout": "tp=2,pp=2,dp=2,zero_stage=1", "finetune": "lora"}
    found = layoutopt.simulate(**asked).to_dict()
    said = answer(**asked)["step"]["time_s"]
    assert found["step"]["time_s"] == pytest.approx(said, rel=0.02)
