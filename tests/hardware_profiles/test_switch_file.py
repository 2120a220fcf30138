"""Cluster files that list nodes under switches."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.errors import ProfileError
from layoutopt.hardware_profiles.cluster_file import read_cluster
from layoutopt.hardware_profiles.switch_file import tiers

LEVELS: list[dict[str, Any]] = [
    {"name": "nvlink", "gpus": 8, "bandwidth_per_gpu_one_way": "450GB/s"},
    {"name": "leaf", "bandwidth_per_gpu_one_way": "50GB/s", "latency": "5us"},
    {"name": "spine", "bandwidth_per_gpu_one_way": "25GB/s", "latency": "9us"},
]
POD = {"name": "pod", "bandwidth_per_gpu_one_way": "10GB/s", "latency": "15us"}


def read(**changes: Any) -> Any:
    data = {
        "name": "fragment",
        "gpu": "h100-sxm-80gb",
        "gpus_per_node": 8,
        "levels": LEVELS,
        "switches": {"leaf1": "n[01-03]", "leaf2": ["n07", "m[1-2]"]},
        **changes,
    }
    return read_cluster(data, "fragment.yaml")


def test_leaves() -> None:
    cluster = read()
    assert cluster.nodes == 6
    assert cluster.all_gpus == 48
    assert [one.nodes for one in cluster.switches] == [("n01", "n02", "n03"), ("n07", "m1", "m2")]
    assert tiers(cluster.switches) == 1
    assert [level.gpus for level in cluster.levels] == [8, 8, 48]


def test_a_root_over_all_is_no_tier_and_pods_are_one() -> None:
    rooted = read(switches={"spine": ["a", "b"], "a": ["n1"], "b": ["n2"]})
    assert tiers(rooted.switches) == 1
    assert rooted.switches[0].all_nodes == ("n1", "n2")
    pods = {"p": ["a", "b"], "q": ["c"], "a": ["n1"], "b": ["n2"], "c": ["n[3-4]"]}
    deep = read(switches=pods, levels=[*LEVELS, POD])
    assert tiers(deep.switches) == 2
    assert [one.name for one in deep.switches] == ["p", "q"]
    alone = read(switches={"leaf": ["n[1-4]"]}, levels=LEVELS[:2])
    assert tiers(alone.switches) == 0


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"switches": {}}, "switches", "empty"),
        ({"switches": ["n1"]}, "switches", "keys with values"),
        ({"switches": {"a": []}}, "switches.a", "nothing on it"),
        ({"switches": {"a": ["n 1"], "b": ["n2"]}}, "switches.a", "names of nodes"),
        ({"switches": {"a": [7], "b": ["n2"]}}, "switches.a", "names of nodes"),
        ({"switches": {"a": "n[9-3]", "b": ["n2"]}}, "switches.a", "counts no nodes"),
        ({"switches": {"a": ["n1"], "b": ["n1"]}}, "switches.b", "hangs on a too"),
        ({"switches": {"a": ["b"], "b": ["a"]}}, "switches", "circle"),
        ({"switches": {"a": ["b"], "b": ["a"], "c": ["n1"]}}, "switches", "circle"),
        ({"switches": {"a": ["b", "n1"], "b": ["n2"]}}, "switches.a", "nodes and switches"),
        ({"switches": {"a": ["b"], "b": ["n2"], "c": ["n1"]}}, "switches", "equally deep"),
        ({"nodes": 7}, "nodes", "the switches list 6"),
        ({"levels": LEVELS[:2]}, "levels", "1 tiers: 2 are needed"),
        ({"levels": [*LEVELS[:2], {**LEVELS[2], "latency": "1us"}]}, "levels[2]", "fast to slow"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ProfileError, match=words) as refused:
        read(**changes)
    assert refused.value.field == field
