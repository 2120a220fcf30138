"""What a job's kernels and collectives reach on a cluster: datasheet peaks times efficiencies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from layoutopt.costmodel.collectives import LinkLevel
from layoutopt.costmodel.efficiency import Efficiency, efficiency_of
from layoutopt.costmodel.job import Job
from layoutopt.hardware_profiles.schema import Gpu


@dataclass(frozen=True)
class Machine:
    """Rates that a job meets, after efficiencies; per GPU."""

    gemm_flops_per_s: float
    """Linear layers, in the job's precision."""
    gemm16_flops_per_s: float
    """What stays in 16 bit (or fp32): the loss head, unfused attention."""
    gemm_bytes: float
    """Bytes an operand element of a linear layer takes."""
    attention_forward_flops_per_s: float
    attention_backward_flops_per_s: float
    memory_bytes_per_s: float
    levels: tuple[LinkLevel, ...]
    """Links as tensor, context, expert and pipeline traffic meets them."""
    shard_levels: tuple[LinkLevel, ...]
    """Links as data-parallel traffic meets them: networks slower by the software's comm_factor."""
    reach: Efficiency
    """The efficiencies behind the rates, with the costs of single kernels."""

    @property
    def gap_s(self) -> float:
        """Device seconds between two kernels."""
        return self.reach.gap_s


def machine(job: Job) -> Machine:
    """The rates of ``job``'s GPU and links; an unknown architecture is taken as hopper (A9).

    Derived once a job and kept beside it: every term asks for it.
    """
    if "_machine" not in job.__dict__:
        object.__setattr__(job, "_machine", _machine(job))
    derived: Machine = job.__dict__["_machine"]
    return derived


def _machine(job: Job) -> Machine:
    gpu, training = job.cluster.gpu, job.training
    reach = job.efficiency or efficiency_of(gpu.architecture)
    speed = power_share(gpu, reach) ** reach.power_exponent / job.software.compute_factor
    peak16 = gpu.peak(training.precision if training.precision in ("fp16", "fp32") else "bf16")
    share, width = {
        "nvfp4": (reach.gemm4, 0.5),
        "fp8": (reach.gemm8, 1.0),
        "mxfp8": (reach.gemm8, 1.0),
        "fp32": (reach.gemm16, 4.0),
    }.get(training.precision, (reach.gemm16, 2.0))
    attention = peak16 * speed * _attention_speed(job, reach)
    return Machine(
        gemm_flops_per_s=gpu.peak(training.precision) * share * speed,
        gemm16_flops_per_s=peak16 * reach.gemm16 * speed,
        gemm_bytes=width,
        attention_forward_flops_per_s=attention * reach.attention_forward,
        attention_backward_flops_per_s=attention * reach.attention_backward,
        memory_bytes_per_s=gpu.memory_bytes_per_s * reach.memory / job.software.compute_factor,
        levels=_levels(job, reach, 1.0),
        shard_levels=_levels(job, reach, job.software.comm_factor),
        reach=reach,
    )


def power_share(gpu: Gpu, reach: Efficiency) -> float:
    """Watts that the part has for each FLOP/s of its 16-bit peak, over those of the architecture's
    measured part; at most 1. An H20 has 57% of an H100's watts for 15% of its peak: no limit."""
    if gpu.watts is None:
        return 1.0
    peak = max(rate for name, rate in gpu.peak_flops_per_s.items() if name in ("bf16", "fp16"))
    return min(1.0, gpu.watts / reach.watts * reach.watts_flops_per_s / peak)


def _attention_speed(job: Job, reach: Efficiency) -> float:
    """Rate of the job's attention kernel over FlashAttention 2 at head width 128."""
    kernels = {"flash1": reach.flash1_speed, "flash3": reach.flash3_speed}
    mla = job.model.mla
    width = job.model.head_dim if mla is None else mla.v_head_dim
    by_width = width / (width + reach.head_dim_half) * (128 + reach.head_dim_half) / 128
    return kernels.get(attention_kernel(job), 1.0) * by_width


def attention_kernel(job: Job) -> str:
    """The job's attention kernel: the training's if it says, else the software profile's."""
    return job.training.attention_kernel or job.software.attention_kernel


def fused_norm(job: Job) -> bool:
    """Whether norms are one kernel: the training's word if it says, else the software profile's."""
    said = job.training.fused_norm
    return job.software.fused_norm if said is None else said


def dispatcher(job: Job) -> str:
    """How tokens reach their experts: the training's word if it says, else the profile's."""
    return job.training.dispatcher or job.software.dispatcher


def cuda_graphs(job: Job) -> str:
    """What is launched as a graph: the training's word if it says, else the software profile's."""
    return job.training.cuda_graphs or job.software.cuda_graphs


def expert_overlap(job: Job) -> float:
    """Share of dispatch and combine that is hidden behind another microbatch's compute."""
    said = job.training.expert_overlap
    beside = job.software.expert_overlap if said is None else said
    return job.software.overlap_ep if beside else 0.0


def _levels(job: Job, reach: Efficiency, slower: float) -> tuple[LinkLevel, ...]:
    cluster = job.cluster
    levels = []
    for number, level in enumerate(cluster.levels):
        size = used_gpus(level.gpus, cluster.gpus_per_node, job.gpus)
        share = reach.scaleout / slower if number else reach.scaleup
        setup_s = 0.0 if number else reach.collective_s
        rate = level.usable_bytes_per_s * share
        levels.append(LinkLevel(size, rate, level.latency_s, setup_s=setup_s))
    return tuple(levels)


@lru_cache(maxsize=1024)
def used_gpus(domain_gpus: int, gpus_per_node: int, gpus: int) -> int:
    """GPUs of one full domain of a level that a job of ``gpus`` stands on (A14).

    All of a server. Of a larger domain, whole servers, as many as let the job fill every domain
    alike: 64 of an NVL72's 72 for 16,384 GPUs; all of it where that would leave half unused.
    """
    if domain_gpus >= gpus:
        return gpus
    if domain_gpus <= gpus_per_node:
        return domain_gpus
    for used in range(domain_gpus - domain_gpus % gpus_per_node, domain_gpus // 2, -gpus_per_node):
        if gpus % used == 0:
            return used
    return domain_gpus
