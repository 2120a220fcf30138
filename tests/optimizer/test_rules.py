"""Each rule alone: what it allows, and what it forbids."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.costmodel.axes import RING, ULYSSES, ints
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.costmodel.model import Moe
from layoutopt.optimizer import rules
from layoutopt.optimizer.choices import experts_code, mode, mode_code, sharding, sharding_code
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
    asked = replace(short, fix={"sequence_parallel": True})
    assert possible(asked, rules.sequence_parallel_splits, tp=4, cp=1)
    assert not possible(asked, rules.sequence_parallel_splits, tp=8, cp=1)
    assert not possible(asked, rules.sequence_parallel_splits, tp=4, cp=2)
    # Where nobody asks for it, it is left out where it does not split.
    assert possible(short, rules.sequence_parallel_splits, tp=8, cp=1)
    assert space_of(short).sequence_parallel(4, 1)
    assert not space_of(short).sequence_parallel(8, 1)


def test_framework_shards() -> None:
    megatron = small_question(framework="megatron-core")
    deepspeed = small_question(framework="deepspeed")
    assert possible(megatron, rules.framework_shards, sharding=sharding_code(1), pp=2)
    assert possible(megatron, rules.framework_shards, sharding=sharding_code(3), pp=1)
    assert not possible(megatron, rules.framework_shards, sharding=sharding_code(3), pp=2)
    assert possible(deepspeed, rules.framework_shards, sharding=sharding_code(3), pp=1)
    assert not possible(deepspeed, rules.framework_shards, sharding=sharding_code(2), pp=2)


def test_experts_share_a_stage() -> None:
    moe = Moe(experts=8, top_k=2, expert_ffn=512, layers=6).model_dump()
    question = small_question(small_model(layers=6, moe=moe), gpus=8)
    assert possible(question, rules.experts_share_a_stage, experts=experts_code(8), pp=1)
    assert not possible(question, rules.experts_share_a_stage, experts=experts_code(8), pp=2)


def test_gathered_weights_are_kept_where_the_framework_can_be_told() -> None:
    """torchtitan can; DeepSpeed drops them after each pass."""
    kept = sharding_code(3, keep=1)
    told = small_question(framework="torchtitan")
    assert possible(told, rules.framework_shards, sharding=kept, pp=1)
    assert not possible(
        small_question(framework="deepspeed"), rules.framework_shards, sharding=kept, pp=1
    )
    dropped = replace(told, fix={"reshard": True})
    assert not possible(dropped, rules.framework_shards, sharding=kept, pp=1)


def test_experts_stay_within_tensor_ranks() -> None:
    """etp 4 on 4 tensor ranks, not on 2."""
    moe = Moe(experts=8, top_k=2, expert_ffn=512, layers=6).model_dump()
    question = small_question(small_model(layers=6, moe=moe), gpus=8)
    cut = experts_code(2, 4)
    assert possible(question, rules.experts_stay_within_tensor_ranks, experts=cut, tp=4)
    assert not possible(question, rules.experts_stay_within_tensor_ranks, experts=cut, tp=2)


def test_shards_divide_replicas() -> None:
    """8 GPUs: with tp 2 groups of 2 divide the 4 replicas; all 4 are the plain code 0."""
    space, none = space_of(EIGHT), ints(experts_code(1))

    def good(tp: int, degree: int) -> bool:
        return bool(space.groups_shards(ints(tp), ints(1), none, ints(sharding_code(1, degree)))[0])

    assert good(2, 2)
    assert not good(2, 4)
    assert good(1, 2)
    assert good(1, 4)
    assert not good(1, 3)
    asked = space_of(replace(EIGHT, fix={"shard_degree": 4}))
    every, half = (ints(sharding_code(1, degree)) for degree in (0, 4))
    assert asked.groups_shards(ints(2), ints(1), none, every)[0]  # 4 replicas are all there are
    assert asked.groups_shards(ints(1), ints(1), none, half)[0]
    assert not asked.groups_shards(ints(1), ints(1), none, every)[0]


def test_context_kind_splits_heads() -> None:
    """8 heads: Ulysses over tp x cp = 8, not 16; without cp a ring alone."""
    space = space_of(EIGHT)

    def good(tp: int, cp: int, kind: int) -> bool:
        return bool(space.exchanges(ints(tp), ints(cp), ints(mode_code(0, kind)))[0])

    assert good(2, 4, ULYSSES)
    assert not good(4, 4, ULYSSES)
    assert good(1, 1, RING)
    assert not good(1, 1, ULYSSES)


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
    assert possible(question, fit, pp=6, tp=1, cp=1, sharding=sharding_code(1), mode=mode_code(2))
    assert not possible(
        question, fit, pp=1, tp=1, cp=1, sharding=sharding_code(0), mode=mode_code(2)
    )


def test_fix_and_limits_shape_the_domains() -> None:
    fixed = replace(EIGHT, fix={"recompute": "full", "tp": 2})
    assert {mode(code).recompute for code in space_of(fixed).values["mode"]} == {2}
    assert space_of(fixed).values["tp"] == (2,)
    limited = replace(EIGHT, limits=(Limit("pp", "<=", 2), Limit("zero_stage", "!=", 0)))
    assert space_of(limited).values["pp"] == (1, 2)
    codes = space_of(limited).values["sharding"]
    assert {sharding(code).zero_stage for code in codes} == {1, 2, 3}


def test_a_stage_holds_a_layer() -> None:
    """More stages than layers are not in the domain at all."""
    assert space_of(small_question(small_model(layers=3), gpus=8)).values["pp"] == (1, 2)
