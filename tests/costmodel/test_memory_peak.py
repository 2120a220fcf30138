"""Logits, the worst moment of a stage, and what fits, by hand and on drawn layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel import activations, memory
from layoutopt.costmodel.axes import FULL, NONE, SELECTIVE, axes_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.stages import given_stages, stages_of
from layoutopt.units import GIB, KIB
from tests.costmodel.by_hand import ENDS, LAYER, WORKSPACE, buffers, kib, parts, state, thousand
from tests.costmodel.cases import CLUSTER, EXPERTS, LATENT, SMALL, flag, job, one, soft
from tests.costmodel.drawn import layouts


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
