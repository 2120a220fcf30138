"""Cluster files with several pools."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.errors import ProfileError
from layoutopt.hardware_profiles.cluster_file import read_cluster

H100: dict[str, Any] = {"name": "h100", "gpu": "h100-sxm-80gb", "nodes": 64}
A100: dict[str, Any] = {"name": "a100", "gpu": "a100-sxm-80gb", "nodes": 128}
LINK: dict[str, Any] = {"bandwidth_per_gpu_one_way": "12.5GB/s", "latency": "10us"}


def read(**changes: Any) -> Any:
    data = {"name": "mixed", "pools": [H100, A100], "pool_link": LINK, **changes}
    return read_cluster({k: v for k, v in data.items() if v is not None}, "mixed.yaml")


def test_two_pools() -> None:
    cluster = read(failures_per_gpu_hour=3e-5, storage={"write": "100GB/s"})
    assert [pool.name for pool in cluster.pools] == ["h100", "a100"]
    assert [pool.all_gpus for pool in cluster.pools] == [512, 1024]
    assert cluster.all_gpus == 1536
    assert cluster.pool_link.bytes_per_s_per_gpu_one_way == 12.5e9
    assert {pool.failures_per_gpu_hour for pool in cluster.pools} == {3e-5}
    assert {pool.storage.write_bytes_per_s for pool in cluster.pools} == {100e9}
    options = [one.option for one in cluster.filled]
    assert "pools.a100.levels" in options
    assert not any("failures" in option for option in options)


def test_a_pool_may_state_its_own_failures_and_levels() -> None:
    levels = [
        {"name": "nvlink", "gpus": 8, "bandwidth_per_gpu_one_way": "300GB/s"},
        {"name": "ib", "bandwidth_per_gpu_one_way": "20GB/s", "oversubscription": 2},
    ]
    own = {**A100, "failures_per_gpu_hour": 9e-5, "levels": levels}
    cluster = read(pools=[H100, own], failures_per_gpu_hour=3e-5)
    assert cluster.pools[1].failures_per_gpu_hour == 9e-5
    assert cluster.pools[1].levels[1].oversubscription == 2


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"pools": [H100]}, "pools", "two pools or more"),
        ({"pools": [H100, {**A100, "name": "h100"}]}, "pools[1].name", "two pools"),
        ({"pools": [H100, {**A100, "nodes": None}]}, "pools[1].nodes", "missing"),
        ({"pools": [H100, {**A100, "name": "7"}]}, "pools[1].name", "letters"),
        ({"pools": [H100, {**A100, "storage": {}}]}, "pools[1].storage", "shared"),
        ({"pools": [H100, {**A100, "gpu": "h9000"}]}, "pools[1].gpu", "h9000"),
        ({"pool_link": None}, "pool_link", "missing"),
        ({"pool_link": {"latency": "1us"}}, "pool_link.bandwidth_per_gpu_one_way", "missing"),
        ({"gpu": "h100-sxm-80gb"}, "gpu", "not known"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ProfileError, match=words) as refused:
        read(**changes)
    assert refused.value.field == field
