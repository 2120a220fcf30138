"""Seconds of kernels by hand: 100 TFLOP/s, 1 TB/s, no launch costs unless said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutopt.costmodel import compute
from layoutopt.costmodel.axes import FULL, NONE, SELECTIVE, Array, ints
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.shares import dense_share
from layoutopt.costmodel.training import CudaGraphs
from tests.costmodel.cases import CLUSTER, EXPERTS, IDEAL, LATENT, SMALL, flag, job, one, soft

T = np.array([1000.0])
"""A thousand tokens."""


def width(value: float) -> Array:
    """A matrix dimension."""
    return np.array([value])


def test_a_product_costs_its_flops_and_its_operands() -> None:
    """1000 x 64 x 256: 32.768 MFLOP at 100 TFLOP/s is 0.32768 us.

    Operands 64,000 + 16,384 + 256,000 = 336,384 elements of 2 bytes at 1 TB/s: 0.672768 us.
    Backward two such products, and 16,384 gradients of 4 bytes read and written: 0.131072 us.
    """
    seconds = compute.gemm(machine(job()), T, width(64), width(256), 4.0)
    assert seconds.forward[0] == pytest.approx((0.32768 + 0.672768) * 1e-6)
    assert seconds.backward[0] == pytest.approx((2 * (0.32768 + 0.672768) + 0.131072) * 1e-6)


def test_eight_bit_products_read_half_and_quantise() -> None:
    """Half the time for FLOPs and operands; 4 bytes an element of the input forward, of the
    output's gradient backward."""
    rates = machine(job(precision="fp8", efficiency=IDEAL.model_copy(update={"cast_bytes": 4.0})))
    seconds = compute.gemm(rates, T, width(64), width(256), 4.0)
    half = (0.32768 + 0.672768) / 2
    assert seconds.forward[0] == pytest.approx((half + 4 * 64_000e-6) * 1e-6)
    assert seconds.backward[0] == pytest.approx((2 * half + 0.131072 + 4 * 0.256) * 1e-6)


def test_widths_that_are_no_multiple_of_16_bytes_are_slower() -> None:
    """65 columns at half the rate; rows, which are tokens, do not count."""
    half = IDEAL.model_copy(update={"misaligned_rate": 0.5, "memory": 1e9})
    rates = machine(job(efficiency=half))
    told = [
        compute.gemm(rates, np.array([m]), width(k), width(n), 0.0).forward[0] / (2 * m * k * n)
        for m, k, n in ((1000.0, 64, 128), (1001.0, 64, 128), (1000.0, 64, 65), (1000.0, 65, 64))
    ]
    assert told == pytest.approx([1e-14, 1e-14, 2e-14, 2e-14], rel=1e-6)


def test_a_dense_layer_is_four_products_cut_over_tp() -> None:
    """Columns 128 / 2 for q, k, v; 64 / 2 into the output; 512 / 2 and 256 / 2 in the MLP."""
    rates, tp = machine(job()), one(2)
    products = [(64, 64), (32, 64), (64, 256), (128, 64)]
    want = sum(compute.gemm(rates, T, width(k), width(n), 4.0).forward[0] for k, n in products)
    assert compute.linear_layers(job(), rates, T, tp).forward[0] == pytest.approx(want)


def test_latent_attention_is_five_products_of_which_two_are_not_cut() -> None:
    """Down to 16 + 4 and to 32, whole; up to 8 x 16 and 8 x 12, and 64 back, over tp 2."""
    asked = job(LATENT)
    rates = machine(asked)
    products = [(64, 20), (16, 64), (64, 32), (32, 48), (32, 64)]
    want = sum(compute.gemm(rates, T, width(k), width(n), 4.0).forward[0] for k, n in products)
    got = compute.attention_projections(asked, rates, T, one(2)).forward[0]
    assert got == pytest.approx(want)


