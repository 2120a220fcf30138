"""Collectives by hand: two levels, 8 GPUs at 100 GB/s and 1 us, then 10 GB/s and 10 us."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.collectives import (
    Group,
    LinkLevel,
    all_gather,
    all_reduce,
    all_to_all,
    buckets,
    distinct_share,
    farthest,
    group,
    reduce_scatter,
    ring_pass,
    send,
)

NODE = LinkLevel(8, 100e9, 1e-6)
NETWORK = LinkLevel(1024, 10e9, 10e-6)
LEVELS = (NODE, NETWORK)


def ranks(size: int, stride: int = 1, levels: tuple[LinkLevel, ...] = LEVELS) -> Group:
    """One group."""
    return group(levels, ints(size), ints(stride))


@pytest.mark.parametrize(
    ("size", "stride", "gigabytes_per_s", "microseconds"),
    [
        (1, 1, np.inf, 0),
        (2, 1, 100, 1),  # one hop inside
        (8, 1, 100, 7),  # 7 hops inside
        (2, 4, 100, 1),  # GPUs 0 and 4
        (16, 1, 80, 14 + 10),  # 14 hops inside, one across; two servers, out over 8 adapters
        (8, 2, 40, 6 + 10),  # 4 ranks a server, 4 adapters
        (4, 8, 10, 30),  # one rank a server: its own adapter, 3 hops
        (128, 8, 10, 1270),
        (6, 1, 20, 3 + 20),  # servers cut some groups of 6 into 2 and 4: 2 adapters
        (4, 3, 10, 30),  # GPUs 0, 3, 6 and 9: one of them stands alone
        (3, 8, 10, 20),
    ],
)
def test_a_ring_leaves_a_server_over_the_adapters_of_its_ranks(
    size: int, stride: int, gigabytes_per_s: float, microseconds: float
) -> None:
    got = ranks(size, stride)
    assert got.bytes_per_s[0] == gigabytes_per_s * 1e9
    assert got.latency_s[0] == pytest.approx(microseconds * 1e-6)


def test_three_levels_take_the_narrowest() -> None:
    """32 ranks over 4 servers and 2 leaves: 8 x 10, then 16 x 3 GB/s; 28 + 2 + 1 hops."""
    levels = (NODE, LinkLevel(16, 10e9, 10e-6), LinkLevel(1024, 3e9, 20e-6))
    got = ranks(32, 1, levels)
    assert got.bytes_per_s[0] == 48e9
    assert got.latency_s[0] == pytest.approx(28e-6 + 20e-6 + 20e-6)


def test_the_last_level_reaches_beyond_its_size() -> None:
    assert ranks(4096, 1).bytes_per_s[0] == ranks(1024, 1).bytes_per_s[0] == 80e9
    alone = (LinkLevel(8, 100e9, 1e-6),)
    assert ranks(16, 1, alone).bytes_per_s[0] == 100e9


def test_set_up_time_is_paid_once() -> None:
    slow = (LinkLevel(8, 100e9, 1e-6, setup_s=5e-6), NETWORK)
    assert ranks(16, 1, slow).latency_s[0] == pytest.approx(5e-6 + 14e-6 + 10e-6)


def test_gather_scatter_and_reduce_by_hand() -> None:
    """8 GB on 8 ranks at 100 GB/s: 7/8 of it passes, 70 ms and 7 us; an all-reduce twice that."""
    eight = ranks(8)
    assert all_gather(eight, 8e9)[0] == pytest.approx(0.070 + 7e-6)
    assert reduce_scatter(eight, 8e9)[0] == all_gather(eight, 8e9)[0]
    assert all_reduce(eight, 8e9)[0] == pytest.approx(0.140 + 14e-6)


def test_an_exchange_leaves_a_server_over_one_adapter_each() -> None:
    """16 ranks on two servers, 16 GB each: 8 GB go to the other server at 10 GB/s, 0.8 s.

    The 7 GB for neighbours pass at the same time. Inside a server: 7/8 of it at 100 GB/s.
    """
    assert all_to_all(ranks(16), 16e9)[0] == pytest.approx(0.8 + 24e-6)
    assert all_to_all(ranks(8), 8e9)[0] == pytest.approx(0.070 + 7e-6)
    assert all_to_all(ranks(4, 8), 4e9)[0] == pytest.approx(0.3 + 30e-6)


def test_copies_for_one_server_travel_as_one() -> None:
    """Two draws of two places hit 1.5 of them, of one place 1; checked over all draws of 3 of 4.

    16 ranks on 2 servers, top 8: 2 (1 - 1/256) / 8 of the copies' 8 GB leave the server.
    """
    assert distinct_share(np.array([1.0, 2.0]), 2).tolist() == [0.5, 0.75]
    draws = [len(set(draw)) for draw in itertools.product(range(4), repeat=3)]
    assert distinct_share(np.array([4.0]), 3)[0] == pytest.approx(np.mean(draws) / 3)
    once = group(LEVELS, ints(16), ints(1), copies=8)
    share = 2 * (1 - 2.0**-8) / 8
    assert all_to_all(once, 16e9)[0] == pytest.approx(share * 0.8 + 24e-6)


def test_a_ring_of_sends_goes_at_the_pace_of_its_farthest_pair() -> None:
    """16 ranks: 15 hops of 1 GB over one adapter, 0.1 s and 10 us each."""
    assert ring_pass(ranks(16), 1e9)[0] == pytest.approx(15 * (0.1 + 10e-6))
    assert ring_pass(ranks(4), 1e9)[0] == pytest.approx(3 * (0.01 + 1e-6))


def test_the_farthest_pair_of_a_job() -> None:
    """8 GPUs share a server; 16 do not, however near the stages of a pipeline stand."""
    assert send(farthest(LEVELS, 8), 1e9) == pytest.approx(0.01 + 1e-6)
    assert send(farthest(LEVELS, 16), 1e9) == pytest.approx(0.1 + 10e-6)
    assert send(farthest(LEVELS, 5000), 1e9) == pytest.approx(0.1 + 10e-6)


def test_two_ranks_sum_a_buffer_in_one_passage() -> None:
    """Each sends half, sums, sends half back: the buffer passes once, latency twice."""
    assert all_reduce(farthest(LEVELS, 16), 1e9) == pytest.approx(0.1 + 20e-6)


@pytest.mark.parametrize(
    "collective", [all_gather, reduce_scatter, all_reduce, all_to_all, ring_pass]
)
def test_one_rank_has_nobody_to_talk_to(collective: object) -> None:
    assert callable(collective)
    assert collective(ranks(1), 1e9)[0] == 0


@given(st.integers(1, 64), st.integers(1, 64), st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_better_links_are_never_slower(size: int, stride: int, inner: float, outer: float) -> None:
    better = (
        LinkLevel(8, 100e9 * inner, 1e-6 / inner),
        LinkLevel(1024, 10e9 * outer, 1e-5 / outer),
    )
    for collective in (all_gather, all_reduce, all_to_all, ring_pass):
        now = collective(ranks(size, stride), 1e8)[0]
        assert collective(ranks(size, stride, better), 1e8)[0] <= now * (1 + 1e-12)


def test_arrays_of_groups_equal_groups_one_by_one() -> None:
    sizes, strides = ints([1, 2, 6, 8, 16, 3]), ints([1, 4, 1, 1, 2, 8])
    together = all_gather(group(LEVELS, sizes, strides), 1e9)
    alone = [all_gather(ranks(int(n), int(s)), 1e9)[0] for n, s in zip(sizes, strides, strict=True)]
    assert together.tolist() == alone


def test_a_bucket_is_40_million_parameters_or_a_million_a_rank() -> None:
    """1e9 on 8 ranks: 25 buckets; on 100 ranks 10; 1e6 on 8 ranks: one. Each pays the latency."""
    assert buckets(np.array([1e9]), ranks(8))[0] == 25
    assert buckets(np.array([1e9]), ranks(100))[0] == 10
    assert buckets(np.array([1e6]), ranks(8))[0] == 1
    assert all_gather(ranks(8), 8e9, 25.0)[0] == pytest.approx(0.070 + 25 * 7e-6)
