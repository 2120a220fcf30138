"""Low-rank adapters by hand, on the round machine; and beside full fine-tuning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.costmodel import adapters, compute, gradient_sync, memory, sharding, terms
from layoutopt.costmodel.activations import activation_kib
from layoutopt.costmodel.axes import FULL, NONE
from layoutopt.costmodel.checkpoint import checkpoint_bytes, restart_time_s
from layoutopt.costmodel.compute import Seconds
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.estimate import estimate, needed_flops_per_token
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.linears import Lora, adapted, target_names
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.models import resolve_model
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.software import software
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.catalog import load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster
from tests.costmodel.cases import EXPERTS, LATENT, SMALL, flag, job, one, soft

RANK = 4
NO, YES = flag(False), flag(True)
MERGED = soft(merged_adapters=True)


def tuned(model: Model = SMALL, targets: str = "all", rank: int = RANK, **changes: Any) -> Job:
    """A job that trains adapters of these layers."""
    names = target_names(model) if targets == "all" else tuple(targets.split(","))
    lora = Lora(rank=rank, targets=names)
    return job(model, finetune="lora", lora=lora, **changes)


def only(seconds: Seconds) -> tuple[float, float]:
    return float(np.ravel(seconds.forward)[0]), float(np.ravel(seconds.backward)[0])


def test_parameters_of_adapters() -> None:
    """Two matrices each: rank x (64 + 64) beside q, rank x (64 + 32) beside v."""
    assert adapters.adapter_parameters(tuned(targets="q_proj,v_proj")) == 12 * 4 * (128 + 96)
    each = 128 + 96 + 96 + 128 + 3 * (64 + 256)
    assert adapters.adapter_parameters(tuned()) == 12 * 4 * each


def test_one_adapter_beside_merged_layers() -> None:
    """q, k, v make 64 + 32 + 32; gate and up 512; where one of three is no target, none merge."""
    each = (64 + 128) + 128 + (64 + 512) + (256 + 64)
    assert adapters.adapter_parameters(tuned(software=MERGED)) == 12 * 4 * each
    some = adapted(SMALL, Lora(rank=4, targets=("q_proj", "v_proj")), True)
    assert [layer.name for layer in some] == ["q_proj", "v_proj"]


def test_latent_attention_has_five_layers_to_adapt() -> None:
    """h -> 32 -> 8 x 12; h -> 16 + 4; 16 -> 8 x (8 + 8); 8 x 8 -> h."""
    names = target_names(LATENT)[:5]
    assert names == ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    asked = tuned(LATENT, ",".join(names))
    each = (64 + 32) + (32 + 96) + (64 + 20) + (16 + 128) + (64 + 64)
    assert adapters.adapter_parameters(asked) == 12 * 4 * each
    # tp cuts none of the down-projections, which every rank has whole.
    cut = (32 + 96) + (16 + 128) + (64 + 64)
    held = adapters.replicated_adapters(asked, one(2), one(3))[0]
    assert held == 3 * 4 * (cut / 2 + 96 + 84)


def test_every_routed_expert_has_its_own_adapters() -> None:
    """8 experts of 12 layers, three products of 64 x 128 each; a token meets 2 of them."""
    asked = tuned(EXPERTS, "gate_proj,up_proj,down_proj")
    each = 4 * 3 * (64 + 128)
    assert adapters.adapter_parameters(asked) == 12 * 8 * each
    assert adapters.active_adapter_parameters(asked) == 12 * 2 * each
    assert adapters.expert_adapters(asked, one(6), one(4), 2)[0] == 6 * 8 * each / 8
    assert adapters.replicated_adapters(asked, one(1), one(6))[0] == 0


def test_state_is_that_of_what_is_trained() -> None:
    """2 bytes for frozen weights and adapters; gradients in 4 and state in 12 for adapters alone,
    the latter over 32 ranks."""
    asked = tuned(targets="q_proj,v_proj")
    state = memory.state_kib(asked, one(2), one(1), one(1), one(12), YES, YES)
    frozen = sharding.stage_parameters(asked, one(2), one(12), YES, YES)[0]
    trained = 12 * 4 * (128 + 96) / 2
    assert state.weights[0] == -(-2 * frozen // 1024) + -(-2 * trained // 1024)
    assert state.gradients[0] == -(-4 * trained // 1024)
    assert state.optimizer[0] == -(-12 * trained / 32 // 1024)


def test_zero_3_shards_frozen_weights_too() -> None:
    asked = tuned(targets="q_proj,v_proj", model=SMALL.model_copy(update={"vocab": 2**18}))
    whole = memory.state_kib(asked, one(1), one(1), one(2), one(12), YES, YES)
    cut = memory.state_kib(asked, one(1), one(1), one(3), one(12), YES, YES)
    assert cut.weights[0] < whole.weights[0] / 32


def test_fp32_weights_are_kept_in_16_bit_where_frozen() -> None:
    software = soft(weight_bytes=4)
    asked = tuned(targets="q_proj", software=software)
    state = memory.state_kib(asked, one(1), one(1), one(0), one(12), NO, NO)
    frozen = sharding.stage_parameters(asked, one(1), one(12), NO, NO)[0]
    trained = 12 * 4 * 128
    assert state.weights[0] == -(-2 * frozen // 1024) + -(-4 * trained // 1024)


def test_a_frozen_product_has_one_product_backward() -> None:
    rates = machine(job())
    rows, inner, columns = np.array([1000.0]), np.array([64.0]), np.array([256.0])
    forward, backward = only(compute.gemm(rates, rows, inner, columns, None))
    assert forward == backward
    assert forward == only(compute.gemm(rates, rows, inner, columns, 4.0))[0]


def test_a_frozen_head_and_table() -> None:
    """The head's input gradient is one product; the table needs nothing."""
    full, frozen = job(), tuned()
    both = [
        only(terms.head_seconds(asked, one(1), one(1), one(1)).compute) for asked in (full, frozen)
    ]
    assert both[0][0] == both[1][0] == both[1][1]
    assert both[0][1] > both[1][1]
    table = terms.embedding_seconds(frozen, one(2), one(1), one(1))
    assert only(table.tp_comm)[1] == 0
    forward, backward = only(table.compute)
    assert (forward, backward) == (6 * 128 * 64 / 1e12, 0)


