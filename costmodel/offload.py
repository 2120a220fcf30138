"""State and activations in host memory: what it takes to move them, and what the host holds.

Optimizer offload keeps the master weights and moments in host memory and steps them there:
gradients travel out, the processor runs Adam, 16-bit weights travel back (Ren et al. 2021,
ZeRO-Offload, arXiv 2101.06840, sections 3 and 4). Activation offload moves what a layer saves out
while later layers compute, and back before its backward pass (Rajbhandari et al. 2021,
ZeRO-Infinity, arXiv 2104.07857; Megatron Core, fine-grained activation offloading).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layoutopt.costmodel.axes import Array, Flags, Ints
from layoutopt.costmodel.compute import Seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.terms import LayerTerms
from layoutopt.hardware_profiles.hosts import host_of
from layoutopt.units import KIB

LINK_SHARE = 0.8
"""Of the link's rate that large pinned copies reach: packet overhead and flow control (A21)."""
ADAM_SHARE = 0.45
"""Of the host's memory bandwidth that Adam on the processor reaches. Source: Ren et al. 2021,
table 4: 10 billion parameters in 2.57 s, at 30 bytes each 117 GB/s, on two Xeon 8168 with 256 GB/s.
"""
MEMORY_SHARE = 0.8
"""Of the host's memory that offload may fill: the system, data loaders and checkpoints need the
rest (A21)."""
PARKED_LAYERS = 2
"""Layers whose saved activations are on the device all the same: one leaving, one arriving."""


def largest_host_kib(job: Job) -> int:
    """The most KiB of host memory that one GPU's offload may fill."""
    return int(host_of(job.cluster).memory_bytes * MEMORY_SHARE) // KIB


def link_bytes_per_s(job: Job) -> float:
    """What a copy between device and host reaches, one direction."""
    return host_of(job.cluster).link_bytes_per_s_one_way * LINK_SHARE


def adam_seconds(job: Job, parameters_held: Array) -> Array:
    """The optimizer step of ``parameters_held`` parameters in host memory.

    Gradients go out first; then the step, which reads gradient and state and writes state and a
    working copy, and the copy's way back run in tiles beside one another.
    """
    software = job.software
    weight = max(2, software.weight_bytes)
    state = software.optimizer_bytes + (weight if weight > 2 else 0)
    touched = 2.0 * state + software.gradient_bytes + (2.0 if weight == 2 else 0.0)
    rate = host_of(job.cluster).memory_bytes_per_s * ADAM_SHARE
    out = parameters_held * software.gradient_bytes / link_bytes_per_s(job)
    back = parameters_held * float(weight) / link_bytes_per_s(job)
    return out + np.maximum(parameters_held * touched / rate, back)


def offloaded(job: Job, layer: LayerTerms, saved_kib: Ints, offload: Flags | bool) -> LayerTerms:
    """``layer`` with what is left of moving its ``saved_kib`` out and back, where ``offload``.

    Each way hides behind the layer's own pass, which stands for its neighbours': all are alike.
    """
    if not np.any(offload):
        return layer
    wire = np.where(offload, saved_kib * float(KIB) / link_bytes_per_s(job), 0.0)
    left = Seconds(np.maximum(wire - layer.forward, 0.0), np.maximum(wire - layer.backward, 0.0))
    return replace(layer, offload=left)


def device_kib(saved_kib: Ints, offload: Flags | bool) -> tuple[Ints, Ints]:
    """Of one layer's saved activations, what every layer in flight holds on the device, and what
    is held there once however many are in flight."""
    return np.where(offload, 0, saved_kib), np.where(offload, PARKED_LAYERS * saved_kib, 0)
