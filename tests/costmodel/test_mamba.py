"""Hybrid stacks: Mamba-2 mixers, attention and MLPs, each alone in a layer, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from layoutopt.costmodel import activations, compute, mamba, sharding, shares, terms
from layoutopt.costmodel.counts import count, matmul_flops_per_token_forward, model_flops_per_token
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.model import Mamba
from layoutopt.costmodel.models import find_model
from layoutopt.costmodel.models.checks import check_model
from layoutopt.costmodel.models.records import record_model
from layoutopt.costmodel.rules import tensor_parallel_fits
from layoutopt.errors import ProfileError
from tests.costmodel.cases import EXPERTS, NETWORK, NETWORK_S, SMALL, job, one

MAMBA = Mamba(
    layers=6, attention_layers=2, heads=8, head_dim=16, state=16, groups=2, conv=4, chunk=32
)
HYBRID = SMALL.model_copy(update={"name": "hybrid", "norms_per_layer": 1, "mamba": MAMBA})
"""6 mixers of 128 inner elements, 2 attentions, 4 MLPs: 12 layers with one norm each."""
T = np.array([1000.0])


def test_counts_by_hand() -> None:
    """In-projection 2 x 128 + 2 x 2 x 16 + 8 = 328 wide, out-projection 128; convolution 4 taps and
    a bias of 128 + 64 channels; three numbers a head; gated norm 128: 30,296 a mixer."""
    counts = count(HYBRID)
    assert MAMBA.projected == 328
    assert counts.mamba_params == 64 * (328 + 128) + 192 * 5 + 3 * 8 + 128 == 30_296
    body = 6 * 30_296 + 2 * 12_288 + 4 * 49_152 + 12 * 64
    assert counts.total == counts.active == body + 64 + 2 * 65_536
    assert counts.shared_layer_params == pytest.approx(body / 12)


def test_flops_by_hand() -> None:
    """Scan: 2 x 32 (2 x 16 + 128) within a chunk, 4 x 16 x 128 through its state: 18,432."""
    scan = 6 * (2 * 32 * (2 * 16 + 128) + 4 * 16 * 128)
    weights = 6 * 64 * 456 + 2 * 12_288 + 4 * 49_152 + 65_536
    assert matmul_flops_per_token_forward(HYBRID) == 2 * weights
    attention = 2 * (2 * 64 * 8 * 16)
    assert model_flops_per_token(HYBRID, 128) == pytest.approx(
        6 * count(HYBRID).active + 3 * (attention + scan)
    )


def test_a_published_hybrid_has_as_many_parameters_as_it_says() -> None:
    """31.6 billion, 3.2 of them active beside the input table (NVIDIA 2025)."""
    counts = count(find_model("nemotron-3-nano-30b-a3b")[0])
    assert round(counts.total / 1e8) == 316
    assert round((counts.active - counts.embedding_params) / 1e8) == 32


def test_a_mixer_by_hand() -> None:
    """Two products, the scan at a tenth of 100 TFLOP/s (2.5 times backward), convolution 4 bytes of
    192 elements and gated norm 6 of 128 (twice backward); all of it over two tensor ranks."""
    rates = machine(job(HYBRID))
    for tp in (1, 2):
        into = compute.gemm(rates, T, np.array([64.0]), np.array([328.0 / tp]), 4)
        out = compute.gemm(rates, T, np.array([128.0 / tp]), np.array([64.0]), 4)
        scan = 1000 * 18_432 / tp / 10e12
        moved = 1000 * (4 * 192 + 6 * 128) / tp / 1e12
        got = mamba.mixer(job(HYBRID), rates, T, one(tp))
        assert got.forward[0] == pytest.approx(into.forward[0] + out.forward[0] + scan + moved)
        assert got.backward[0] == pytest.approx(
            into.backward[0] + out.backward[0] + 2.5 * scan + 2 * moved
        )


def test_an_average_layer_weighs_its_blocks() -> None:
    """Half mixers, a sixth attention, a third MLPs; one norm, one residual sum."""
    asked, rates = job(HYBRID), machine(job(HYBRID))
    tokens, sequence = np.array([128.0]), np.array([1.0])
    projections = compute.attention_projections(asked, rates, tokens, one(1))
    both = compute.linear_layers(asked, rates, tokens, one(1))
    core = compute.attention_core(asked, rates, sequence, one(1), one(1))
    want = (
        0.5 * mamba.mixer(asked, rates, tokens, one(1)).forward[0]
        + (projections.forward[0] + core.forward[0]) / 6
        + (both.forward[0] - projections.forward[0]) / 3
        + 128 * (4 * 64 + 6 * 64 + 4 * (64 + 32) / 6 + 6 * 256 / 3) / 1e12
    )
    got = terms.layer_terms(asked, one(1), one(1), one(1), one(1), one(0))
    assert got.compute.forward[0] == pytest.approx(want)


def test_a_lone_block_exchanges_half_of_what_a_whole_layer_does() -> None:
    """One pair of tensor traffic instead of two; experts without shared ones need none."""
    pair, whole = (
        terms.layer_terms(job(m), one(8), one(1), one(1), one(1), one(0)).tp_comm.total[0]
        for m in (HYBRID, SMALL)
    )
    assert pair == pytest.approx(whole / 2)
    assert EXPERTS.moe is not None
    moe = EXPERTS.moe.model_copy(update={"layers": 3})
    mixed = HYBRID.model_copy(update={"moe": moe})
    assert (shares.dense_share(mixed), shares.expert_share(mixed)) == (1 / 12, 3 / 12)
    got = terms.layer_terms(job(mixed), one(8), one(1), one(1), one(1), one(0)).tp_comm.total[0]
    assert got == pytest.approx(0.75 * pair)


def test_context_parallel_mixers_exchange_heads() -> None:
    """Two all-to-alls of 328 and 128 elements a token over two servers: half leaves."""
    tokens = np.array([64.0])
    got = mamba.exchange(job(HYBRID), machine(job(HYBRID)), tokens, one(8), one(2))
    wire = 2 * 64 * (328 + 128) / 8 / 2 / NETWORK
    assert got.forward[0] == got.backward[0] == pytest.approx(wire + 2 * NETWORK_S)


def test_saved_by_hand() -> None:
    """One norm 4 x 64; mixers 2 x 328 + 4 x 128; attention 4 (64 + 32) + 4 x 8; MLP 6 x 256."""
    got = activations.activation_kib(job(HYBRID), one(1), one(1), one(1), one(8), one(0))
    each = 4 * 64 + (656 + 512) / 2 + (384 + 32) / 6 + 6 * 256 / 3
    assert got[0] == int(np.ceil(8 * 128 * each / 1024))


def test_parameters_of_a_stage() -> None:
    no = np.asarray(False)
    got = sharding.stage_parameters(job(HYBRID), one(2), 12.0, no, no)
    layers = count(HYBRID).total - 64 - 2 * 65_536
    assert got[0] == pytest.approx((layers - 12 * 64) / 2 + 12 * 64)


def test_tp_divides_heads_and_groups_of_mixers() -> None:
    assert tensor_parallel_fits(job(HYBRID), 2)
    assert not tensor_parallel_fits(job(HYBRID), 4), "2 groups"


@pytest.mark.parametrize(
    ("field", "value"), [("layers", 13), ("attention_layers", 7), ("groups", 3), ("state", 0)]
)
def test_impossible_stacks_are_refused(field: str, value: int) -> None:
    wrong = HYBRID.model_copy(update={"mamba": MAMBA.model_copy(update={field: value})})
    with pytest.raises(ProfileError, match=f"mamba.{field}"):
        check_model(wrong, "a file")
    assert check_model(HYBRID, "a file") is HYBRID


def test_a_record_of_that_shape_is_read_as_a_hybrid() -> None:
    stated = {
        "layers": 52, "hidden": 2688, "heads": 32, "kv_heads": 2, "ffn": 1856, "gated_mlp": False,
        "experts": 128, "top_k": 6, "expert_ffn": 1856, "moe_layers": 23,
    }  # fmt: skip
    model, filled = record_model(stated)
    assert model is not None
    assert model.mamba is not None
    assert (model.mamba.layers, model.attention_layers, model.dense_layers) == (23, 6, 0)
    assert any(word.startswith("mamba 23 layers") for word in filled)


def test_an_estimate_of_a_hybrid_adds_up() -> None:
    got = estimate(job(HYBRID), Layout(tp=2, pp=2, dp=16, microbatches=4))
    assert sum(got.step.breakdown_s.values()) == pytest.approx(got.step.time_s)
    assert got.memory.fits
