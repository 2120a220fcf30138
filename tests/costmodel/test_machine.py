"""Rates of a machine: datasheet times share, power, precision; the GPUs of a domain in use."""

from __future__ import annotations

import pytest

from layoutopt.costmodel.efficiency import efficiencies, efficiency_of
from layoutopt.costmodel.machine import attention_kernel, fused_norm, machine, used_gpus
from layoutopt.costmodel.training import Precision
from layoutopt.hardware_profiles.schema import ARCHITECTURES
from tests.costmodel.cases import CLUSTER, IDEAL, NETWORK, NVLINK, job, soft


def test_every_architecture_has_efficiencies() -> None:
    assert set(efficiencies()) == set(ARCHITECTURES)
    for row in efficiencies().values():
        for name in ("gemm16", "gemm8", "gemm4", "memory", "scaleup", "scaleout"):
            assert 0 < getattr(row, name) <= 1, (row.architecture, name)


def test_an_unknown_architecture_is_taken_as_hopper() -> None:
    assert efficiency_of("abacus") == efficiency_of("hopper")


def test_rates_are_peaks_times_shares() -> None:
    """60% of 100 TFLOP/s, 50% of 1 TB/s, 80% of 100 GB/s, half of 10 GB/s; over a factor of 2 where
    data parallelism sends."""
    shares = {"gemm16": 0.6, "memory": 0.5, "scaleup": 0.8, "scaleout": 0.5}
    rates = machine(job(efficiency=IDEAL.model_copy(update=shares), software=soft(comm_factor=2.0)))
    assert rates.gemm_flops_per_s == rates.gemm16_flops_per_s == pytest.approx(60e12)
    assert rates.memory_bytes_per_s == 0.5e12
    assert [level.bytes_per_s for level in rates.levels] == pytest.approx(
        [0.8 * NVLINK, 0.5 * NETWORK]
    )
    assert [level.bytes_per_s for level in rates.shard_levels] == pytest.approx(
        [0.8 * NVLINK, 0.5 / 2 * NETWORK]
    )


@pytest.mark.parametrize(
    ("precision", "linear", "rest", "operand_bytes"),
    [
        ("bf16", 100e12, 100e12, 2),
        ("fp8", 200e12, 100e12, 1),
        ("mxfp8", 200e12, 100e12, 1),
        ("nvfp4", 200e12, 100e12, 0.5),  # no fp4 in the file: the fp8 peak
        ("fp32", 50e12, 50e12, 4),
    ],
)
def test_precision_sets_the_linear_layers_alone(
    precision: Precision, linear: float, rest: float, operand_bytes: float
) -> None:
    """Attention and the loss head stay in 16 bit, except in a run in fp32."""
    rates = machine(job(precision=precision))
    assert rates.gemm_flops_per_s == linear
    assert rates.gemm16_flops_per_s == rest
    assert rates.attention_forward_flops_per_s == rest
    assert rates.gemm_bytes == operand_bytes


def test_a_slower_framework_slows_kernels_and_no_link() -> None:
    plain, slow = machine(job()), machine(job(software=soft(compute_factor=2.0)))
    assert slow.gemm_flops_per_s == plain.gemm_flops_per_s / 2
    assert slow.memory_bytes_per_s == plain.memory_bytes_per_s / 2
    assert slow.levels == plain.levels


def test_rates_follow_the_power_limit_down_and_not_up() -> None:
    """350 W of 700 W at power 1/3: 0.7937 of the rate; 1,400 W: the rate itself. A part of a tenth
    of the peak needs a tenth of the watts: 70 W, and half of its rate's cube root at 35 W."""
    third = IDEAL.model_copy(update={"power_exponent": 1 / 3})

    def rate(watts: float | None, peak: float = 100e12) -> float:
        changes = {"watts": watts, "peak_flops_per_s": {"bf16": peak}}
        cluster = CLUSTER.model_copy(update={"gpu": CLUSTER.gpu.model_copy(update=changes)})
        return machine(job(cluster=cluster, efficiency=third)).gemm_flops_per_s

    assert rate(350) == pytest.approx(100e12 * 0.5 ** (1 / 3))
    assert rate(700) == rate(1400) == rate(None) == 100e12
    assert rate(350, 10e12) == rate(70, 10e12) == 10e12
    assert rate(35, 10e12) == pytest.approx(10e12 * 0.5 ** (1 / 3))


def test_an_attention_head_of_64_is_slower_by_the_half_width() -> None:
    """d / (d + 64), against 128 / 192: 8 wide 1/9 x 3/2 = 1/6."""
    narrow = IDEAL.model_copy(update={"head_dim_half": 64.0})
    rates = machine(job(efficiency=narrow))
    assert rates.attention_forward_flops_per_s == pytest.approx(100e12 / 6)


def test_the_training_overrules_the_framework() -> None:
    assert attention_kernel(job(software=soft(attention_kernel="flash1"))) == "flash1"
    assert attention_kernel(job(attention_kernel="unfused")) == "unfused"
    assert fused_norm(job())
    assert not fused_norm(job(fused_norm=False))
    assert fused_norm(job(software=soft(fused_norm=False), fused_norm=True))


@pytest.mark.parametrize(
    ("domain", "per_node", "gpus", "used"),
    [
        (8, 8, 64, 8),
        (8, 8, 6, 6),  # smaller than a server
        (8, 8, 12, 8),  # one server and a half
        (72, 4, 16_384, 64),  # 16 of 18 servers of a rack: 256 racks
        (72, 4, 144, 72),
        (72, 4, 72 * 5, 72),
        (72, 4, 100, 72),  # 25 servers: every even share would leave over half a rack unused
        (72, 4, 32, 32),
        (3072, 8, 16_384, 2048),  # a pod of 3,072
        (10**7, 8, 16_384, 16_384),
    ],
)
def test_domains_are_filled_alike(domain: int, per_node: int, gpus: int, used: int) -> None:
    assert used_gpus(domain, per_node, gpus) == used
