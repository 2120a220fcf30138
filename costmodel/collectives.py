"""Time of collectives over a hierarchy of links: alpha-beta per level.

Sizes are bytes of the whole (gathered) buffer on one rank. Every function takes numbers or arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import Array, Ints


@dataclass(frozen=True)
class LinkLevel:
    """One level as collectives see it."""

    domain_gpus: int
    bytes_per_s: float
    """Achieved by large ring collectives, per GPU, one way, oversubscription included."""
    latency_s: float


@dataclass(frozen=True)
class Group:
    """What a communicator of a given size and stride gets from the links it crosses."""

    size: Ints
    bytes_per_s: Array
    latency_s: Array


def group(levels: tuple[LinkLevel, ...], size: Ints, stride: Ints) -> Group:
    """A group of ``size`` ranks that stand ``stride`` GPUs apart.

    With n ranks inside a domain, a ring leaves it over n adapters at once: its bandwidth is the
    least of the inner link's and n times the outer link's, level by level. Latency counts
    log2 steps on each level (Thakur 2005, section 4: recursive doubling; NCCL's trees).
    """
    size, stride = np.asarray(size), np.asarray(stride)
    inside = np.minimum(size, np.maximum(1, levels[0].domain_gpus // stride))
    bandwidth = np.where(inside > 1, levels[0].bytes_per_s, np.inf)
    latency = levels[0].latency_s * np.log2(inside)
    for level in levels[1:]:
        wider = np.minimum(size, np.maximum(inside, level.domain_gpus // stride))
        crosses = wider > inside
        bandwidth = np.where(crosses, np.minimum(bandwidth, inside * level.bytes_per_s), bandwidth)
        latency = latency + level.latency_s * np.log2(wider / inside)
        inside = wider
    # A cluster may be larger than its last level says: that level is taken to reach everywhere.
    beyond = size > inside
    last = levels[-1]
    bandwidth = np.where(beyond, np.minimum(bandwidth, inside * last.bytes_per_s), bandwidth)
    latency = latency + last.latency_s * np.log2(size / inside)
    return Group(size, bandwidth, latency)


def all_gather(ranks: Group, gathered_bytes: Array | float) -> Array:
    """Ring all-gather: (n - 1)/n of the buffer passes each rank (Thakur 2005, section 4.1)."""
    wire = np.asarray(gathered_bytes) * (ranks.size - 1) / ranks.size / ranks.bytes_per_s
    return np.where(ranks.size > 1, ranks.latency_s + wire, 0.0)


def reduce_scatter(ranks: Group, full_bytes: Array | float) -> Array:
    """Ring reduce-scatter: as long as an all-gather of the same buffer (Thakur 2005, 4.2)."""
    return all_gather(ranks, full_bytes)


def all_reduce(ranks: Group, full_bytes: Array | float) -> Array:
    """Reduce-scatter, then all-gather (Thakur 2005, section 4.4; Rabenseifner)."""
    return 2 * all_gather(ranks, full_bytes)


def all_to_all(ranks: Group, sent_bytes: Array | float) -> Array:
    """Each rank sends (n - 1)/n of ``sent_bytes``, its own buffer, to the others."""
    return all_gather(ranks, sent_bytes)


def crossing(levels: tuple[LinkLevel, ...], stride: Ints) -> Group:
    """The link between two ranks ``stride`` GPUs apart: the outermost level that it crosses."""
    stride = np.asarray(stride)
    bandwidth = np.full(stride.shape, levels[-1].bytes_per_s)
    latency = np.full(stride.shape, levels[-1].latency_s)
    for level in reversed(levels[:-1]):
        bandwidth = np.where(stride < level.domain_gpus, level.bytes_per_s, bandwidth)
        latency = np.where(stride < level.domain_gpus, level.latency_s, latency)
    return Group(np.full(stride.shape, 2), bandwidth, latency)


def send(link: Group, message_bytes: Array | float) -> Array:
    """One message over ``link``: latency plus bytes over bandwidth."""
    return link.latency_s + np.asarray(message_bytes) / link.bytes_per_s