def test_an_adapter_by_hand() -> None:
    """q: (128 x 64) (64 x 4) and (128 x 4) (4 x 64) at 100 TFLOP/s and 1 TB/s; scale and sum move
    10 bytes an output, backward 4 an output and 6 an input."""
    asked = tuned(targets="q_proj")
    tokens = np.array([128.0])
    found = adapters.adapter_seconds(asked, machine(asked), tokens, one(1), one(1), one(1))
    once = 2 * 128 * 64 * 4 / 100e12 + 2 * (128 * 64 + 64 * 4 + 128 * 4) / 1e12
    sums = 2 * 4 * 64 * 4 / 1e12
    forward = 2 * once + 10 * 128 * 64 / 1e12
    backward = 2 * (2 * once + sums) + (4 + 6) * 128 * 64 / 1e12
    assert only(found) == pytest.approx((forward, backward))


def test_tensor_ranks_cut_an_adapter() -> None:
    """Rank and output beside a layer cut by columns; input and output beside one cut by rows."""
    for name, inner, first in (("up_proj", 64, (64, 2)), ("down_proj", 256, (128, 4))):
        asked = tuned(targets=name)
        rates, tokens = machine(asked), np.array([128.0])
        found = adapters.adapter_seconds(asked, rates, tokens, one(2), one(1), one(1))
        columns = 256 if name == "up_proj" else 64
        a = compute.gemm(rates, tokens, np.array(float(first[0])), np.array(float(first[1])), 4.0)
        b = compute.gemm(rates, tokens, np.array(4.0), np.array(columns / 2), 4.0)
        own = inner / (2 if name == "down_proj" else 1)
        forward = 10 * 128 * columns / 2 / 1e12
        backward = (4 * columns / 2 + 6 * own) * 128 / 1e12
        rest = Seconds(np.array([forward]), np.array([backward]))
        assert only(found) == pytest.approx(only(a + b + rest)), name


