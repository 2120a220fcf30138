"""Bytes by hand. With 1,024 tokens a microbatch, KiB of activations are bytes a token."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.costmodel import activations, memory
from layoutopt.costmodel.axes import FULL, NONE, SELECTIVE
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.training import Precision
from layoutopt.units import KIB
from tests.costmodel.by_hand import (
    ENDS,
    LAYER,
    SIXTEEN,
    WORKSPACE,
    buffers,
    kib,
    parts,
    state,
    thousand,
)
from tests.costmodel.cases import EXPERTS, LATENT, SMALL, flag, job, one, soft

# State


@pytest.mark.parametrize(
    ("changes", "bytes_each"),
    [
        (SIXTEEN, (2, 2, 12)),
        ({}, (2, 4, 12)),
        ({"weight_bytes": 4, "optimizer_bytes": 8}, (4, 4, 8)),
    ],
)
def test_nothing_is_sharded_at_stage_0(
    changes: dict[str, int], bytes_each: tuple[int, int, int]
) -> None:
    """16 bytes a parameter in mixed precision, 18 with fp32 gradients, 16 with fp32 weights."""
    total = 12 * LAYER + ENDS
    assert total == count(SMALL).total
    got = parts(job(software=soft(**changes)), 0)
    assert got == [kib(each * total) for each in bytes_each]


@pytest.mark.parametrize(
    ("stage", "shares"), [(0, (1, 1, 1)), (1, (1, 1, 64)), (2, (1, 64, 64)), (3, (64, 64, 64))]
)
def test_each_stage_of_zero_shards_one_more(stage: int, shares: tuple[int, int, int]) -> None:
    """Rajbhandari 2019, figure 1: optimizer, then gradients, then weights, over 64 ranks."""
    total = 12 * LAYER + ENDS
    want = [kib(each * total / n) for each, n in zip((2, 2, 12), shares, strict=True)]
    assert parts(job(software=soft(**SIXTEEN)), stage) == want


def test_megatron_with_a_distributed_optimizer_holds_6_and_12_over_d() -> None:
    """fp32 gradients: 2 + 4 whole, 12 over 64 ranks."""
    total = 12 * LAYER + ENDS
    assert sum(parts(job(), 1)) == pytest.approx((6 + 12 / 64) * total / KIB, abs=3)


def test_fp32_weights_are_sharded_to_16_bytes_over_d() -> None:
    asked = job(software=soft(weight_bytes=4, optimizer_bytes=8))
    assert sum(parts(asked, 3)) == pytest.approx(16 / 64 * count(SMALL).total / KIB, abs=3)


def test_shards_of_eight_are_eight_times_as_large_as_shards_of_64() -> None:
    wide, narrow = parts(job(), 3), parts(job(), 3, shard=one(8))
    assert narrow == pytest.approx([8 * part for part in wide], abs=8)


def test_experts_are_sharded_over_their_own_replicas() -> None:
    """64 GPUs, ep 8: one expert of 24,576 a layer, over 8 replicas; the rest over 64."""
    rest, experts = count(EXPERTS).total - 12 * 8 * 24_576, 12 * 24_576
    for stage, ranks, replicas in ((0, 1, 1), (1, 64, 8)):
        got = parts(job(EXPERTS), stage, ep=one(8))
        assert got[2] == kib(12 * (rest / ranks + experts / replicas))
        assert got[0] == kib(2 * (rest + experts))


def test_tensor_and_pipeline_stages_add_up_to_the_model() -> None:
    """tp 4 x pp 3: matrices and tables once, norms on each of the 4 ranks."""
    asked, total = job(software=soft(**SIXTEEN)), 0
    for stage in range(3):
        ends = (flag(stage == 0), flag(stage == 2))
        got = memory.state_kib(asked, one(4), one(3), one(0), one(4), *ends)
        total += 4 * int(got.weights[0])
    want = 2 * (count(SMALL).total + 3 * (12 * 128 + 64))
    assert total == pytest.approx(want / KIB, abs=4 * 3)


# Sharding buffers


def test_zero_3_holds_two_layers_of_weights_and_one_of_gradients() -> None:
    """2 x 2 bytes gathered and prefetched, 4 bytes of gradients before they are scattered."""
    assert buffers(job(), 3) == kib(2 * 2 * LAYER + 4 * LAYER)
    assert buffers(job(), 3, layers=1) == kib(2 * LAYER + 4 * LAYER)
    assert buffers(job(), 2) == kib(4 * LAYER)
    assert buffers(job(), 1) == buffers(job(), 0) == 0


def test_weights_that_are_kept_between_the_passes_are_all_there() -> None:
    """12 layers in 16 bit."""
    assert buffers(job(), 3, reshard=flag(False)) == kib(12 * 2 * LAYER + 4 * LAYER)


def test_the_ends_are_gathered_with_the_root() -> None:
    got = state(job(), 3)
    assert int(got.buffers[0]) == kib(2 * 2 * LAYER + 2 * ENDS + 4 * ENDS) + WORKSPACE


def test_one_rank_gathers_nothing_but_casts_fp32_weights() -> None:
    assert buffers(job(gpus=1), 3) == 0
    cast = job(gpus=1, software=soft(weight_bytes=4, optimizer_bytes=8))
    assert buffers(cast, 3) == kib(2 * 2 * LAYER)


# Activations


def saved(asked: Job, recompute: int = NONE, *, tp: int = 1, cp: int = 1, sp: bool = True) -> int:
    """KiB that one layer keeps of one microbatch."""
    axes = (one(tp), one(cp), one(1), one(1), one(recompute))
    return int(activations.activation_kib(asked, *axes, sp=flag(sp))[0])


GPT = Model(
    name="gpt3-like", layers=96, hidden=12_288, heads=96, kv_heads=96, head_dim=128, ffn=49_152,
    gated_mlp=False, vocab=51_200, tied_embeddings=True, norm="layernorm",
)  # fmt: skip


@pytest.mark.parametrize(
    ("tp", "sp", "linear", "scores"),
    [(1, False, 34, 5), (8, False, 10 + 24 / 8, 5 / 8), (8, True, 34 / 8, 5 / 8)],
)
def test_korthikanti_table_2(tp: int, sp: bool, linear: float, scores: float) -> None:
    """s b h (34 + 5 a s / h) bytes; 10 + 24 / t without, 34 / t with sequence parallelism.

    Equal but for 4 bytes a head and token (0.1%), which flash kernels keep.
    """
    asked = thousand(GPT, attention_kernel="fused_softmax")
    want = 12_288 * linear + 96 * 1024 * scores
    assert saved(asked, tp=tp, sp=sp) == pytest.approx(want, rel=2e-3)


def test_korthikanti_selective_and_full() -> None:
    """Selective drops the scores and keeps 34 s b h, full keeps the input: 2 s b h."""
    asked = thousand(GPT, attention_kernel="fused_softmax")
    assert saved(asked, SELECTIVE) == pytest.approx(34 * 12_288, rel=2e-3)
    assert saved(asked, FULL) == 2 * 12_288
    assert saved(asked, FULL, tp=8) == 2 * 12_288 / 8
    assert saved(asked, FULL, tp=8, sp=False) == 2 * 12_288


def test_grouped_queries_a_gated_mlp_and_a_flash_kernel_by_hand() -> None:
    """A token: 2 x (input + output) of norms 512; q, k, v, output 2 (64 + 32 + 32 + 64) = 384;
    log-sum-exp 4 x 8 = 32; gate, up and their product 2 x 3 x 256 = 1,536. In all 2,464."""
    assert saved(thousand()) == 512 + 384 + 32 + 1536 == 2464
    assert saved(thousand(), tp=4) == 616
    assert saved(thousand(), tp=4, sp=False) == 512 + (384 + 32 + 1536) / 4
    assert saved(thousand(), cp=2) == 1232
    assert saved(thousand(), SELECTIVE) == 2464, "a flash kernel leaves no scores to drop"
    assert saved(thousand(), FULL) == 128


def test_eight_bit_inputs_are_kept_in_one_byte() -> None:
    """Norm outputs and the activation's output halve; attention output is kept twice."""
    precision: Precision = "fp8"
    want = 2 * (2 + 1) * 64 + 384 + 64 + 32 + (4 + 1) * 256
    assert saved(thousand(precision=precision)) == want


