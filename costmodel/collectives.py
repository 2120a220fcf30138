"""Time of collectives over a hierarchy of links: alpha-beta per level (A6).

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
    setup_s: float = 0.0
    """Seconds of any collective or message, whatever its size: launch, protocol, ramp-up."""


@dataclass(frozen=True)
class Group:
    """What a communicator of a given size and stride gets from the links it crosses."""

    size: Ints
    bytes_per_s: Array
    """Of a ring that leaves a domain over the adapters of all its ranks there."""
    latency_s: Array
    exchange_s_per_byte: Array
    """Seconds per byte of a rank's buffer, where each rank sends the others a share of it."""
    edge_bytes_per_s: Array
    """Between the two neighbours that stand farthest apart: one adapter."""
    edge_latency_s: Array


def group(
    levels: tuple[LinkLevel, ...], size: Ints, stride: Ints, *, copies: int | None = None
) -> Group:
    """A group of ``size`` ranks that stand ``stride`` GPUs apart.

    With n ranks inside a domain, a ring leaves it over n adapters at once: its bandwidth is the
    least of the inner link's and n times the outer link's, level by level. Latency counts the
    ring's size - 1 hops, each at the latency of the level it crosses (Thakur 2005, section 4.1;
    the H100 curve of 20 us for 2 x 7 hops). Where groups do not fill domains evenly (6 ranks on
    servers of 8) the one that is cut worst counts, with gcd(size * stride, domain) of its GPUs on
    one side.

    ``copies``: in an exchange a token has so many copies, and those for one domain enter it as one.
    """
    size, stride = np.asarray(size), np.asarray(stride)
    span = size * stride
    held = [np.gcd(span, one.domain_gpus) // stride for one in levels]
    return _crossing(levels, size, held, copies)


def nested_group(
    levels: tuple[LinkLevel, ...], near: Ints, stride: Ints, far: Ints, far_stride: Ints
) -> Group:
    """near * far ranks: ``near`` of them ``stride`` GPUs apart, and that ``far`` times over.

    ``far_stride`` is a multiple of what the near ones span. As in `group`, a domain holds as many
    ranks as the worst cut leaves on one side.
    """
    near, far = np.asarray(near), np.asarray(far)
    held = [
        np.maximum(1, np.gcd(near * stride, one.domain_gpus) // stride)
        * np.maximum(1, np.gcd(far * far_stride, one.domain_gpus) // far_stride)
        for one in levels
    ]
    return _crossing(levels, near * far, held)


def _crossing(
    levels: tuple[LinkLevel, ...], size: Ints, held: list[Ints], copies: int | None = None
) -> Group:
    """A group of which a domain of each level holds ``held`` ranks."""
    size = np.asarray(size)
    shape = np.broadcast(size, *held).shape
    inside = np.ones(shape, dtype=np.int64)
    bandwidth = edge = np.full(shape, np.inf)
    edge_latency = exchange = np.zeros(shape)
    latency = np.full(shape, levels[0].setup_s)
    for number, level in enumerate(levels):
        if number == len(levels) - 1:
            # A cluster may be larger than its last level says: that level reaches everywhere.
            wider = np.broadcast_to(size, shape)
        else:
            wider = np.maximum(inside, held[number])
        crosses = wider > inside
        adapters = inside if number else 1
        through = np.minimum(bandwidth, adapters * level.bytes_per_s)
        bandwidth = np.where(crosses, through, bandwidth)
        latency = latency + level.latency_s * (size / inside - size / wider)
        leaving = (size - inside) / size / level.bytes_per_s
        if copies is not None:
            leaving = leaving * distinct_share(size / inside, copies)
        exchange = np.where(crosses, np.maximum(exchange, leaving), exchange)
        edge = np.where(crosses, np.minimum(edge, level.bytes_per_s), edge)
        edge_latency = np.where(crosses, level.latency_s, edge_latency)
        inside = wider
    return Group(size, bandwidth, latency, exchange, edge, edge_latency)


def distinct_share(places: Array, copies: int) -> Array:
    """Distinct places that ``copies`` independent, even draws hit, over the number of draws.

    n (1 - (1 - 1/n)^k) / k: what is left to send where the copies of a token that go to one place
    travel as one and are copied there (DeepSeek-V3 technical report 2024, section 3.2.2; DeepEP).
    """
    share: Array = places * (1 - (1 - 1 / places) ** copies) / copies
    return share


def all_gather(ranks: Group, gathered_bytes: Array | float, pieces: Array | float = 1.0) -> Array:
    """Ring all-gather: (n - 1)/n of the buffer passes each rank (Thakur 2005, section 4.1).

    In ``pieces`` collectives, one after the other, each with its own latency.
    """
    wire = np.asarray(gathered_bytes) * (ranks.size - 1) / ranks.size / ranks.bytes_per_s
    return np.where(ranks.size > 1, pieces * ranks.latency_s + wire, 0.0)


def reduce_scatter(ranks: Group, full_bytes: Array | float, pieces: Array | float = 1.0) -> Array:
    """Ring reduce-scatter: as long as an all-gather of the same buffer (Thakur 2005, 4.2)."""
    return all_gather(ranks, full_bytes, pieces)


def all_reduce(ranks: Group, full_bytes: Array | float) -> Array:
    """Reduce-scatter, then all-gather (Thakur 2005, section 4.4; Rabenseifner)."""
    return 2 * all_gather(ranks, full_bytes)


def all_to_all(ranks: Group, sent_bytes: Array | float) -> Array:
    """Each rank sends the others equal shares of ``sent_bytes``, its own buffer.

    (n - k)/n of it leaves a domain that holds k of the n ranks, over the rank's own adapter;
    levels work at the same time, so the slowest counts.
    """
    wire = np.asarray(sent_bytes) * ranks.exchange_s_per_byte
    return np.where(ranks.size > 1, ranks.latency_s + wire, 0.0)


def ring_pass(ranks: Group, block_bytes: Array | float) -> Array:
    """n - 1 times every rank sends a block to its neighbour; the farthest pair sets the pace."""
    hop = ranks.edge_latency_s + np.asarray(block_bytes) / ranks.edge_bytes_per_s
    return np.where(ranks.size > 1, (ranks.size - 1) * hop, 0.0)


def buckets(parameters: Array, ranks: Group) -> Array:
    """Collectives that once-a-step traffic of ``parameters`` is cut into.

    A bucket holds 40 million parameters, or a million a rank where that is more (Megatron-LM,
    DistributedDataParallelConfig.bucket_size), so that latency does not eat large groups.
    """
    count: Array = np.maximum(1.0, np.asarray(parameters) / np.maximum(40e6, 1e6 * ranks.size))
    return count


def farthest(levels: tuple[LinkLevel, ...], gpus: int) -> Group:
    """Two GPUs as far apart as any two of a job of ``gpus``: the innermost level that holds all."""
    level = next((each for each in levels if each.domain_gpus >= gpus), levels[-1])
    rate = np.asarray(level.bytes_per_s)
    latency = np.asarray(level.latency_s + levels[0].setup_s)
    return Group(np.asarray(2), rate, latency, 0.5 / rate, rate, latency)


def send(link: Group, message_bytes: Array | float) -> Array:
    """One message over ``link``: latency plus bytes over bandwidth."""
    return link.latency_s + np.asarray(message_bytes) / link.bytes_per_s