def test_traffic_of_adapters_by_hand() -> None:
    """Two ranks at 100 GB/s, 1 us: half of 2 x 128 x 4 bytes gathered and its gradient scattered
    beside columns; beside rows that sum twice and 2 x 128 x 64 gathered either way."""
    low, wide = 1e-6 + 2 * 128 * 4 / 2 / 100e9, 1e-6 + 2 * 128 * 64 / 2 / 100e9
    for name, forward, backward in (
        ("up_proj", low, low),
        ("down_proj", 2 * low + wide, wide),
    ):
        asked = tuned(targets=name)
        args = (asked, machine(asked), np.array([128.0]), one(2))
        assert only(adapters.adapter_traffic(*args, one(NONE))) == pytest.approx(
            (forward, backward)
        )
        again = only(adapters.adapter_traffic(*args, one(FULL)))
        assert again == pytest.approx((forward, forward + backward))


def kept(asked: Job, tp: int = 1) -> float:
    """Bytes a token and layer, with rounding to KiB."""
    axes = (one(tp), one(1), one(1), one(1024), one(NONE))
    return float(activation_kib(asked, *axes)[0]) * 1024 / (1024 * 128)


def test_inputs_are_kept_for_adapters_alone() -> None:
    """Beside q alone the MLP's input (2 x 64), its activation's output (2 x 256) and nothing else
    are gone; the adapter adds 2 x rank."""
    assert kept(tuned(targets="q_proj")) == kept(job()) - 2 * 64 - 2 * 256 + 2 * 4
    assert kept(tuned(targets="down_proj")) == kept(job()) - 2 * 2 * 64 + 2 * 4
    assert kept(tuned()) == kept(job()) + 7 * 2 * 4


def test_what_an_adapter_reads_is_kept_as_it_was_gathered() -> None:
    """With sequence parallelism on two ranks: the norm's output whole instead of half of it, and
    the products of both inputs, x A, whole."""
    full, some = kept(job(), 2), kept(tuned(targets="q_proj,up_proj,down_proj"), 2)
    assert some == full + 2 * 2 * 64 / 2 + 3 * 2 * 4


def test_eight_bit_inputs_are_not_kept() -> None:
    """In fp8 a trained layer keeps one byte of attention's output again; frozen layers none."""
    full, frozen = job(precision="fp8"), tuned(targets="down_proj", precision="fp8")
    # Gone: 1 byte of both norms' outputs and of attention's; the activation's output is 2, not 1.
    assert kept(frozen) == kept(full) - 2 * 64 - 64 + 256 + 2 * 4


def test_a_checkpoint_holds_adapters_and_a_restart_loads_the_model() -> None:
    asked = tuned(targets="q_proj")
    assert checkpoint_bytes(asked) == 14 * 12 * 4 * 128
    extra = restart_time_s(asked, 0) - restart_time_s(job(), 0)
    assert extra == pytest.approx(2 * count(SMALL).total / 100e9)


def test_model_flops_without_weight_gradients() -> None:
    """4 an active parameter and 6 an adapter's."""
    full, frozen = job(), tuned(targets="q_proj")
    saved = needed_flops_per_token(full) - needed_flops_per_token(frozen)
    assert saved == 2 * count(SMALL).active - 6 * 12 * 4 * 128


def test_gradients_of_adapters_alone_are_summed() -> None:
    """ZeRO-1: 4 bytes of 10,752 adapter parameters scattered over 64 ranks, 2 gathered."""
    asked = tuned(targets="q_proj,v_proj")
    found = gradient_sync.sync_seconds(asked, one(1), one(1), one(1), one(12))
    whole = gradient_sync.sync_seconds(job(), one(1), one(1), one(1), one(12))
    trained, everything = 12 * 4 * (128 + 96), count(SMALL).total
    # 63 hops, each of the same latency: what is left follows the bytes.
    byte = (whole.reduce - found.reduce)[0] / (4 * (everything - trained))
    assert (whole.gather - found.gather)[0] == pytest.approx(2 * (everything - trained) * byte)
    step = gradient_sync.optimizer_seconds(asked, one(1), one(1), one(0), one(12))
    all_of_it = gradient_sync.optimizer_seconds(job(), one(1), one(1), one(0), one(12))
    assert step[0] / all_of_it[0] == pytest.approx(trained / everything)


