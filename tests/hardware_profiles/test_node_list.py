"""Lists of nodes as kubectl prints them: which may be used, what they are, where they stand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.errors import InputError, ProfileError
from layoutopt.hardware_profiles.loading import load_cluster
from layoutopt.hardware_profiles.node_list import node_list, read_node_list
from layoutopt.hardware_profiles.reading import MAX_BYTES
from layoutopt.hardware_profiles.schema import Cluster

H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
RACK, BLOCK = "cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"
DOMAIN = "network.topology.nvidia.com/accelerator"


def node(name: str, kind: str | None = H100, gpus: int = 8, **changes: Any) -> dict[str, Any]:
    """A node that is ready, as kubectl prints it; ``labels``, ``spec`` and ``ready`` change it."""
    labels = {"kubernetes.io/hostname": name, **changes.get("labels", {})}
    if kind is not None:
        labels["nvidia.com/gpu.product"] = kind
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    ready = [
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": changes.get("ready", "True")},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [taint], **changes.get("spec", {})},
        "status": {"allocatable": {"cpu": "96", "nvidia.com/gpu": str(gpus)}, "conditions": ready},
    }


def read(*items: dict[str, Any], gpu: str | None = None) -> Cluster:
    return read_node_list({"kind": "List", "items": list(items)}, "nodes.json", gpu)


def names(cluster: Cluster) -> list[str]:
    return [name for one in cluster.switches for name in one.all_nodes]


def test_a_plain_list_is_the_usual_machine_with_these_nodes() -> None:
    cluster = read(node("a"), node("b"), node("cpu", None, 0))
    assert (cluster.gpu.name, cluster.gpus_per_node, cluster.nodes) == ("h100-sxm-80gb", 8, 2)
    assert names(cluster) == ["a", "b"]
    assert [(level.name, level.gpus) for level in cluster.levels] == [
        ("nvlink", 8),
        ("network", 16),
    ]
    assert not any(one.option == "nodes" for one in cluster.filled)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"ready": "False"}, "not ready"),
        ({"ready": "Unknown"}, "not ready"),
        ({"spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]}}, "tainted team"),
        ({"spec": {"taints": [{"key": "team", "effect": "NoExecute"}]}}, "tainted team"),
        ({"kind": f"{H100}-SHARED"}, "with GPUs shared in time"),
        ({"labels": {"nvidia.com/gpu.sharing-strategy": "mps"}}, "with GPUs shared in time"),
        ({"kind": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "with GPUs cut by MIG"),
        ({"gpus": 7}, "of 7 x h100-sxm-80gb"),
        ({"kind": A100, "gpus": 4}, "of 4 x a100-sxm-80gb"),
    ],
)
def test_nodes_that_no_job_may_have_are_left_out_with_the_reason(
    changes: dict[str, Any], why: str
) -> None:
    cluster = read(node("good"), node("bad", **changes))
    assert names(cluster) == ["good"]
    said = [one for one in cluster.filled if one.option == "nodes"]
    assert [(one.value, one.reason) for one in said] == [("1 of 2", f"left out: 1 {why}")]


def test_a_taint_that_only_asks_to_stay_away_keeps_nobody_off() -> None:
    soft = {"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}
    assert names(read(node("a", spec=soft))) == ["a"]


def pod(where: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    asked = {"requests": {"nvidia.com/gpu": str(gpus)}}
    return {
        "kind": "Pod",
        "spec": {"nodeName": where, "containers": [{"resources": asked}, {"name": "sidecar"}]},
        "status": {"phase": phase},
    }


def test_pods_in_the_list_hold_their_nodes() -> None:
    pods = (pod("a", 1), pod("b", 8, "Succeeded"), pod("c", 0))
    cluster = read(node("a"), node("b"), node("c"), *pods)
    assert names(cluster) == ["b", "c"]


def test_of_several_types_the_named_one_or_the_largest_is_taken() -> None:
    nodes = (node("h1"), node("h2"), node("a1", A100), node("x1", None))
    assert names(read(*nodes)) == ["h1", "h2"]
    assert names(read(*nodes, gpu="a100")) == ["a1"]
    with pytest.raises(ProfileError, match="no node with GPUs of type b200 is free for a job"):
        read(*nodes[:3], gpu="b200")
    with pytest.raises(ProfileError, match="no label says which GPUs"):
        read(node("x1", None))
    assert read(node("x1", None), gpu="h200").gpu.name == "h200-sxm-141gb"


def test_a_machine_of_a_cloud_brings_its_network_and_price() -> None:
    machine = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    cluster = read(node("a", None, labels=machine), node("b", None, labels=machine))
    assert cluster.gpu.name == "h100-sxm-80gb"
    usual = read(node("a"))
    assert cluster.usd_per_gpu_hour != usual.usd_per_gpu_hour
    mixed = read(node("a", labels=machine), node("b"))
    assert mixed.usd_per_gpu_hour == usual.usd_per_gpu_hour


def test_labels_of_every_node_are_the_switches() -> None:
    """Two blocks of two racks; the rack names repeat, one rack has one node."""
    stand = (("b1", "r1"), ("b1", "r1"), ("b1", "r2"), ("b2", "r1"), ("b2", "r1"), ("b2", "r2"))
    nodes = [
        node(f"n{k}", labels={BLOCK: block, RACK: rack, "topology.kubernetes.io/zone": "z"})
        for k, (block, rack) in enumerate(stand)
    ]
    cluster = read(*nodes)
    assert [one.name for one in cluster.switches] == ["b1", "b2"]
    racks = [(two.name, two.nodes) for one in cluster.switches for two in one.switches]
    assert racks == [
        ("b1/r1", ("n0", "n1")),
        ("b1/r2", ("n2",)),
        ("b2/r1", ("n3", "n4")),
        ("b2/r2", ("n5",)),
    ]
    assert [level.name for level in cluster.levels] == ["nvlink", "rack", "block", "network"]
    assert len({level.usable_bytes_per_s for level in cluster.levels[1:]}) == 1
    assert any(one.option == "levels.rack" for one in cluster.filled)


def test_labels_that_say_nothing_are_no_tier() -> None:
    """One over all, one a node, or missing on a node."""
    one = [node(f"n{k}", labels={BLOCK: "b", RACK: f"r{k}"}) for k in range(3)]
    assert [level.name for level in read(*one).levels] == ["nvlink", "network"]
    some = [node("n0", labels={BLOCK: "b0"}), node("n1", labels={BLOCK: "b1"}), node("n2")]
    assert [level.name for level in read(*some).levels] == ["nvlink", "network"]


@pytest.mark.parametrize(
    ("domains", "levels"),
    [
        (("d1", "d1", "d2", "d2"), [("nvlink", 4), ("network", 16)]),
        (("d1", "d1", "d1", "d1"), [("nvlink", 72), ("network", 72)]),
        (("d1", "d2", "d3", "d4"), [("nvlink", 4), ("network", 16)]),
        ((None, None, None, None), [("nvlink", 72), ("network", 72)]),
    ],
)
def test_domains_of_nvlink_that_leave_the_node(
    domains: tuple[str | None, ...], levels: list[tuple[str, int]]
) -> None:
    """The label cuts nodes into domains; until a job is placed a domain counts as one node."""
    nodes = [
        node(f"n{k}", "NVIDIA-GB200", 4, labels={DOMAIN: one} if one else {})
        for k, one in enumerate(domains)
    ]
    cluster = read(*nodes)
    assert [(level.name, level.gpus) for level in cluster.levels] == levels
    halves = domains[:1] == domains[1:2] != domains[2:3]
    assert len(cluster.switches) == (2 if halves else 1)


def test_nothing_free_says_what_keeps_jobs_off() -> None:
    off = node("a", spec={"unschedulable": True})
    with pytest.raises(ProfileError, match="no node is free for a job: 1 cordoned, 1 not ready"):
        read(off, node("b", ready="False"))
    with pytest.raises(ProfileError, match="lists 1 nodes, none with allocatable nvidia"):
        read(node("cpu", None, 0))


def test_files_and_standard_input(tmp_path: Path) -> None:
    """A list may be longer than a cluster file; another JSON is a cluster file as before."""
    padded = node("a")
    padded["status"]["images"] = [{"names": ["x" * 1000]} for _ in range(MAX_BYTES // 1000 + 1)]
    text = json.dumps({"kind": "List", "items": [padded]})
    assert len(text) > MAX_BYTES
    (tmp_path / "nodes.json").write_text(text)
    assert names(load_cluster(str(tmp_path / "nodes.json"))) == ["a"]
    assert names(load_cluster("-", io.StringIO(text))) == ["a"]
    (tmp_path / "long.json").write_text(text.replace('"items"', '"itens"'))
    with pytest.raises(ProfileError, match="larger than 1 MiB"):
        load_cluster(str(tmp_path / "long.json"))
    assert node_list('{"items": [') is None
    assert node_list('{"items": 1}') is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(("8", "Ready", "True", "x")),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ("kind", "metadata", "labels", "name", "spec", "status", "allocatable", "taints",
             "nvidia.com/gpu", "conditions", "type", "nvidia.com/gpu.product", RACK)
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(JSON, max_size=4))
def test_any_list_is_a_cluster_or_an_input_error(items: list[Any]) -> None:
    try:
        found = read_node_list({"items": items}, "nodes.json", "h100")
    except InputError:
        return
    assert found.nodes
