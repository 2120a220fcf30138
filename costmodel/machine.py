"""What a job's kernels and collectives reach on a cluster: datasheet peaks times efficiencies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from layoutopt.costmodel.collectives import LinkLevel
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.model import Frozen


class Efficiency(Frozen):
    """Shares of the datasheet's peaks that an architecture's kernels reach."""

    architecture: str
    gemm16: float
    """Large bf16/fp16 matrix products, share of the dense 16-bit peak."""
    gemm8: float
    gemm4: float
    attention_forward: float
    """FlashAttention 2, causal FLOPs, share of the 16-bit peak."""
    attention_backward: float
    memory: float
    """Streaming kernels, share of memory bandwidth."""
    scaleup: float
    """Bus bandwidth of large collectives, share of the scale-up link's one-way rate."""
    scaleout: float
    """The same for network adapters."""
    launch_s: float
    """Host seconds to launch one kernel."""
    gap_s: float
    """Device seconds between two kernels (drain, fill, tail)."""


@dataclass(frozen=True)
class Machine:
    """Rates that a job meets, after efficiencies; per GPU."""

    gemm_flops_per_s: float
    """Linear layers, in the job's precision."""
    gemm16_flops_per_s: float
    """What stays in 16 bit: the loss head, unfused attention."""
    gemm_bytes: float
    """Bytes an operand element of a linear layer takes."""
    attention_forward_flops_per_s: float
    attention_backward_flops_per_s: float
    memory_bytes_per_s: float
    launch_s: float
    gap_s: float
    levels: tuple[LinkLevel, ...]


KERNEL_SPEED = {"flash3": 1.15, "flash2": 1.0, "flash1": 0.62}
"""Speed of an attention kernel over FlashAttention 2: Dao 2023 (arXiv 2307.08691), figures 4 and 5
(1.6 to 2 times FlashAttention 1); Shah 2024 (2407.08608) on Hopper, where cuDNN is near 3."""


@lru_cache(maxsize=1)
def efficiencies() -> dict[str, Efficiency]:
    """The shipped efficiencies by architecture."""
    text = (
        resources.files("layoutopt.costmodel").joinpath("data/efficiency.yaml").read_text("utf-8")
    )
    rows: list[dict[str, Any]] = yaml.load(
        text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return {row["architecture"]: Efficiency(**row) for row in rows}


def machine(job: Job) -> Machine:
    """The rates of ``job``'s GPU and links; an unknown architecture is taken as hopper (A9)."""
    gpu, software, training = job.cluster.gpu, job.software, job.training
    table = efficiencies()
    reach = table.get(gpu.architecture, table["hopper"])
    speed = 1 / software.compute_factor
    peak16 = gpu.peak("bf16") if training.precision != "fp16" else gpu.peak("fp16")
    share, width = {
        "nvfp4": (reach.gemm4, 0.5),
        "fp8": (reach.gemm8, 1.0),
        "mxfp8": (reach.gemm8, 1.0),
        "fp32": (reach.gemm16, 4.0),
    }.get(training.precision, (reach.gemm16, 2.0))
    kernel = KERNEL_SPEED.get(attention_kernel(job), 1.0)
    return Machine(
        gemm_flops_per_s=gpu.peak(training.precision) * share * speed,
        gemm16_flops_per_s=peak16 * reach.gemm16 * speed,
        gemm_bytes=width,
        attention_forward_flops_per_s=peak16 * reach.attention_forward * kernel * speed,
        attention_backward_flops_per_s=peak16 * reach.attention_backward * kernel * speed,
        memory_bytes_per_s=gpu.memory_bytes_per_s * reach.memory * speed,
        launch_s=reach.launch_s,
        gap_s=reach.gap_s,
        levels=_levels(job, reach),
    )


def attention_kernel(job: Job) -> str:
    """The job's attention kernel: the training's if it says, else the software profile's."""
    return job.training.attention_kernel or job.software.attention_kernel


def fused_norm(job: Job) -> bool:
    """Whether norms are one kernel: the training's word if it says, else the software profile's."""
    said = job.training.fused_norm
    return job.software.fused_norm if said is None else said


def _levels(job: Job, reach: Efficiency) -> tuple[LinkLevel, ...]:
    inner = job.cluster.levels[0]
    levels = [
        LinkLevel(inner.gpus, inner.usable_bytes_per_s * reach.scaleup, inner.latency_s),
    ]
    for level in job.cluster.levels[1:]:
        rate = level.usable_bytes_per_s * reach.scaleout / job.software.comm_factor
        levels.append(LinkLevel(level.gpus, rate, level.latency_s))
    return tuple(levels)