def test_zero_3_gathers_frozen_layers_and_scatters_adapters() -> None:
    asked = tuned(targets="q_proj,v_proj")
    wire = sharding.gather_seconds(asked, one(1), one(1), one(3))
    full = sharding.gather_seconds(job(), one(1), one(1), one(3))
    assert wire.forward[0] > full.forward[0]
    assert wire.backward[0] - wire.forward[0] < full.backward[0] - full.forward[0]


def test_tensor_ranks_divide_the_rank() -> None:
    layout = Layout(tp=8, dp=8, microbatches=8)
    assert [rule.rule for rule in broken_rules(tuned(rank=4, model=WIDE), layout)] == [
        "tensor_divides_heads"
    ]
    assert broken_rules(tuned(rank=8, model=WIDE), layout) == []


WIDE = SMALL.model_copy(update={"kv_heads": 8})


def test_zero_bubbles_have_nothing_to_fill_them() -> None:
    layout = Layout(pp=4, dp=16, microbatches=4, schedule="zb-h1")
    assert broken_rules(job(), layout) == []
    assert [rule.rule for rule in broken_rules(tuned(), layout)] == ["adapters_leave_bubbles"]


LLAMA = resolve_model("llama-3.1-8b")[0]
H100 = default_cluster(load_gpu("h100-sxm-80gb"))


def real(finetune: str, framework: str, targets: tuple[str, ...], rank: int) -> Job:
    lora = Lora(rank=rank, targets=targets) if finetune == "lora" else None
    asked = Training(seq_len=4096, global_batch=64, tokens=10**9, finetune="full", lora=lora)
    return Job(LLAMA, H100, asked, software(framework), 64)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    framework=st.sampled_from(("generic", "megatron-bridge", "llm-foundry", "deepspeed")),
    targets=st.sampled_from((("q_proj", "k_proj", "v_proj"), ("q_proj",), ("v_proj", "o_proj"))),
    rank=st.sampled_from((8, 16)),
    tp=st.sampled_from((1, 2, 4)),
    pp=st.sampled_from((1, 2, 4)),
    micro_batch=st.sampled_from((1, 2)),
    zero_stage=st.sampled_from((0, 1, 2, 3)),
    recompute=st.sampled_from(("none", "selective", "full")),
)
def test_adapters_of_attention_take_less_time_and_memory_than_all_weights(
    framework: str,
    targets: tuple[str, ...],
    rank: int,
    tp: int,
    pp: int,
    micro_batch: int,
    zero_stage: int,
    recompute: Any,
) -> None:
    """Beside every layer, small products and sums can take what weight gradients would have."""
    dp = 64 // (tp * pp)
    layout = Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        micro_batch=micro_batch,
        microbatches=64 // dp // micro_batch or 1,
        zero_stage=zero_stage,
        recompute=recompute,
    )
    full = estimate(real("full", framework, targets, rank), layout)
    some = estimate(real("lora", framework, targets, rank), layout)
    assert some.step.time_s < full.step.time_s
    assert some.memory.worst.allocated < full.memory.worst.allocated
    assert some.step.mfu < full.step.mfu_6nd * full.step.time_s / some.step.time_s


def test_adapters_of_vanishing_rank_cost_forward_and_input_gradients() -> None:
    """Two thirds of the products: what is left when an adapter weighs next to nothing."""
    layout = Layout(dp=64, microbatches=1)
    full = real("full", "generic", (), 1)
    some = estimate(real("lora", "generic", ("v_proj",), 1), layout).step.breakdown_s["compute"]
    rates, tokens = machine(full), np.array([4096.0])
    products = compute.linear_layers(full, rates, tokens, one(1))
    head = compute.loss_head(full, rates, tokens, one(1))
    gradients = 32 * (products.backward - products.forward) + head.backward - head.forward
    whole = estimate(full, layout).step.breakdown_s["compute"]
    assert some == pytest.approx(whole - float(gradients[0]), rel=0.03)
