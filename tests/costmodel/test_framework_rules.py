"""What each framework accepts: every rule by what it allows and what it forbids."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from layoutopt.costmodel import framework_rules
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.software import software, software_names
from layoutopt.optimizer.exhaustive import every_layout
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.space import space_of
from layoutopt.validation.cases import Incomplete, case_of
from layoutopt.validation.records import read_records
from tests.costmodel.cases import EXPERTS, SMALL, job

MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured"
PLAIN = Layout(tp=1, pp=1, dp=64, zero_stage=0)


def rules_of(asked: Job, **axes: object) -> set[str]:
    """Names of the framework's rules that the layout breaks; dp fills up 64 GPUs."""
    layout = replace(PLAIN, **axes)  # type: ignore[arg-type]
    layout = replace(layout, dp=64 // (layout.tp * layout.cp * layout.pp))
    layout = replace(layout, microbatches=64 // layout.dp // layout.micro_batch)
    return {one.rule for one in broken_rules(asked, layout) if one.rule.startswith("framework")}


@pytest.mark.parametrize(
    ("profile", "axes", "rule"),
    [
        ("megatron-core", {"cp": 2}, None),
        ("megatron-core", {"pp": 2, "vpp": 2}, None),
        ("megatron-core", {"zero_stage": 3}, None),
        ("megatron-core", {"zero_stage": 3, "pp": 2}, "framework_shards"),
        ("megatron-2021", {"cp": 2}, "framework_axes"),
        ("megatron-2021", {"tp": 2, "pp": 2}, None),
        ("megatron-2021", {"zero_stage": 1}, "framework_shards"),
        ("megatron-2023", {"zero_stage": 1}, None),
        ("megatron-bridge", {"zero_stage": 2, "pp": 2}, "framework_shards"),
        ("torchtitan", {"zero_stage": 1}, "framework_shards"),
        ("torchtitan", {"zero_stage": 2, "pp": 2}, None),
        ("deepspeed", {"pp": 2}, None),
        ("deepspeed", {"pp": 2, "vpp": 2}, "framework_axes"),
        ("deepspeed", {"zero_stage": 2, "pp": 2}, "framework_shards"),
        ("llm-foundry", {"zero_stage": 3}, None),
        ("llm-foundry", {"tp": 2}, "framework_axes"),
        ("llm-foundry", {"pp": 2}, "framework_axes"),
        ("nanotron", {"tp": 4}, None),
        ("nanotron", {"tp": 8}, "framework_heads"),
        ("nanotron", {"pp": 2, "vpp": 2}, "framework_axes"),
        ("nanotron", {"pp": 2, "schedule": "gpipe"}, None),
        ("nanotron", {"pp": 2, "schedule": "zb-h1"}, "framework_schedules"),
        ("nanotron", {"zero_stage": 2}, "framework_shards"),
        ("nanotron", {"zero_stage": 1, "shard_degree": 4}, "framework_groups_shards"),
        ("nanotron", {"zero_stage": 1, "offload_optimizer": True}, "framework_offloads"),
        ("nanotron", {"cp": 2, "cp_kind": "all_gather"}, "framework_exchanges"),
        ("megatron-core", {"offload_activations": True}, None),
        ("megatron-core", {"offload_activations": True, "pp": 2}, "framework_offloads"),
        ("megatron-bridge", {"offload_activations": True, "pp": 2}, "framework_offloads"),
        (
            "megatron-core",
            {"offload_activations": True, "recompute": "full"},
            "framework_offloads",
        ),
        ("megatron-2023", {"zero_stage": 1, "offload_optimizer": True}, "framework_offloads"),
        ("megatron-2023", {"zero_stage": 1, "shard_degree": 4}, "framework_groups_shards"),
        ("megatron-core", {"zero_stage": 1, "shard_degree": 4}, None),
        ("deepspeed", {"zero_stage": 1, "shard_degree": 4}, "framework_groups_shards"),
        ("deepspeed", {"offload_activations": True, "pp": 2, "recompute": "full"}, None),
        ("jax", {"pp": 4}, None),
        ("jax", {"pp": 8}, "framework_stages"),
        ("jax", {"pp": 2, "vpp": 3}, None),
        ("generic", {"tp": 8, "zero_stage": 3, "pp": 8}, None),
    ],
)
def test_a_framework_accepts_and_refuses(
    profile: str, axes: dict[str, object], rule: str | None
) -> None:
    """12 layers, 8 heads, 4 key-value heads."""
    found = rules_of(job(software=software(profile)), **axes)
    assert found == ({rule} if rule else set())


def test_torchtitan_halves_the_sequence_of_tensor_ranks() -> None:
    """128 tokens on tp 8 x cp 8 would be two halves of one position; 64 would not."""
    for seq_len, rule in ((128, set()), (64, {"framework_halves"})):
        asked = job(seq_len=seq_len, software=software("torchtitan"))
        assert rules_of(asked, tp=8, cp=8) == rule


def test_megatron_runs_experts_on_tensor_ranks_with_sequence_parallelism_alone() -> None:
    asked = job(EXPERTS, software=software("megatron-core"))
    assert rules_of(asked, tp=2) == set()
    assert rules_of(asked, tp=2, sequence_parallel=False) == {"framework_experts"}
    assert rules_of(asked, tp=1, sequence_parallel=False) == set()
    assert rules_of(job(EXPERTS), tp=2, sequence_parallel=False) == set()


def test_uneven_chunks_are_legal_where_a_layout_of_the_pipeline_can_be_written() -> None:
    """12 layers in 5 chunks on each of 2 stages."""
    layout = Layout(pp=2, vpp=5, dp=32, microbatches=2, schedule="interleaved")
    names = {
        profile: {one.rule for one in broken_rules(job(software=software(profile)), layout)}
        for profile in ("generic", "megatron-core", "torchtitan")
    }
    assert names["generic"] == names["megatron-core"] == set()
    assert "even_chunks" in names["torchtitan"]
    many = replace(layout, vpp=8)
    assert {one.rule for one in broken_rules(job(), many)} == {"even_chunks"}


def test_a_refusal_names_framework_and_number() -> None:
    asked = job(software=software("nanotron"))
    layout = replace(PLAIN, tp=8, dp=8, microbatches=8)
    (one,) = broken_rules(asked, layout)
    assert one.message == "nanotron copies no key-value heads: tp 8 is more than the model's 4"
    assert one.nearest == (1, 2, 4)


@pytest.mark.parametrize("profile", software_names())
def test_the_space_is_what_the_rules_leave(profile: str) -> None:
    """The solver's space and the list of broken rules count the same layouts."""
    for model in (SMALL.model_copy(update={"layers": 4}), EXPERTS):
        asked = job(model, gpus=4, global_batch=4, seq_len=16, software=software(profile))
        question = Question(job=asked, fix={"micro_batch": 1, "recompute": "none"})
        from layoutopt.optimizer.orders import candidates_of, first_space

        space = first_space(question)
        listed = sum(1 for _ in every_layout(question))
        assert (candidates_of(space) if space else 0) == listed
        assert space_of(question).candidates <= listed


def test_every_rule_has_a_source() -> None:
    for name in software_names():
        accepts = framework_rules.accepted_by(software(name))
        assert accepts.source


def test_rules_refuse_no_more_than_one_in_a_hundred_runs_that_ran() -> None:
    refused: list[str] = []
    ran: Counter[str] = Counter()
    for record in read_records(sorted(MEASURED.glob("*.jsonl"))):
        if record.measured.get("oom"):
            continue
        try:
            case = case_of(record)
        except Incomplete:
            continue
        ran["all"] += 1
        broken = broken_rules(case.job, case.layout)
        if broken:
            refused.append(f"{record.id}: {broken[0].rule}")
    assert ran["all"] > 1500
    assert len(refused) <= ran["all"] / 100, "\n".join(refused)
