"""Figures of published runs and of the back of an envelope, each with its arithmetic.

The numbers on the right are counted by hand from the papers named in the docstrings; what they are
compared with are the functions that price every plan. docs/worked-example.md tells them in order.
"""

from __future__ import annotations

import numpy as np
import pytest

from layoutopt.costmodel.checkpoint import bytes_per_parameter, checkpoint_cost
from layoutopt.costmodel.counts import count, flops_6nd_per_token
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.memory import state_kib
from layoutopt.costmodel.models.catalog import load_model
from layoutopt.costmodel.models.sizes import find_model
from layoutopt.costmodel.pipeline import bubble_fraction, bubble_of_ideal
from layoutopt.costmodel.reliability import expected_wall_s, first_order_loss, job_mtbf_s
from layoutopt.costmodel.software import Software
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.catalog import load_gpu
from layoutopt.hardware_profiles.schema import Cluster, Level, Storage
from layoutopt.inputs.defaults import default_tokens
from layoutopt.units import DAY, GB, KIB, TERA

MIXED_ADAM = Software(
    name="mixed-adam",
    framework="generic",
    describes="16-bit weights and gradients, fp32 master copy and two moments",
    gradient_bytes=2,
)
H100_DENSE = 989.5 * TERA
LLAMA3_FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)


def _job(model: str, gpus: int, write_bytes_per_s: float = 273 * GB) -> Job:
    cluster = Cluster(
        name="seed",
        gpu=load_gpu("h100-sxm-80gb"),
        gpus_per_node=8,
        levels=(Level(name="all", gpus=gpus, bytes_per_s_per_gpu_one_way=50e9, latency_s=5e-6),),
        storage=Storage(write_bytes_per_s=write_bytes_per_s, write_bytes_per_s_per_node=2 * GB),
        failures_per_gpu_hour=LLAMA3_FAILURES_PER_GPU_HOUR,
    )
    training = Training(seq_len=2048, global_batch=3072, tokens=450 * 10**9)
    return Job(find_model(model)[0], cluster, training, MIXED_ADAM, gpus)


def _days(
    parameters: float, tokens: float, gpus: int, flops_per_s: float, factor: int = 6
) -> float:
    return factor * parameters * tokens / (gpus * flops_per_s) / DAY


# Memory (Rajbhandari et al. 2019, section 3.1 and figure 1)


def test_state_is_sixteen_bytes_a_parameter() -> None:
    """2 for the weight, 2 for its gradient, 4 + 4 + 4 for master copy, momentum, variance."""
    assert MIXED_ADAM.weight_bytes + MIXED_ADAM.gradient_bytes == 2 + 2
    assert MIXED_ADAM.optimizer_bytes == 4 + 4 + 4
    each = MIXED_ADAM.weight_bytes + MIXED_ADAM.gradient_bytes + MIXED_ADAM.optimizer_bytes
    assert each * 10 * 10**9 == 160 * GB, "10B: twice an 80-GB GPU"
    assert each * 10**12 == 16_000 * GB, "1T: 16 TB"
    assert each * 10**12 / (80 * GB) == 200, "GPUs of 80 GB for the state of 1T alone"


def test_ten_billion_on_64_gpus_is_two_and_a_half_gigabytes_each() -> None:
    """160 GB / 64 = 2.5 GB; the catalogue's 10B has 10.03 B parameters: 2.507 GB."""
    job = _job("10B", gpus=64)
    one, yes = np.ones(1, dtype=np.int64), np.ones(1, dtype=np.bool_)
    state = state_kib(job, one, one, 3 * one, job.model.layers * one, yes, yes)
    sharded = int((state.weights + state.gradients + state.optimizer)[0]) * KIB
    assert sharded == pytest.approx(16 * count(job.model).total / 64, rel=1e-4)
    assert sharded == pytest.approx(2.5 * GB, rel=0.01)


# Pipeline (Huang et al. 2018; Narayanan et al. 2021, section 2.2)


@pytest.mark.parametrize(
    ("microbatches", "of_ideal", "of_step"),
    [(16, 0.938, 0.484), (128, 0.117, 0.105)],  # 15/16 and 15/31; 15/128 and 15/143
)
def test_bubble_of_sixteen_stages(microbatches: int, of_ideal: float, of_step: float) -> None:
    assert bubble_of_ideal(16, microbatches) == 15 / microbatches
    assert bubble_of_ideal(16, microbatches) == pytest.approx(of_ideal, abs=5e-4)
    assert bubble_fraction(16, microbatches) == 15 / (microbatches + 15)
    assert bubble_fraction(16, microbatches) == pytest.approx(of_step, abs=5e-4)


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    assert bubble_of_ideal(16, 128, chunks=4) == bubble_of_ideal(16, 128) / 4


# Arithmetic and time (Kaplan et al. 2020; Llama Team 2024; Narayanan et al. 2021)


def test_llama_3_405b_takes_3_79e25_flops() -> None:
    """6 x 405e9 x 15.6e12 = 3.791e25; the paper says 3.8e25. 405.85 B parameters: 3.799e25."""
    rounded = 6 * 405e9 * 15.6e12
    assert rounded == pytest.approx(3.79e25, rel=1e-3)
    exact = flops_6nd_per_token(load_model("llama-3.1-405b")) * 15.6e12
    assert exact == pytest.approx(3.79e25, rel=5e-3)


