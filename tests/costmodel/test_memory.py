"""Bytes by hand. With 1,024 tokens a microbatch, KiB of activations are bytes a token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel import activations, memory
from layoutopt.costmodel.axes import FULL, NONE, SELECTIVE, axes_of
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.stages import given_stages, stages_of
from layoutopt.costmodel.training import Precision
from layoutopt.units import GIB, KIB
from tests.costmodel.cases import CLUSTER, EXPERTS, LATENT, SMALL, flag, job, one, soft
from tests.costmodel.drawn import layouts

LAYER = 61_568
"""Parameters of a layer: 61,440 in matrices and 128 in norms."""
ENDS = 2 * 65_536 + 64
SIXTEEN = {"gradient_bytes": 2}
"""2 + 2 + 12 bytes a parameter; PLAIN has fp32 gradients: 2 + 4 + 12."""


def kib(size: float) -> int:
    """Bytes in whole KiB, rounded up."""
    return int(-(-size // KIB))


def state(asked: Job, stage: int, **options: Any) -> memory.State:
    """State of the whole model on one stage, tp 1."""
    one_stage = (one(asked.model.layers), flag(True), flag(True))
    return memory.state_kib(asked, one(1), one(1), one(stage), *one_stage, **options)


def parts(asked: Job, stage: int, **options: Any) -> list[int]:
    """Weights, gradients, optimizer in KiB."""
    got = state(asked, stage, **options)
    return [int(got.weights[0]), int(got.gradients[0]), int(got.optimizer[0])]


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

WORKSPACE = shipped().workspace_bytes // KIB
"""Whole KiB, on every stage."""


def buffers(asked: Job, stage: int, layers: int = 12, **options: Any) -> int:
    """KiB in hand beside shards and workspaces, on a middle stage."""
    middle = (flag(False), flag(False))
    got = memory.state_kib(asked, one(1), one(1), one(stage), one(layers), *middle, **options)
    return int(got.buffers[0]) - WORKSPACE


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


def thousand(model: Model = SMALL, **changes: Any) -> Job:
    """1,024 tokens in a microbatch."""
    return job(model, seq_len=1024, **changes)


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


# The loss, the peak, what fits


@pytest.mark.parametrize(
    ("changes", "tp", "bytes_a_token"),
    [
        ({}, 1, 14 * 1024),
        ({"logit_bytes": 6.0}, 1, 6 * 1024),
        ({}, 4, 14 * 256),
        ({"vocab_parallel_loss": False}, 4, 14 * 1024),
    ],
)
def test_logits_by_hand(changes: dict[str, Any], tp: int, bytes_a_token: int) -> None:
    """16-bit logits, fp32 copy, fp32 softmax, fp32 gradient: 2 + 4 + 4 + 4; in place: 2 + 4."""
    asked = thousand(software=soft(**changes))
    assert activations.logits_kib(asked, one(tp), one(1), one(1))[0] == bytes_a_token


def peak(asked: Job, layout: Layout, split: tuple[int, ...]) -> memory.StageBytes:
    """Every stage of one layout."""
    return memory.stage_bytes(asked, axes_of([layout]), given_stages(split))


def test_the_first_stage_holds_most_microbatches_and_the_last_the_logits() -> None:
    """pp 4, 3 layers each: 12, 9, 6 and 3 layers' activations of 2,464 KiB."""
    wide = thousand(SMALL.model_copy(update={"vocab": 8192}))
    got = peak(wide, Layout(pp=4, dp=16, microbatches=8), (3, 3, 3, 3))
    assert got.logits[0].tolist() == [0, 0, 0, 14 * 8192]
    working = int(got.activations[0][0]) - 12 * 2464
    assert working > 0
    assert got.activations[0].tolist() == [
        12 * 2464 + working, 9 * 2464 + working, 6 * 2464 + working, 3 * 2464,
    ]  # fmt: skip


def test_small_logits_are_not_the_worst_moment() -> None:
    tiny = thousand(SMALL.model_copy(update={"vocab": 8}))
    got = peak(tiny, Layout(pp=4, dp=16, microbatches=8), (3, 3, 3, 3))
    assert got.logits[0].tolist() == [0, 0, 0, 0]
    assert got.activations[0][3] > 3 * 2464


