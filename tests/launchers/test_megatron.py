"""Megatron's flags: what a layout becomes, and what is refused."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from layoutopt.errors import RuleError
from layoutopt.launchers import emit
from layoutopt.launchers.megatron import flags
from tests.launchers.plans import plan_of


def said(layout: str, **options: object) -> dict[str, tuple[str, ...]]:
    return {flag[0]: flag[1:] for flag in flags(plan_of(layout, **options))}  # type: ignore[arg-type]


def test_degrees_batch_and_sharding() -> None:
    found = said("tp=8,pp=4,dp=2,micro_batch=2,zero_stage=1")
    assert found["--tensor-model-parallel-size"] == ("8",)
    assert found["--pipeline-model-parallel-size"] == ("4",)
    assert found["--context-parallel-size"] == ("1",)
    assert found["--micro-batch-size"] == ("2",)
    assert found["--global-batch-size"] == ("256",)
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--bf16"} <= set(found)
    assert not {"--cp-comm-type", "--recompute-granularity"} & set(found)


def test_architecture_of_llama_70b() -> None:
    found = said("tp=8,pp=4")
    assert found["--num-layers"] == ("80",)
    assert found["--hidden-size"] == ("8192",)
    assert found["--ffn-hidden-size"] == ("28672",)
    assert found["--num-query-groups"] == ("8",)
    assert {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"} <= set(
        found
    )


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("tp=8,pp=4,vpp=5", {"--num-virtual-stages-per-pipeline-rank": ("5",)}),
        (
            "tp=8,pp=4,layers_per_stage=19+2*21+19",
            {"--pipeline-model-parallel-layout": ("Et*19|t*21|t*21|t*19L",)},
        ),
        ("tp=8,cp=2,pp=4,cp_kind=all_gather", {"--cp-comm-type": ("allgather",)}),
        ("tp=8,cp=2,pp=4,cp_kind=ulysses", {"--cp-comm-type": ("a2a",)}),
        (
            "tp=2,cp=8,pp=1,cp_kind=hierarchical",
            {
                "--cp-comm-type": ("a2a+p2p",),
                "--hierarchical-context-parallel-sizes": ("4", "2"),
            },
        ),
        (
            "tp=8,pp=4,recompute=full",
            {"--recompute-method": ("uniform",), "--recompute-num-layers": ("1",)},
        ),
        (
            "tp=8,pp=4,recompute=full:3",
            {"--recompute-method": ("block",), "--recompute-num-layers": ("3",)},
        ),
        ("tp=8,pp=4,recompute=selective", {"--recompute-modules": ("core_attn",)}),
        (
            "tp=8,pp=1,zero_stage=1,shard_degree=4",
            {"--num-distributed-optimizer-instances": ("2",)},
        ),
    ],
)
def test_a_key_becomes_an_option(layout: str, expected: dict[str, tuple[str, ...]]) -> None:
    found = said(layout)
    assert {name: found.get(name) for name in expected} == expected


def test_llama_405b_counts_embedding_and_loss_as_layers() -> None:
    found = said("tp=8,pp=16,vpp=8", model="405B", gpus=1024, global_batch=512)
    assert "--account-for-embedding-in-pipeline-split" in found
    assert "--account-for-loss-in-pipeline-split" in found
    assert "--pipeline-model-parallel-layout" not in found


def test_uneven_chunks_are_listed_in_the_order_of_the_model() -> None:
    # Ranks hold 3, 2 layers as chunks of (1, 2) and (1, 1): embedding first, loss last.
    plan = plan_of("tp=8,pp=4,vpp=2,layers_per_stage=19+2*21+19", global_batch=256)
    word = next(flag for flag in flags(plan) if flag[0] == "--pipeline-model-parallel-layout")[1]
    parts = word.split("|")
    assert len(parts) == 8
    assert parts[0].startswith("E")
    assert parts[-1].endswith("L")
    assert sum(int(found or 1) for found in re.findall(r"t(?:\*(\d+))?", word)) == 80


def test_experts_of_deepseek() -> None:
    found = said("tp=2,pp=16,ep=32", model="deepseek-v3", gpus=1024, gpu="h800", global_batch=512)
    assert found["--num-experts"] == ("256",)
    assert found["--moe-router-topk"] == ("8",)
    assert found["--expert-model-parallel-size"] == ("32",)
    assert found["--moe-layer-freq"] == ("([0]*3+[1]*58)",)
    assert {"--multi-latent-attention", "--moe-grouped-gemm"} <= set(found)


def test_fsdp_is_given_its_own_checkpoints_and_queues() -> None:
    text = emit(plan_of("tp=1,pp=1,zero_stage=3", framework="generic", model="8B"), "megatron")
    assert "--data-parallel-sharding-strategy optim_grads_params" in text
    assert "--ckpt-format fsdp_dtensor" in text
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in text


@pytest.mark.parametrize(
    ("layout", "options", "why"),
    [
        ("tp=8,pp=4,schedule=gpipe", {"framework": "generic"}, "schedule gpipe"),
        (
            "tp=2,pp=2,ep=8,sequence_parallel=false",
            {"model": "mixtral-8x7b", "framework": "generic"},
            "need it",
        ),
        ("tp=8,pp=1,zero_stage=3,reshard=false", {"framework": "generic"}, "always frees"),
        ("tp=8,pp=1", {"model": "gemma-2-27b"}, "4 norms a layer"),
        ("tp=4,pp=4", {"model": "llama-4-scout", "framework": "generic"}, "attention in chunks"),
    ],
)
def test_what_megatron_cannot_say_is_refused(
    layout: str, options: dict[str, str], why: str
) -> None:
    with pytest.raises(RuleError, match=re.escape(why)):
        flags(plan_of(layout, **options))  # type: ignore[arg-type]


def test_a_key_that_no_launcher_was_taught_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped: a key that a launcher does not take has to have no effect."""
    from layoutopt.launchers.keys import Keys

    plan = plan_of("tp=8,pp=4")
    keys = Keys(plan, "megatron")
    for name in ("tp", "micro_batch", "dp"):
        keys.take(name)
    with pytest.raises(RuleError, match="megatron cannot say pp 4: it has no option for it"):
        keys.finish()


@pytest.mark.parametrize(
    "name", ["a b", "it's", "$(touch x)", "a;touch x", "a\ntouch x", '"', "`x`"]
)
def test_nothing_that_a_file_says_reaches_the_shell(name: str, tmp_path: Path) -> None:
    """The script runs in bash with torchrun replaced; it makes nothing but that call."""
    plan = plan_of("tp=8,pp=4")
    object.__setattr__(plan, "model", plan.model.model_copy(update={"name": name}))
    script = tmp_path / "launch.sh"
    script.write_text(emit(plan, "megatron"))
    (tmp_path / "torchrun").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tmp_path / "torchrun").chmod(0o755)
    done = subprocess.run(
        ["bash", "launch.sh"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[words.index("pretrain_gpt.py") + 1 :] == [w for f in flags(plan) for w in f]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch.sh", "torchrun"]


def test_the_script_is_one_command_of_literal_flags() -> None:
    lines = emit(plan_of("tp=8,pp=4"), "megatron").splitlines()
    body = [line for line in lines if not line.startswith("#")]
    assert all(line.endswith(" \\") for line in body[:-1])
    words = shlex.split(" ".join(line.rstrip("\\") for line in body))
    assert not [word for word in words[words.index("pretrain_gpt.py") :] if "$" in word]
