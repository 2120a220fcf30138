"""Each rule alone: what it allows and what it forbids, and the sentence that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel import rules, spreading
from layoutopt.costmodel.axes import HIERARCHICAL, RING, ULYSSES
from layoutopt.costmodel.framework_rules import axis_is_run, uneven_chunks_fit
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from tests.costmodel.cases import EXPERTS, SMALL, job, one, soft

LEGAL = Layout(tp=2, cp=2, pp=2, dp=8, microbatches=8)
"""64 GPUs, 64 sequences."""


def broken(asked: Job, layout: Layout) -> dict[str, rules.Broken]:
    """Broken rules by name."""
    return {found.rule: found for found in rules.broken_rules(asked, layout)}


def test_a_legal_layout_breaks_nothing() -> None:
    assert broken(job(), LEGAL) == {}
    assert broken(job(EXPERTS), replace(LEGAL, ep=4, etp=2)) == {}


@given(st.integers(1, 5000))
def test_divisors_are_all_and_in_order(number: int) -> None:
    assert list(rules.divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]


def test_nearest_values_are_in_rising_order() -> None:
    assert rules.nearest_of((1, 2, 4, 8, 16), 7) == (2, 4, 8)
    assert rules.nearest_of([3], 100) == (3,)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_tensor_parallelism_allows_divisors_of_the_heads(tp: int) -> None:
    """8 heads, 4 key-value heads (8 ranks share them two by two), an MLP of 256."""
    assert rules.tensor_parallel_fits(job(), tp)


@pytest.mark.parametrize("tp", [3, 5, 16])
def test_tensor_parallelism_forbids_the_rest(tp: int) -> None:
    assert not rules.tensor_parallel_fits(job(), tp)


def test_tensor_parallelism_minds_the_mlp_and_the_key_value_heads() -> None:
    assert not rules.tensor_parallel_fits(job(SMALL.model_copy(update={"ffn": 255})), 2)
    six = SMALL.model_copy(update={"heads": 12, "kv_heads": 6, "ffn": 240})
    assert not rules.tensor_parallel_fits(job(six), 4)
    assert rules.tensor_parallel_fits(job(six), 6)


def test_context_parallelism_needs_two_halves_a_rank() -> None:
    """128 tokens: cp 64 leaves two halves of one token; 3 and 128 do not."""
    assert all(spreading.context_parallel_fits(job(), cp) for cp in (1, 2, 64))
    assert not any(spreading.context_parallel_fits(job(), cp) for cp in (3, 128))
    assert spreading.context_parallel_fits(job(seq_len=127), 1)


def test_ulysses_splits_heads() -> None:
    """8 heads over tp x cp, 4 key-value heads or copies of them."""
    assert spreading.context_kind_splits_heads(job(), one(2), one(4), ULYSSES)
    assert not spreading.context_kind_splits_heads(job(), one(2), one(8), ULYSSES)
    assert spreading.context_kind_splits_heads(job(), one(2), one(8), RING)


def test_hierarchical_splits_heads_inside_a_server_and_rings_outside() -> None:
    """Servers of 8: with tp 2 up to 4 ranks of cp stand in one, so that 16 leave a ring of 4."""
    assert spreading.context_kind_splits_heads(job(), one(2), one(16), HIERARCHICAL)
    assert not spreading.context_kind_splits_heads(job(), one(2), one(4), HIERARCHICAL)
    assert not spreading.context_kind_splits_heads(job(), one(8), one(4), HIERARCHICAL)


def test_sequence_parallelism_needs_whole_positions() -> None:
    assert rules.sequence_splits(job(seq_len=96), 8, 4)
    assert not rules.sequence_splits(job(seq_len=100), 8, 1)
    odd = job(seq_len=100)
    assert "sequence_parallel_splits" in broken(odd, Layout(tp=8, dp=8, microbatches=8))
    off = Layout(tp=8, dp=8, microbatches=8, sequence_parallel=False)
    assert broken(odd, off) == {}


def test_every_stage_and_chunk_holds_a_layer() -> None:
    """12 layers."""
    assert rules.pipeline_fits(job(), 12, 1)
    assert not rules.pipeline_fits(job(), 13, 1)
    assert rules.pipeline_fits(job(), 5, 1), "without interleaving stages may be uneven"
    assert rules.pipeline_fits(job(), 3, 2)
    assert rules.pipeline_fits(job(), 6, 2)
    assert not rules.pipeline_fits(job(), 5, 2)
    assert not rules.pipeline_fits(job(), 6, 3), "18 chunks of 12 layers"
    assert not rules.pipeline_fits(job(), 1, 2), "one stage has nothing to interleave"


def test_embedding_and_loss_head_may_count_as_layers() -> None:
    """14 + 2 in 2 x 4 or 4 x 2 chunks of two, or 8 x 2 with the ends alone in theirs (Llama 3)."""
    fourteen = job(SMALL.model_copy(update={"layers": 14}))
    assert rules.pipeline_fits(fourteen, 2, 4)
    assert rules.pipeline_fits(fourteen, 4, 2)
    assert not rules.pipeline_fits(fourteen, 5, 2)
    assert rules.pipeline_fits(fourteen, 8, 2)
    assert not rules.pipeline_fits(fourteen, 16, 1), "a stage without a layer"


def test_interleaving_works_on_groups_of_stages() -> None:
    assert rules.interleaving_fits(4, 1, 6)
    assert rules.interleaving_fits(4, 2, 8)
    assert not rules.interleaving_fits(4, 2, 6)
    assert broken(job(), replace(LEGAL, pp=4, dp=4, vpp=3, microbatches=16)) == {}


def test_experts_divide() -> None:
    """8 experts of width 128 on 64 GPUs."""
    assert rules.expert_parallel_fits(job(), 1, 1, 4)
    assert not rules.expert_parallel_fits(job(), 2, 1, 4), "a dense model has no experts"
    assert rules.expert_parallel_fits(job(EXPERTS), 8, 2, 4)
    assert not rules.expert_parallel_fits(job(EXPERTS), 3, 1, 1)
    assert not rules.expert_parallel_fits(job(EXPERTS), 8, 16, 1), "128 GPUs"
    assert not rules.expert_parallel_fits(job(EXPERTS, gpus=60), 4, 5, 1), "128 by 5"


@pytest.mark.parametrize(
    ("framework", "stage", "pp", "runs"),
    [
        ("megatron", 0, 4, True),
        ("megatron", 1, 4, True),
        ("megatron", 2, 1, True),
        ("megatron", 2, 2, False),
        ("nemo", 3, 1, True),
        ("nanotron", 2, 1, False),
        ("jax", 1, 1, False),
        ("deepspeed", 3, 1, True),
        ("deepspeed", 1, 4, True),
        ("deepspeed", 2, 4, False),
        ("torchtitan", 3, 4, True),
        ("generic", 2, 2, True),
    ],
)
def test_frameworks_shard_what_they_shard(framework: str, stage: int, pp: int, runs: bool) -> None:
    asked = job(software=soft(framework=framework))
    assert rules.sharding_fits(asked, stage, pp) == runs


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        ({"dp": 4}, "use_every_gpu", "tp 2 x cp 2 x pp 2 x dp 4 = 32 GPUs, but the job has 64"),
        ({"microbatches": 9}, "use_the_batch", "= 72 sequences, but the global batch is 64"),
        ({"tp": 3}, "tensor_divides_heads", "tp 3 does not divide 8 heads"),
        ({"cp": 128}, "context_halves_the_sequence", "2 x cp = 256"),
        ({"pp": 13}, "a_layer_per_stage", "pp 13 is more than the model's 12 layers"),
        ({"vpp": 5}, "even_chunks", "does not cut 12 layers evenly"),
        ({"vpp": 2, "microbatches": 7}, "interleave_whole_groups", "not 7"),
        ({"ep": 2}, "experts_divide", "ep 2 x etp 1, but the model has no experts"),
        ({"shard_degree": 5}, "shards_divide_replicas", "does not divide dp x cp = 16"),
        ({"layers_per_stage": (6, 5)}, "stages_hold_every_layer", "2 stages with 11 layers"),
        ({"layers_per_stage": (12,)}, "stages_hold_every_layer", "1 stages with 12 layers"),
        ({"layers_per_stage": (13, -1)}, "stages_hold_every_layer", "pp is 2"),
    ],
)
def test_a_broken_rule_says_its_numbers(change: dict[str, object], rule: str, words: str) -> None:
    # Uneven chunks are legal for generic, and nothing else here asks who runs it.
    asked = job(software=soft(framework="torchtitan")) if rule == "even_chunks" else job()
    found = broken(asked, replace(LEGAL, **change))  # type: ignore[arg-type]
    assert words in found[rule].message


def test_a_framework_says_what_it_does_not_run() -> None:
    asked = job(software=soft(name="deepspeed", framework="deepspeed"))
    found = broken(asked, replace(LEGAL, zero_stage=3))["framework_shards"]
    assert found.message == "deepspeed does not run zero_stage 3 with pp 2"
    assert found.nearest == (0, 1)


def test_nearest_legal_values_are_told() -> None:
    assert broken(job(), replace(LEGAL, dp=4))["use_every_gpu"].nearest == ("dp=8",)
    assert broken(job(), replace(LEGAL, tp=3))["tensor_divides_heads"].nearest == (1, 2, 4)
    batch = broken(job(global_batch=60), LEGAL)["use_the_batch"]
    assert batch.nearest == (56, 64)
    even = job(software=soft(framework="torchtitan"))
    assert broken(even, replace(LEGAL, vpp=5))["even_chunks"].nearest == (3, 6, 7)


@given(
    st.tuples(*[st.sampled_from([1, 2, 3, 4, 8, 16]) for _ in range(6)]),
    st.integers(0, 3),
    st.sampled_from(["megatron", "deepspeed", "generic"]),
)
def test_nothing_broken_means_every_rule_holds(
    axes: tuple[int, ...], stage: int, framework: str
) -> None:
    """The list of broken rules and the rules themselves, each asked alone, never disagree."""
    tp, cp, pp, dp, vpp, m = axes
    asked = job(software=soft(framework=framework))
    layout = Layout(tp=tp, cp=cp, pp=pp, dp=dp, vpp=vpp, microbatches=m, zero_stage=stage)
    holds = (
        tp * cp * pp * dp == 64
        and dp * m == 64
        and rules.tensor_parallel_fits(asked, tp)
        and spreading.context_parallel_fits(asked, cp)
        and (tp == 1 or rules.sequence_splits(asked, tp, cp))
        and (rules.pipeline_fits(asked, pp, vpp) or uneven_chunks_fit(asked, pp, vpp))
        and axis_is_run(asked, "vpp", vpp)
        and rules.interleaving_fits(pp, vpp, m)
        and rules.sharding_fits(asked, stage, pp)
    )
    assert (broken(asked, layout) == {}) == holds


def on(framework: str, **changes: object) -> dict[str, rules.Broken]:
    """What a change of LEGAL breaks on a framework."""
    changed = replace(LEGAL, **changes)  # type: ignore[arg-type]
    return broken(job(software=soft(framework=framework)), changed)


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1", "zbv"])
def test_schedules_are_those_that_the_framework_runs(schedule: str) -> None:
    runs = {"generic": True, "torchtitan": schedule != "zb-h1", "megatron": False}
    for framework, legal in runs.items():
        got = on(framework, schedule=schedule)
        assert ("framework_schedules" not in got) == legal
    assert on("megatron", schedule="interleaved", vpp=2) == {}


def test_a_v_needs_two_chunks_on_each_stage() -> None:
    """12 layers: up to 6 stages, more than one, and no chunks beside the two."""
    assert rules.v_shape_fits(job(), 6)
    assert rules.v_shape_fits(job(), 6, 2)
    assert not rules.v_shape_fits(job(), 12)
    assert not rules.v_shape_fits(job(), 1)
    assert "two_chunks_in_a_v" in on("generic", schedule="zbv", vpp=3)


def test_uneven_stages_are_not_for_every_framework() -> None:
    for framework, legal in {"generic": True, "megatron": True, "deepspeed": False}.items():
        got = on(framework, layers_per_stage=(5, 7))
        assert ("framework_splits" not in got) == legal
    assert on("deepspeed", layers_per_stage=(6, 6)) == {}


def test_part_of_the_layers_recomputes_where_the_framework_can() -> None:
    same: dict[str, object] = {"recompute": "full", "recompute_layers": 3}
    each: dict[str, object] = {"recompute": "full", "recompute_layers": (3, 2)}
    for framework, legal in {"generic": (1, 1), "nemo": (1, 0), "torchtitan": (0, 0)}.items():
        told = [int("framework_recomputes" not in on(framework, **one)) for one in (same, each)]
        assert tuple(told) == legal
    short = {**each, "recompute_layers": (3, 2, 1)}
    assert "recompute_every_stage" in on("generic", **short)