def test_tensors_that_the_loss_keeps_stand_beside_the_backward_pass() -> None:
    """pp 4, 3 layers each: the last stage holds 3 layers' activations, one layer's work, logits."""
    wide = thousand(SMALL.model_copy(update={"vocab": 8192}), software=soft(keeps_logits=True))
    got = peak(wide, Layout(pp=4, dp=16, microbatches=8), (3, 3, 3, 3))
    working = int(got.activations[0][0]) - 12 * 2464
    assert got.logits[0].tolist() == [0, 0, 0, 14 * 8192]
    assert int(got.activations[0][3]) == 3 * 2464 + working


def test_an_optimizer_that_is_not_fused_may_peak_in_its_step() -> None:
    """16 bytes a parameter for the time of the step, over dp under ZeRO-1; activations are gone."""
    asked = job(software=soft(step_bytes=16))
    layout = Layout(dp=64, zero_stage=0, microbatches=1, recompute="full")
    got = peak(asked, layout, (12,))
    held = 12 * LAYER + ENDS
    assert got.at_step[0].tolist() == [True]
    assert int(got.state.buffers[0][0]) == kib(16 * held) + WORKSPACE
    assert int(got.activations[0][0]) == int(got.logits[0][0]) == 0
    fused = peak(job(software=soft()), layout, (12,))
    assert fused.at_step[0].tolist() == [False]
    sharded = state(asked, 1)
    assert int(sharded.step[0]) == kib(16 * held / 64)


def test_gradients_of_fp16_runs_and_second_copies() -> None:
    """DeepSpeed: 2 bytes in fp16; in bf16 the 16-bit gradient and its fp32 sum, 6."""
    profile = soft(gradient_copy_bytes=2, fp16_gradient_bytes=2)
    assert memory.gradient_bytes(job(software=profile)) == 6
    assert memory.gradient_bytes(job(software=profile, precision="fp16")) == 2
    assert memory.gradient_bytes(job(precision="fp16")) == 4


def test_fsdp_under_a_pipeline_holds_whole_gradients() -> None:
    """ZeRO-3 on 4 stages: 4 bytes a gradient of the whole stage, not of the shard."""
    ends = (flag(False), flag(False))
    asked = job(software=soft(keeps_whole_gradients=True))
    whole = memory.state_kib(asked, one(1), one(4), one(3), one(3), *ends)
    assert int(whole.gradients[0]) == kib(4 * 3 * LAYER)
    alone = memory.state_kib(asked, one(1), one(1), one(3), one(3), *ends)
    assert int(alone.gradients[0]) == kib(4 * 3 * LAYER / 64)


def test_more_tensor_ranks_than_key_heads_hold_copies() -> None:
    """4 key and value heads of 8 on 8 ranks: one each, 8 wide, not half of one."""
    middle = (flag(False), flag(False))
    whole = memory.state_kib(job(), one(8), one(1), one(0), one(12), *middle)
    norms = 2 * 64
    kv, rest = 2 * 64 * 32, LAYER - norms - 2 * 64 * 32
    assert int(whole.weights[0]) == kib(2 * 12 * (rest / 8 + kv / 4 + norms))


def test_prediction_layers_stand_on_the_last_stage() -> None:
    """One block: a layer, 2h x h, three norms; its layer's activations and logits at the loss."""
    model = SMALL.model_copy(update={"mtp_layers": 1, "vocab": 8192})
    plain = SMALL.model_copy(update={"vocab": 8192})
    layout, split = Layout(pp=4, dp=16, microbatches=8, zero_stage=0), (3, 3, 3, 3)
    with_block, without = peak(thousand(model), layout, split), peak(thousand(plain), layout, split)
    more = (with_block.state.weights - without.state.weights)[0].tolist()
    assert more[:3] == [0, 0, 0]
    assert more[3] == pytest.approx(2 * (LAYER + 2 * 64 * 64 + 3 * 64) / KIB, abs=1)
    logits = (with_block.logits - without.logits)[0].tolist()
    assert logits == [0, 0, 0, 14 * 8192 + 2464]


def test_buckets_stand_where_something_is_sharded() -> None:
    asked = job(software=soft(bucket_bytes=1024 * 1000))
    assert buffers(asked, 1) == buffers(asked, 0) + 1000


