"""Context parallelism: how the ranks of one sequence exchange keys and values, and what it takes.

Every rank holds two of 2 cp causal pieces of the sequence, an early and a late one, so that all
have the same share of attention (Llama 3, section 3.3.2; Megatron Core, get_batch_on_this_cp_rank).
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel import collectives, compute
from layoutopt.costmodel.axes import ALL_GATHER, HIERARCHICAL, RING, ULYSSES, Array, Ints
from layoutopt.costmodel.compute import Seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import Machine, machine


def context_seconds(
    job: Job,
    tokens: Array,
    tp: Ints,
    cp: Ints,
    core: Seconds,
    recompute: Ints,
    kind: Ints | int,
) -> Seconds:
    """Exposed traffic of one layer and microbatch of ``tokens`` a rank, by kind (axes.RING ...).

    ``core`` is attention's own time, which a ring hides behind. Whatever runs attention again
    (``recompute``) repeats the forward traffic.
    """
    rates, kinds = machine(job), np.asarray(kind)
    again = compute.recompute_share(job, recompute)[1]
    by_kind = {
        RING: lambda: _ring(job, rates, tokens, tp, cp, core, again),
        ALL_GATHER: lambda: _all_gather(job, rates, tokens, tp, cp, again),
        ULYSSES: lambda: _ulysses(job, rates, tokens, tp, cp, again),
        HIERARCHICAL: lambda: _hierarchical(job, rates, tokens, tp, cp, core, again),
    }
    present = [code for code in by_kind if np.any(kinds == code)]
    priced = {code: by_kind[code]() for code in present}
    if len(present) == 1:
        return priced[present[0]]
    which = [kinds == code for code in present]
    return Seconds(
        np.select(which, [priced[code].forward for code in present]),
        np.select(which, [priced[code].backward for code in present]),
    )


def ranks_inside(job: Job, tp: Ints | int, cp: Ints | int) -> Ints:
    """Context-parallel ranks that share the innermost network domain with a rank: what
    ``hierarchical`` exchanges heads over. 1 where tp does not divide the domain."""
    domain = machine(job).levels[0].domain_gpus
    room = np.where(domain % np.asarray(tp) == 0, domain // np.asarray(tp), 1)
    inside: Ints = np.gcd(np.maximum(room, 1), np.asarray(cp))
    return inside


def _ring(
    job: Job, rates: Machine, tokens: Array, tp: Ints, cp: Ints, core: Seconds, again: Array
) -> Seconds:
    """Keys and values travel round the group, hidden behind attention on the block before.

    A rank passes on (cp - 1) blocks of K and V forward, twice that backward (K, V and their
    gradients). Source: Liu 2023 (arXiv 2310.01889), section 3.
    """
    ranks = collectives.group(rates.levels, cp, tp)
    once = collectives.ring_pass(ranks, _block_bytes(job, tokens, tp))
    return _behind_attention(once, cp, core, again)


def _behind_attention(once: Array, blocks: Ints, core: Seconds, again: Array) -> Seconds:
    """All but the first of ``blocks`` pieces of attention hide a transfer; a share never hides."""
    least = np.maximum(blocks, 1)
    forward = np.maximum(once - core.forward * (blocks - 1) / blocks, once / least)
    backward = np.maximum(2 * once - core.backward * (blocks - 1) / blocks, 2 * once / least)
    return Seconds(forward, backward + again * forward)


def _all_gather(
    job: Job, rates: Machine, tokens: Array, tp: Ints, cp: Ints, again: Array
) -> Seconds:
    """Every rank gathers all keys and values before attention, and again before the backward
    pass, which scatters their gradients (Llama 3, section 3.3.2). Nothing hides it."""
    ranks = collectives.group(rates.levels, cp, tp)
    once = collectives.all_gather(ranks, _block_bytes(job, tokens, tp) * cp)
    return Seconds(once, once * (2 + again))


def _ulysses(job: Job, rates: Machine, tokens: Array, tp: Ints, cp: Ints, again: Array) -> Seconds:
    """Four all-to-alls turn shards of the sequence into shards of the heads and back: queries,
    keys, values, output. Source: Jacobs 2023 (arXiv 2309.14509), section 3."""
    ranks = collectives.group(rates.levels, cp, tp)
    once = collectives.all_to_all(ranks, tokens * _exchanged_bytes(job, tp, cp))
    return Seconds(once, once * (1 + again))


def _hierarchical(
    job: Job, rates: Machine, tokens: Array, tp: Ints, cp: Ints, core: Seconds, again: Array
) -> Seconds:
    """Ulysses among the u ranks of a domain, a ring of cp / u across domains (Megatron Core's
    cp_comm_type a2a+p2p).

    After the exchange a rank holds u times the tokens for 1/u of the heads, so that a block is as
    large as a ring's, and goes round cp / u ranks that stand u as far apart.
    """
    inside = ranks_inside(job, tp, cp)
    outside = np.asarray(cp) // inside
    near = collectives.group(rates.levels, inside, tp)
    exchange = collectives.all_to_all(near, tokens * _exchanged_bytes(job, tp, inside))
    far = collectives.group(rates.levels, outside, np.asarray(tp) * inside)
    once = collectives.ring_pass(far, _block_bytes(job, tokens, tp))
    ring = _behind_attention(once, outside, core, again)
    return Seconds(exchange + ring.forward, exchange * (1 + again) + ring.backward)


def _block_bytes(job: Job, tokens: Array, tp: Ints) -> Array:
    """K and V of a rank's tokens, 16 bit; expanded heads under MLA."""
    block: Array = tokens * 2.0 * 2 * _kv_width(job) / tp
    return block


def _kv_width(job: Job) -> float:
    """Elements of K (and of V) a token, as a ring passes them."""
    if job.model.mla is None:
        return float(job.model.kv_width)
    score_dim, value_dim = compute.head_dims(job)
    return job.model.heads * (score_dim + value_dim) / 2


def _exchanged_bytes(job: Job, tp: Ints, ranks: Ints) -> Array | float:
    """Queries, keys, values and output of a token on one tp rank, 16 bit.

    Fewer key-value heads than the heads are split over are copied first, to one a rank.
    """
    model = job.model
    if model.mla is None:
        copies = np.maximum(1.0, tp * np.asarray(ranks) / model.kv_heads)
        return 2.0 * (2 * model.q_width + 2 * model.kv_width * copies) / tp
    score_dim, value_dim = compute.head_dims(job)
    return 2.0 * model.heads * 2 * (score_dim + value_dim) / tp