def test_flash_attention_does_half_the_square() -> None:
    """3 sequences, 8 heads, 128 x 128 / 2 pairs, 2 x (8 + 8) FLOPs a pair: 6.291 MFLOP.

    Backward 2.5 times that. Over tp 2 and cp 2 a quarter of it.
    """
    asked = job()
    flops = 3 * 8 * (128 * 128 / 2) * 2 * (8 + 8)
    core = compute.attention_core(asked, machine(asked), np.array([3.0]), one(1), one(1))
    assert core.forward[0] == pytest.approx(flops / 100e12)
    assert core.backward[0] == pytest.approx(2.5 * flops / 100e12)
    cut = compute.attention_core(asked, machine(asked), np.array([3.0]), one(2), one(2))
    assert cut.total[0] == pytest.approx(core.total[0] / 4)


def test_attention_is_slower_on_a_short_context() -> None:
    """Rates are stated at 8,192 tokens; with a half of 1,000, 1,000 tokens reach 9192 / 16384."""
    figures = IDEAL.model_copy(update={"context_half": 1000.0})
    for seq_len, slower in ((8192, 1.0), (1000, 2 / (1 + 1000 / 8192))):
        asked, ideal = (job(efficiency=e, seq_len=seq_len) for e in (figures, IDEAL))
        got, free = (
            compute.attention_core(each, machine(each), np.ones(1), one(1), one(1)).total[0]
            for each in (asked, ideal)
        )
        assert got == pytest.approx(free * slower)


def test_windows_and_chunks_shorten_attention() -> None:
    """128 tokens: a window of 32 sees 32 - 32 x 32 / 256 = 28 of 64, a chunk of 32 sees 16."""

    def forward(**changes: object) -> float:
        asked = job(SMALL.model_copy(update=changes))
        core = compute.attention_core(asked, machine(asked), np.ones(1), one(1), one(1))
        return float(core.forward[0])

    assert forward(sliding_window=32) == pytest.approx(forward() * 28 / 64)
    assert forward(sliding_window=32, local_kind="chunk") == pytest.approx(forward() * 16 / 64)


@pytest.mark.parametrize(("kernel", "score_bytes"), [("fused_softmax", 13), ("unfused", 30)])
def test_other_kernels_do_the_square_and_move_it(kernel: str, score_bytes: int) -> None:
    """8 x 128 x 128 scores: 2 x (8 + 8) FLOPs and their bytes each; backward twice that."""
    asked = job(attention_kernel=kernel)
    core = compute.attention_core(asked, machine(asked), np.ones(1), one(1), one(1))
    scores = 8 * 128 * 128
    assert core.forward[0] == pytest.approx(scores * (32 / 100e12 + score_bytes / 1e12))
    assert core.backward[0] == pytest.approx(2 * core.forward[0])


def test_elementwise_bytes_by_hand() -> None:
    """A token: norms 2 x 4 x 64, residuals 2 x 6 x 64, rotary 4 (64 + 32), activation 6 x 256."""
    asked = job()
    a_token = 512 + 768 + 384 + 1536
    whole = compute.elementwise(asked, machine(asked), T, one(1), flag(True))
    assert whole.forward[0] == pytest.approx(1000 * a_token / 1e12)
    assert whole.backward[0] == pytest.approx(2 * whole.forward[0])
    cut = compute.elementwise(asked, machine(asked), T, one(2), flag(False))
    assert cut.forward[0] == pytest.approx(1000 * (512 + 768 + (384 + 1536) / 2) / 1e12)


def test_experts_have_their_own_activation() -> None:
    """With experts in every layer no dense MLP is left."""
    asked = job(EXPERTS)
    whole = compute.elementwise(asked, machine(asked), T, one(1), flag(True))
    assert whole.forward[0] == pytest.approx(1000 * (512 + 768 + 384) / 1e12)


