"""Each rule alone: what it allows, and what it forbids."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.costmodel.model import Moe
from layoutopt.optimizer import rules
from layoutopt.optimizer.question import Limit
from layoutopt.optimizer.space import (
    Space,
    context_halves_the_sequence,
    space_of,
    tensor_divides_heads,
)
from layoutopt.optimizer.tables import tables_of
from layoutopt.optimizer.variables import Degrees
from tests.builders import small_cluster, small_model, small_question
from tests.optimizer.solving import possible

EIGHT = small_question(small_model(layers=12), gpus=8, batch=16)


def interleave(degrees: Degrees, space: Space) -> None:
    chunks = rules.cut_layers_evenly(degrees, space)
    rules.interleave_whole_groups(degrees, space, chunks)


def fit(degrees: Degrees, space: Space) -> None:
    tables = tables_of(space)
    layer, ends, shard = (
        degrees.rows(table.name, table.axes, table.rows.tolist())
        for table in (tables.layer, tables.ends, tables.shard)
    )
    held = rules.Memory(
        layer,
        tables.layer,
        ends,
        tables.ends,
        shard,
        tables.shard,
        keeps_logits=space.job.software.keeps_logits,
    )
    chunks = rules.cut_layers_evenly(degrees, space)
    rules.use_the_batch(degrees, space)
    rules.use_every_gpu(degrees, space)
    rules.every_stage_fits(degrees, space, chunks, held, largest_allocation_kib(space.job))


def test_use_every_gpu() -> None:
    assert possible(EIGHT, rules.use_every_gpu, tp=2, cp=1, pp=2, dp=2)
    assert not possible(EIGHT, rules.use_every_gpu, tp=2, cp=1, pp=2, dp=1)


def test_use_the_batch() -> None:
    assert possible(EIGHT, rules.use_the_batch, dp=4, micro_batch=2, microbatches=2)
    assert not possible(EIGHT, rules.use_the_batch, dp=4, micro_batch=2, microbatches=4)


def test_cut_layers_evenly() -> None:
    assert possible(EIGHT, rules.cut_layers_evenly, pp=2, vpp=3)
    assert possible(EIGHT, rules.cut_layers_evenly, pp=2, vpp=7)  # with the ends: 14 = 2 x 7
    assert not possible(EIGHT, rules.cut_layers_evenly, pp=4, vpp=2)
    assert not possible(EIGHT, rules.cut_layers_evenly, pp=1, vpp=2)


def test_interleave_whole_groups() -> None:
    assert possible(EIGHT, interleave, pp=4, vpp=3, microbatches=8)
    assert possible(EIGHT, interleave, pp=4, vpp=1, microbatches=2)
    assert not possible(EIGHT, interleave, pp=4, vpp=3, microbatches=2)


def test_sequence_parallel_splits() -> None:
    short = small_question(gpus=8, batch=16, seq_len=12)
    assert possible(short, rules.sequence_parallel_splits, tp=4, cp=1)
    assert possible(short, rules.sequence_parallel_splits, tp=1, cp=2)
    assert not possible(short, rules.sequence_parallel_splits, tp=8, cp=1)
    assert not possible(short, rules.sequence_parallel_splits, tp=4, cp=2)


def test_framework_shards() -> None:
    megatron = small_question(framework="megatron-core")
    deepspeed = small_question(framework="deepspeed")
    assert possible(megatron, rules.framework_shards, zero_stage=1, pp=2)
    assert possible(megatron, rules.framework_shards, zero_stage=3, pp=1)
    assert not possible(megatron, rules.framework_shards, zero_stage=3, pp=2)
    assert possible(deepspeed, rules.framework_shards, zero_stage=3, pp=1)
    assert not possible(deepspeed, rules.framework_shards, zero_stage=2, pp=2)


def test_experts_share_a_stage() -> None:
    moe = Moe(experts=8, top_k=2, expert_ffn=512, layers=6).model_dump()
    question = small_question(small_model(layers=6, moe=moe), gpus=8)
    assert possible(question, rules.experts_share_a_stage, ep=8, pp=1)
    assert not possible(question, rules.experts_share_a_stage, ep=8, pp=2)


def test_tensor_divides_heads() -> None:
    job = small_question(small_model(heads=6, kv_heads=3)).job
    assert tensor_divides_heads(job, 3)
    assert not tensor_divides_heads(job, 4)  # 6 heads
    assert not tensor_divides_heads(job, 2)  # 3 key-value heads


def test_context_halves_the_sequence() -> None:
    job = small_question(seq_len=12).job
    assert context_halves_the_sequence(job, 2)
    assert not context_halves_the_sequence(job, 4)
    assert context_halves_the_sequence(small_question(seq_len=11).job, 1)


def test_every_stage_fits() -> None:
    """A sixth of the layers each, or all of them: with 3 GiB for state and activations."""
    question = small_question(
        small_model(layers=6, heads=16, head_dim=128),
        gpus=6,
        batch=6,
        cluster=small_cluster(memory_gib=4.5),
    )
    assert possible(question, fit, pp=6, tp=1, cp=1, zero_stage=1, recompute=2)
    assert not possible(question, fit, pp=1, tp=1, cp=1, zero_stage=0, recompute=2)


def test_fix_and_limits_shape_the_domains() -> None:
    fixed = replace(EIGHT, fix={"recompute": "full", "tp": 2})
    assert space_of(fixed).values["recompute"] == (2,)
    assert space_of(fixed).values["tp"] == (2,)
    limited = replace(EIGHT, limits=(Limit("pp", "<=", 2), Limit("zero_stage", "!=", 0)))
    assert space_of(limited).values["pp"] == (1, 2)
    assert space_of(limited).values["zero_stage"] == (1, 2, 3)


def test_a_stage_holds_a_layer() -> None:
    """More stages than layers are not in the domain at all."""
    assert space_of(small_question(small_model(layers=3), gpus=8)).values["pp"] == (1, 2)
