"""Launches read back: every launcher's own text, scripts as people write them, nonsense."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from layoutopt.costmodel.layout import Layout
from layoutopt.errors import InputError
from layoutopt.inputs.request import read_estimate
from layoutopt.launchers import emit
from layoutopt.launchers.plan import Plan
from layoutopt.launchers.reading import read_launch_text
from tests.launchers.plans import plan_of

SCRIPT = """
#!/bin/bash
# a comment with --tensor-model-parallel-size 64
NNODES=8
TP=${TP:-8}
DISTRIBUTED=(--nproc_per_node 8 --nnodes $NNODES)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size 2   # stages
    --sequence-parallel
)
MODEL_ARGS="--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 4096 \
--max-position-embeddings 4096 --vocab-size 32000 --swiglu --bf16 --normalization RMSNorm"
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py ${MODEL_PARALLEL_ARGS[@]} $MODEL_ARGS \\
    --micro-batch-size 1 --global-batch-size 512 --use-distributed-optimizer
"""


def back(plan: Plan, format: str) -> Layout:
    said: dict[str, Any] = read_launch_text(emit(plan, format))
    said.setdefault("model", plan.model)
    for name in ("gpus", "seq_len", "global_batch"):
        value = plan.gpus if name == "gpus" else getattr(plan.training, name)
        assert said.setdefault(name, value) == value
    said["layout"].setdefault("micro_batch", plan.layout.micro_batch)
    return read_estimate({**said, "framework": plan.software.name, "gpu": plan.gpu}).layout


@pytest.mark.parametrize(
    ("format", "layout", "options"),
    [
        ("megatron", "tp=8,pp=4,vpp=5,zero_stage=1,recompute=full:5", {}),
        ("megatron", "tp=8,pp=4,layers_per_stage=19+2*21+19", {}),
        ("megatron", "tp=8,pp=4,vpp=3,layers_per_stage=2+2*30+18", {}),
        ("megatron", "tp=4,cp=2,pp=2,cp_kind=all_gather,recompute=selective", {}),
        ("megatron", "tp=2,cp=8,pp=1,zero_stage=1,cp_kind=hierarchical", {}),
        ("megatron", "tp=8,pp=1,zero_stage=1,shard_degree=4", {}),
        ("megatron", "tp=1,pp=1,zero_stage=3", {"model": "8B", "framework": "generic"}),
        ("megatron", "tp=8,pp=16,vpp=8", {"model": "405B", "gpus": 1024, "global_batch": 512}),
        ("megatron", "tp=2,pp=2,ep=8,etp=1", {"model": "mixtral-8x7b"}),
        ("megatron", "tp=8,pp=1,zero_stage=1,offload_optimizer=true,offload_activations=true", {}),
        (
            "deepspeed",
            "tp=1,zero_stage=2,recompute=full,offload_optimizer=true,offload_activations=true",
            {"framework": "deepspeed"},
        ),
        ("torchtitan", "tp=8,pp=1,zero_stage=3,recompute=full", {"framework": "torchtitan"}),
        ("torchtitan", "tp=2,pp=1,zero_stage=3,shard_degree=8", {"framework": "torchtitan"}),
        (
            "torchtitan",
            "tp=4,pp=4,vpp=2,zero_stage=3,reshard=false",
            {"framework": "torchtitan"},
        ),
        ("deepspeed", "tp=1,cp=2,cp_kind=ulysses,zero_stage=3", {"framework": "deepspeed"}),
        ("accelerate", "tp=4,cp=2,zero_stage=3,recompute=full", {"framework": "generic"}),
    ],
)
def test_a_layout_comes_back(format: str, layout: str, options: dict[str, Any]) -> None:
    plan = plan_of(layout, **options)
    found = back(plan, format)
    changed = {
        item.name: (getattr(plan.layout, item.name), getattr(found, item.name))
        for item in fields(Layout)
        if getattr(plan.layout, item.name) != getattr(found, item.name)
    }
    assert changed == {}


def test_the_model_of_the_flags_is_the_plan_s() -> None:
    plan = plan_of("tp=2,pp=16,ep=32", model="deepseek-v3", gpus=1024, gpu="h800", global_batch=512)
    said = read_launch_text(emit(plan, "megatron"))
    other = {"name", "source", "max_seq_len"}
    assert said["model"].model_dump(exclude=other) == plan.model.model_dump(exclude=other)


def test_a_script_with_arrays_and_variables() -> None:
    said = read_launch_text(SCRIPT)
    assert said["gpus"] == 64
    assert (said["seq_len"], said["global_batch"], said["precision"]) == (4096, 512, "bf16")
    assert (said["layout"]["tp"], said["layout"]["pp"]) == (8, 2)
    assert said["layout"]["sequence_parallel"] is True
    assert said["model"].layers == 80


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "none of DeepSpeed's keys"),
        ("{", "not JSON"),
        ("hello", "no flag of Megatron"),
        ("pretrain_gpt.py --tensor-model-parallel-size eight", "not a whole number"),
        ("pretrain_gpt.py --tensor-model-parallel-size $TP", "write its value"),
        ("--tensor-model-parallel-size 2 --num-layers 8", "--hidden-size is missing"),
        (
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
            "--pipeline-model-parallel-layout Et|x|L",
            "is not made of",
        ),
        (
            "--tensor-model-parallel-size 2 --num-layers 4 --hidden-size 64 --vocab-size 9 "
            "--num-attention-heads 2 --num-experts 2 --moe-layer-freq __import__('os')",
            "is no interval and no list",
        ),
    ],
)
def test_what_cannot_be_read_is_named(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_launch_text(text)