def test_an_unfused_norm_moves_28_bytes_an_element() -> None:
    asked = job(fused_norm=False)
    whole = compute.elementwise(asked, machine(asked), T, one(1), flag(True))
    assert whole.forward[0] == pytest.approx(1000 * (2 * 28 * 64 + 768 + 384 + 1536) / 1e12)


def test_experts_work_on_their_share_of_the_copies() -> None:
    """ep 4: 2 experts held, 1000 x 2 / 2 rows each; products 64 x 256 and 128 x 64.

    Passes: 1000 x 2 copies of 10 x 64 + 6 x 128 bytes.
    """
    asked = job(EXPERTS)
    rates = machine(asked)
    got = compute.expert_layers(asked, rates, T, one(1), one(4), one(1))
    products = [(64, 256), (128, 64)]
    each = sum(compute.gemm(rates, T, width(k), width(n), 4.0).forward[0] for k, n in products)
    assert got.forward[0] == pytest.approx(2 * each + 2000 * (640 + 768) / 1e12)


def test_expert_work_does_not_depend_on_how_experts_are_spread_but_for_weights() -> None:
    """FLOPs of 1000 x 2 copies: 2 x 24,576 a copy, wherever the experts are."""
    fast = CLUSTER.gpu.model_copy(update={"memory_bytes_per_s": 1e30})
    asked = job(EXPERTS, cluster=CLUSTER.model_copy(update={"gpu": fast}))
    ep = ints([1, 2, 4, 8])
    got = compute.expert_layers(asked, machine(asked), T, one(1), ep, one(1)).forward
    assert got == pytest.approx(np.full(4, 1000 * 2 * 2 * 24_576 / 100e12))


def test_the_loss_head_by_hand() -> None:
    """1000 x 64 x 1024 / 2: 65.536 MFLOP; operands 64,000 + 32,768 + 512,000 of 2 bytes.

    Cross-entropy 48 bytes a logit both ways, 24 in one kernel; over all logits where the loss is
    not vocabulary-parallel.
    """
    asked = job()
    head = compute.loss_head(asked, machine(asked), T, one(2))
    product = 2 * 1000 * 64 * 512 / 100e12 + 2 * 608_768 / 1e12
    entropy = 48 * 512_000 / 1e12
    assert head.forward[0] == pytest.approx(product + entropy / 2)
    assert head.backward[0] == pytest.approx(2 * product + entropy / 2)
    fused = job(software=soft(fused_loss=True))
    got = compute.loss_head(fused, machine(fused), T, one(2))
    assert got.total[0] == pytest.approx(3 * product + entropy / 2)
    gathered = job(software=soft(vocab_parallel_loss=False))
    got = compute.loss_head(gathered, machine(gathered), T, one(2))
    assert got.total[0] == pytest.approx(3 * product + 2 * entropy)


def test_embedding_moves_the_hidden_state() -> None:
    """6 bytes an element forward, twice that backward."""
    seconds = compute.embedding(job(), machine(job()), T)
    assert seconds.forward[0] == pytest.approx(1000 * 6 * 64 / 1e12)
    assert seconds.backward[0] == 2 * seconds.forward[0]


@pytest.mark.parametrize(
    ("changes", "bytes_each"),
    [
        ({}, 4 + 12 + 12 + 2 + 4),  # gradient, state in, state out, 16-bit copy, norm's pass
        ({"gradient_bytes": 2}, 2 + 12 + 12 + 2 + 2),
        ({"weight_bytes": 4, "optimizer_bytes": 8}, 4 + 8 + 8 + 4 + 4 + 4),  # fp32 weights
    ],
)
def test_adam_moves_every_byte_of_its_state(changes: dict[str, int], bytes_each: int) -> None:
    asked = job(software=soft(**changes))
    seconds = compute.optimizer_seconds(asked, machine(asked), np.array([1e9]))
    assert seconds[0] == pytest.approx(bytes_each * 1e9 / 1e12)


