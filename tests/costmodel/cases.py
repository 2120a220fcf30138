"""A machine, a framework and models with round numbers: nothing in them is fitted."""

from __future__ import annotations

from typing import Any

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints, ints
from layoutopt.costmodel.efficiency import Efficiency, efficiency_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.model import Mla, Model, Moe
from layoutopt.costmodel.software import Software
from layoutopt.costmodel.training import Precision, Training
from layoutopt.hardware_profiles.schema import Cluster, Gpu, Level, Storage

IDEAL: Efficiency = efficiency_of("hopper").model_copy(
    update={
        **dict.fromkeys(("gemm16", "gemm8", "gemm4", "memory", "scaleup", "scaleout"), 1.0),
        **dict.fromkeys(
            ("attention_forward", "attention_backward", "expert_rate", "misaligned_rate"), 1.0
        ),
        **dict.fromkeys(("flash1_speed", "flash3_speed"), 1.0),
        **dict.fromkeys(("launch_s", "gap_s", "jitter", "collective_s", "router_s"), 0.0),
        **dict.fromkeys(("context_half", "expert_launches", "grouped_launches"), 0.0),
        "layer_launches": 20.0,
        "graphed_share": 0.5,
        "scan_rate": 0.1,
        "optimizer_s": 0.0,
        "biased_expert_bytes": 10.0,
        **dict.fromkeys(("head_dim_half", "cast_bytes", "power_exponent"), 0.0),
        "norm_bytes": 4.0,
        "entropy_bytes": 48.0,
        "unfused_norm_bytes": 28.0,
        "fused_score_bytes": 13.0,
        "unfused_score_bytes": 30.0,
        "watts": 700.0,
        "watts_flops_per_s": 100e12,
    }
)
"""Every peak is reached and no kernel costs anything to start."""

PLAIN = Software(
    name="plain",
    framework="generic",
    describes="nothing overlaps, nothing costs extra",
    overlap_grad_reduce=0.0,
    overlap_param_gather=0.0,
    overlap_fsdp=0.0,
)

SMALL = Model(
    name="small",
    layers=12,
    hidden=64,
    heads=8,
    kv_heads=4,
    head_dim=8,
    ffn=256,
    gated_mlp=True,
    vocab=1024,
    tied_embeddings=False,
)
"""Attention 64 (64 + 2 x 32) + 64 x 64 = 12,288; MLP 3 x 64 x 256 = 49,152; norms 128: 61,568 a
layer. Tables 65,536 each, last norm 64."""

EXPERTS = SMALL.model_copy(
    update={"name": "experts", "moe": Moe(experts=8, top_k=2, expert_ffn=128, layers=12)}
)
"""Every layer has 8 experts of 3 x 64 x 128 = 24,576 and a router of 8 x 64 = 512."""

LATENT = SMALL.model_copy(
    update={
        "name": "latent",
        "kv_heads": 8,
        "mla": Mla(
            q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8
        ),
    }
)
"""Multi-head latent attention: queries by 32, keys and values by 16, heads of 8 + 4 and 8."""

NVLINK, NETWORK = 100e9, 10e9
"""Bytes per second, per GPU, one way, of the two levels of CLUSTER."""
NVLINK_S, NETWORK_S = 1e-6, 10e-6

CLUSTER = Cluster(
    name="round",
    gpu=Gpu(
        name="round",
        architecture="hopper",
        memory_bytes=80 * 2**30,
        memory_bytes_per_s=1e12,
        peak_flops_per_s={"bf16": 100e12, "fp8": 200e12, "fp32": 50e12},
        link_bytes_per_s_one_way=NVLINK,
        link_domain_gpus=8,
        watts=700,
    ),
    gpus_per_node=8,
    levels=(
        Level(name="nvlink", gpus=8, bytes_per_s_per_gpu_one_way=NVLINK, latency_s=NVLINK_S),
        Level(name="network", gpus=10**6, bytes_per_s_per_gpu_one_way=NETWORK, latency_s=NETWORK_S),
    ),
    storage=Storage(write_bytes_per_s=100e9, write_bytes_per_s_per_node=2e9),
    failures_per_gpu_hour=2e-5,
)


def job(
    model: Model = SMALL,
    *,
    gpus: int = 64,
    seq_len: int = 128,
    global_batch: int = 64,
    precision: Precision = "bf16",
    software: Software = PLAIN,
    cluster: Cluster = CLUSTER,
    efficiency: Efficiency | None = IDEAL,
    **training: Any,
) -> Job:
    """A job on the round machine."""
    asked = Training(
        seq_len=seq_len,
        global_batch=global_batch,
        tokens=10**9,
        precision=precision,
        **training,
    )
    return Job(model, cluster, asked, software, gpus, efficiency)


def soft(**changes: Any) -> Software:
    """PLAIN with changes."""
    return PLAIN.model_copy(update=changes)


def one(value: int) -> Ints:
    """An axis of one layout."""
    return ints(value)


def flag(value: bool) -> Flags:
    """A flag of one layout."""
    return np.array([value])