@given(st.integers(0, 10**9))
def test_the_allocator_gives_its_cache_back_before_it_fails(allocated: int) -> None:
    """The cache while there is room, fragments at the least, and in between what fills the
    device."""
    asked, room = job(), memory.usable_bytes(job()) // KIB - allocated
    held = int(memory.reserve_kib(asked, one(allocated))[0])
    fit = shipped()
    least, most = (
        -(-allocated * share // 1000) for share in (fit.fragmented_per_mille, fit.reserve_per_mille)
    )
    assert held in (least, most, room)
    assert least <= held <= most


@given(st.integers(0, 10**12))
def test_what_fits_is_one_integer_comparison(usable: int) -> None:
    """allocated + reserve <= usable exactly where allocated <= largest_allocation_kib."""
    gpu = CLUSTER.gpu.model_copy(update={"memory_bytes": usable + shipped().context_bytes})
    asked = job(cluster=CLUSTER.model_copy(update={"gpu": gpu}))
    largest = memory.largest_allocation_kib(asked)
    for allocated, fits in ((largest, True), (largest + 1, False)):
        reserved = allocated + int(memory.reserve_kib(asked, one(allocated))[0])
        assert (reserved * KIB <= memory.usable_bytes(asked)) == fits


def test_usable_memory_leaves_the_context_out() -> None:
    assert memory.usable_bytes(job()) == 80 * GIB - shipped().context_bytes


@given(layouts(), st.sampled_from([SMALL, EXPERTS, LATENT]))
def test_parts_are_whole_kib_and_not_negative(layout: Layout, model: Model) -> None:
    got = peak(job(model), layout, (12 - layout.pp + 1, *[1] * (layout.pp - 1)))
    for part in (got.state.weights, got.state.optimizer, got.activations, got.logits):
        assert part.dtype == np.int64
        assert np.all(part >= 0)
    state_parts = got.state.weights + got.state.gradients + got.state.optimizer + got.state.buffers
    assert np.all(got.allocated == state_parts + got.activations + got.logits)
    assert np.all(memory.reserve_kib(job(model), got.allocated) >= 0)


@given(layouts())
def test_more_sharding_and_more_recompute_never_hold_more(layout: Layout) -> None:
    """State falls from stage 0 to 1; saved activations fall from none to selective to full."""
    asked = job()
    held = [parts(asked, stage)[2] for stage in (0, 1, 2, 3)]
    assert held == sorted(held, reverse=True)
    axes = (one(layout.tp), one(layout.cp), one(1), one(layout.micro_batch))
    kept = [
        int(activations.activation_kib(asked, *axes, one(code))[0])
        for code in (NONE, SELECTIVE, FULL)
    ]
    assert kept == sorted(kept, reverse=True)


def test_a_part_that_recomputes_by_hand() -> None:
    """pp 4, 3 layers each, 2 of stage 0's and all of stage 1's recompute: 4 microbatches of 2 full
    and 1 whole layer, 3 of 3 full ones, 2 and 1 of 3 whole ones; a stage's working memory is that
    of the worst layer it holds."""
    asked = thousand(SMALL.model_copy(update={"vocab": 8}))
    layout = Layout(pp=4, dp=16, microbatches=8, recompute="full", recompute_layers=(2, 3, 0, 0))
    got = memory.stage_bytes(asked, axes_of([layout]), stages_of(layout, 12)).activations[0]
    axes = (one(1), one(1), one(1), one(1))
    whole, full = (
        int(activations.activation_kib(asked, *axes, one(code))[0]) for code in (NONE, FULL)
    )
    plain, again = (
        int(activations.working_kib(asked, *axes, one(code))[0]) for code in (NONE, FULL)
    )
    assert again > plain
    assert got.tolist() == [
        4 * (2 * full + whole) + again, 3 * 3 * full + again, 2 * 3 * whole + plain,
        3 * whole + plain,
    ]  # fmt: skip


def test_a_v_holds_as_much_on_every_stage_and_the_logits_on_the_first() -> None:
    """pp 3, 4 layers each, 8 microbatches: 5 + 1, 4 + 2, 3 + 3 chunks of 2 layers."""
    wide = thousand(SMALL.model_copy(update={"vocab": 8192}))
    layout = Layout(pp=3, dp=16, microbatches=8, schedule="zbv")
    got = memory.stage_bytes(wide, axes_of([layout]), stages_of(layout, 12))
    assert got.logits[0].tolist() == [14 * 8192, 0, 0]
    assert int(got.activations[0][0]) == 12 * 2464
    held = got.activations[0][1:] - 12 * 2464
    assert held[0] == held[1] > 0
    assert got.state.weights[0][0] > got.state.weights[0][1] == got.state.weights[0][2]