def test_dense_peak_is_half_of_the_sparse_one() -> None:
    """1,979 TFLOP/s with 2:4 sparsity / 2 = 989.5."""
    assert load_gpu("h100-sxm-80gb").peak("bf16") == pytest.approx(1979 / 2 * TERA)


def test_days_of_the_two_examples() -> None:
    """6e22 / (256 x 395.8e12) = 592,155 s; 9e25 / (16,384 x 395.8e12) = 13,878,636 s."""
    assert _days(10e9, 1e12, 256, 0.40 * H100_DENSE) == pytest.approx(6.85, abs=0.01)
    assert _days(1e12, 15e12, 16_384, 0.40 * H100_DENSE) == pytest.approx(160.6, abs=0.1)


def test_megatrons_trillion_is_84_days_by_8nd_and_63_by_6nd() -> None:
    """Full recompute runs the forward pass twice: 8 FLOPs a parameter and token, not 6.

    8 x 1.008e12 x 450e9 / (3,072 x 163e12) = 7.247e6 s. 163 / 312 = 52% counts the recompute
    (HFU); 6/8 of it, 39%, is what the model itself used (MFU).
    """
    parameters = count(load_model("megatron-1t")).total
    assert parameters == pytest.approx(1_008e9, rel=1e-3)
    assert Layout(tp=8, pp=64, dp=6).gpus == 3_072
    assert _days(parameters, 450e9, 3_072, 163 * TERA, factor=8) == pytest.approx(84, abs=0.5)
    assert _days(parameters, 450e9, 3_072, 163 * TERA, factor=6) == pytest.approx(63, abs=0.5)
    hfu = 163 * TERA / load_gpu("a100-sxm-80gb").peak("bf16")
    assert hfu == pytest.approx(0.52, abs=0.005)
    assert hfu * 6 / 8 == pytest.approx(0.39, abs=0.005)


def test_compute_optimal_is_twenty_tokens_a_parameter() -> None:
    """Hoffmann et al. 2022, table 3: 67 B parameters, 1.5 T tokens (22); 10 B, 205.1 B (20.5)."""
    model = load_model("megatron-1t")
    tokens, reason = default_tokens(model)
    assert tokens == 20 * count(model).total
    assert "20 tokens" in reason
    assert "Hoffmann 2022" in reason


# Checkpoints (Narayanan et al. 2021, section 5.10)


def test_a_trillion_parameters_save_13_8_terabytes_in_50_seconds() -> None:
    """14 x 1.008e12 = 14.1 TB, within 3% of 13.8; 13.8e12 / 273e9 = 50.5 s."""
    size, write, stall = checkpoint_cost(_job("1T", gpus=3_072), tp=8, pp=64, zero_stage=1)
    assert bytes_per_parameter(MIXED_ADAM.weight_bytes) == 14
    assert size == pytest.approx(13.8e12, rel=0.03)
    assert float(write[0]) == pytest.approx(13.8e12 / 273e9, rel=0.03)
    assert float(write[0]) == pytest.approx(50, rel=0.05)
    assert float(stall[0]) == float(write[0]), "synchronous"


# Failures (Llama Team 2024, section 3.3.4; Young 1974; Daly 2006)


def test_419_stops_in_54_days_are_one_every_3_1_hours() -> None:
    """54 x 24 / 419 = 3.093 h; 419 / 54 = 7.76 a day."""
    mtbf = job_mtbf_s(LLAMA3_FAILURES_PER_GPU_HOUR, 16_384)
    assert mtbf / 3600 == pytest.approx(54 * 24 / 419)
    assert mtbf / 3600 == pytest.approx(3.1, abs=0.01)
    assert DAY / mtbf == pytest.approx(7.76, abs=0.005)


@pytest.mark.parametrize(
    ("minutes", "first_order", "extra", "share"),
    [(30, 8.1, 8.54, 7.86), (120, 32.3, 40.6, 28.9), (10, 2.7, 2.74, 2.67)],
)
def test_what_an_interval_loses_at_llama_3s_rate(
    minutes: int, first_order: float, extra: float, share: float
) -> None:
    """Repeated work alone, in per cent: saves and restarts cost nothing here.

    First order, 30 minutes: 7.76 stops a day x 15 minutes / 1,440. Exponential model: with
    x = interval / M the extra on productive time is (e^x - 1)/x - 1, the share of wall time
    1 - x/(e^x - 1); x = 0.16165 gives 0.17545/0.16165 - 1 = 8.54% and 7.86%.
    """
    mtbf = job_mtbf_s(LLAMA3_FAILURES_PER_GPU_HOUR, 16_384)
    interval = 60 * minutes
    assert 100 * float(first_order_loss(interval, mtbf)) == pytest.approx(first_order, abs=0.05)
    wall = float(expected_wall_s(1.0, interval, save_s=0.0, mtbf_s=mtbf, restart_s=0.0))
    assert 100 * (wall - 1) == pytest.approx(extra, rel=2e-3)
    assert 100 * (1 - 1 / wall) == pytest.approx(share, rel=2e-3)