@pytest.mark.parametrize(
    ("scope", "work", "core"),
    [("core_attention", [0, 0, 1], [0, 1, 1]), ("per_op", [0, 0.5, 1], [0, 0, 1])],
)
def test_what_is_run_again(scope: str, work: list[float], core: list[float]) -> None:
    asked = job(software=soft(selective_scope=scope))
    got_work, got_core = compute.recompute_share(asked, ints([NONE, SELECTIVE, FULL]))
    assert got_work.tolist() == work
    assert got_core.tolist() == core


def test_launching_takes_twice_as_long_backward() -> None:
    """20 kernels of 5 us forward, 40 backward."""
    slow = job(efficiency=IDEAL.model_copy(update={"launch_s": 5e-6}))
    floor = compute.host_floor(slow, machine(slow), one(1))
    assert (floor.forward, floor.backward) == pytest.approx((100e-6, 200e-6))


@pytest.mark.parametrize(("graphs", "kernels"), [("none", 20 + 600), ("layers", 300), ("full", 0)])
def test_graphs_leave_less_to_launch(graphs: CudaGraphs, kernels: int) -> None:
    """400 kernels of a layer of experts and 100 for each of the 2 held; graphs of layers leave half
    of them and nothing of attention's."""
    figures = {"launch_s": 5e-6, "expert_launches": 400.0, "grouped_launches": 100.0}
    slow = job(EXPERTS, efficiency=IDEAL.model_copy(update=figures), cuda_graphs=graphs)
    floor = compute.host_floor(slow, machine(slow), one(4))
    assert np.ravel(floor.forward)[0] == pytest.approx(kernels * 5e-6)
    assert np.ravel(floor.backward)[0] == pytest.approx(2 * kernels * 5e-6)


def test_only_an_exchange_of_all_copies_waits_for_its_counts() -> None:
    """1 ms forward, unless dispatch is fused or captured."""
    waits = IDEAL.model_copy(update={"router_s": 1e-3})

    def forward(**training: Any) -> float:
        asked = job(EXPERTS, efficiency=waits, **training)
        got = compute.expert_layers(asked, machine(asked), T, one(1), one(4), one(1))
        return float(got.forward[0])

    free = forward(dispatcher="deduplicated")
    assert forward() == pytest.approx(free + 1e-3)
    assert forward(cuda_graphs="layers") == forward()
    assert forward(cuda_graphs="full") == free


def test_biases_of_experts_cost_passes_over_memory() -> None:
    """2,000 copies of 256 inner elements (gate and value) of 10 bytes each."""
    assert EXPERTS.moe is not None
    moe = EXPERTS.moe.model_copy(update={"expert_bias": True})
    plain, biased = job(EXPERTS), job(EXPERTS.model_copy(update={"moe": moe}))
    before, after = (
        compute.expert_layers(asked, machine(asked), T, one(1), one(4), one(1)).forward[0]
        for asked in (plain, biased)
    )
    assert after == pytest.approx(before + 2000 * 256 * 10 / 1e12)


def test_an_optimizer_step_costs_something_whatever_its_size() -> None:
    slow = job(efficiency=IDEAL.model_copy(update={"optimizer_s": 0.02}))
    none = compute.optimizer_seconds(slow, machine(slow), np.array([0.0]))
    assert none[0] == pytest.approx(0.02)


def test_four_bit_products_are_not_on_the_list() -> None:
    """torchtitan's list names none of them: all are run again, attention is not."""
    asked = job(software=soft(selective_scope="per_op"), precision="nvfp4")
    work, core = compute.recompute_share(asked, np.arange(3))
    assert work.tolist() == [0, 1, 1]
    assert core.tolist() == [0, 0, 1]


def test_share_of_dense_layers() -> None:
    assert dense_share(SMALL) == 1
    assert dense_share(EXPERTS) == 0
    assert EXPERTS.moe is not None
    half = EXPERTS.model_copy(update={"moe": EXPERTS.moe.model_copy(update={"layers": 6})})
    assert dense_share(half) == 0.5