def test_two_experts_a_token_keep_two_copies() -> None:
    """A copy: input and output (2 + 2) x 64, inner tensors 2 x 3 x 128: 1,024, for 1,536."""
    assert saved(thousand(EXPERTS)) == 2464 - 1536 + 2 * 1024


def test_latent_attention_keeps_latents_and_expanded_heads() -> None:
    """8 heads x (2 x (12 + 12 + 8 + 8) + 4) = 672; latents twice: 4 x (32 + 16) = 192."""
    assert saved(thousand(LATENT)) == 512 + 672 + 192 + 1536


def test_the_per_operator_list() -> None:
    """Input and attention output 2 (64 + 64), 4 for each of 8 heads; of the products q 64, v 32 and
    the first inner tensor of 256, in 2 bytes."""
    asked = thousand(software=soft(selective_scope="per_op"))
    assert saved(asked, SELECTIVE) == 256 + 32 + 2 * (64 + 32 + 256) == 992


def test_unfused_norms_keep_their_fp32_tensors() -> None:
    extra = saved(thousand(fused_norm=False)) - saved(thousand())
    assert extra == 2 * shipped().unfused_norm_bytes * 64


def test_recomputing_needs_what_it_recomputes() -> None:
    """Full recompute brings one layer's tensors back while that layer's backward pass runs."""

    def working(recompute: int) -> int:
        axes = (one(1), one(1), one(1), one(1), one(recompute))
        return int(activations.working_kib(thousand(), *axes)[0])

    assert working(FULL) - working(NONE) == 2464
    assert working(SELECTIVE) == working(NONE)


def test_gradients_summed_in_fp32_stand_in_16_bit_before_that() -> None:
    """2 bytes for each parameter of one layer; none where they are summed in 16 bit or sharded."""
    axes = (one(1), one(1), one(1), one(1), one(NONE))

    def working(**changes: Any) -> int:
        return int(activations.working_kib(thousand(software=soft(**changes)), *axes)[0])

    alone = working(gradient_bytes=2)
    assert working(gradient_bytes=4) == alone + kib(2 * LAYER)
    assert working(weight_bytes=4, gradient_bytes=4) == alone


def test_the_widest_mlp_of_experts_is_that_of_a_tokens_copies() -> None:
    """2 copies of 128 inner elements are as wide as a dense MLP of 256."""

    def working(model: Model) -> int:
        axes = (one(1), one(1), one(1), one(1), one(NONE))
        asked = thousand(model, software=soft(gradient_bytes=2))
        return int(activations.working_kib(asked, *axes)[0])

    assert working(EXPERTS) == working(SMALL)
    unused = EXPERTS.model_copy(update={"ffn": 10**6})
    assert working(unused) == working(EXPERTS), "no layer of it has the dense MLP"
