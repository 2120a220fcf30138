"""Mamba-2 mixers: their products, scan, convolution and gated norm; what they save and exchange.

Source: Dao and Gu 2024 (arXiv 2405.21060): the state-space dual form, section 6 (block
decomposition in chunks of Q tokens) and section 7 (the layer, tensor and sequence parallelism);
Waleffe et al. 2024 (arXiv 2406.07887), section 2, for Megatron's. Everything is per GPU.
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel import collectives, compute
from layoutopt.costmodel.axes import Array, Ints
from layoutopt.costmodel.compute import ZERO, Seconds
from layoutopt.costmodel.counts import scan_flops
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import Machine
from layoutopt.costmodel.model import Mamba

KERNELS = 7
"""Convolution, cumulative sum, the four steps of the scan, gated norm."""


def products(job: Job, machine: Machine, tokens: Array, tp: Ints) -> Seconds:
    """In-projection to gate, input, B, C and step sizes, and out-projection."""
    mamba = job.model.mamba
    if mamba is None:
        return ZERO
    hidden = np.asarray(float(job.model.hidden))
    accumulate = compute.accumulated_bytes(job)
    work = compute.gemm(machine, tokens, hidden, mamba.projected / tp, accumulate)
    return work + compute.gemm(machine, tokens, mamba.inner / tp, hidden, accumulate)


def mixer(job: Job, machine: Machine, tokens: Array, tp: Ints) -> Seconds:
    """One Mamba-2 mixer over ``tokens``, its heads and groups divided over tp.

    The projections; the scan, at its own share of a matrix product's rate (Efficiency.scan_rate),
    2.5 times its FLOPs backward, as in flash attention, because scores and states are computed
    again; passes over memory of convolution and gated norm, twice that backward.
    """
    mamba = job.model.mamba
    if mamba is None:
        return ZERO
    work = products(job, machine, tokens, tp)
    rate = machine.gemm16_flops_per_s * machine.reach.scan_rate
    scan = tokens * scan_flops(mamba) / np.asarray(tp) / rate
    moved = tokens * _moved_bytes(mamba) / np.asarray(tp) / machine.memory_bytes_per_s
    moved = moved + KERNELS * machine.gap_s
    return work + Seconds(scan + moved, 2.5 * scan + 2 * moved)


def _moved_bytes(mamba: Mamba) -> float:
    """Bytes a token moves beside the scan forward, in 16 bit: the convolution reads and writes x, B
    and C; the gated norm reads sum and gate and writes its output."""
    return 4.0 * (mamba.inner + 2 * mamba.groups * mamba.state) + 6.0 * mamba.inner


def saved_bytes_a_token(mamba: Mamba, tp: Ints, kept: float) -> Array:
    """What a mixer keeps for its backward pass, bytes a token: the in-projection's output, the
    scan's sum, the gated norm's output in the out-projection's precision. Convolution, chunk
    states and scores are computed again (mamba_split_conv1d_scan_combined)."""
    return np.asarray((2.0 * mamba.projected + (2.0 + kept) * mamba.inner) / np.asarray(tp))


def exchange(job: Job, machine: Machine, tokens: Array, tp: Ints, cp: Ints) -> Seconds:
    """Context parallelism of a mixer: an all-to-all turns shards of the sequence into shards of
    heads, and one turns the sum back (Megatron Core, ssm/mamba_context_parallel.py)."""
    mamba = job.model.mamba
    if mamba is None:
        return ZERO
    ranks = collectives.group(machine.levels, cp, tp)
    sent = 2.0 * tokens * (mamba.projected + mamba.inner) / np.asarray(tp)
    once = collectives.all_to_all(ranks, sent) + np.where(np.asarray(cp) > 1, ranks.latency_s, 0.0)
    return Seconds(once, once)
