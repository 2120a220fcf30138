"""``kubectl get nodes -o json``, read as a cluster: the nodes that a job may have, and where.

GPUs are allocatable extended resources; their type is a label of the vendor's feature discovery or
of the cloud; switches are labels of the cloud, of NVIDIA's topograph or of whoever set up Kueue's
topology. Pods in the same list (``kubectl get nodes,pods -A -o json``) say which GPUs are in use.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from layoutopt.errors import InputError, ProfileError
from layoutopt.hardware_profiles import catalog
from layoutopt.hardware_profiles.cluster import cluster_for, instance_cluster
from layoutopt.hardware_profiles.fragment import NVLINK, fragment
from layoutopt.hardware_profiles.schema import Cluster, Filled

MAX_BYTES = 64 * 2**20
"""A node takes 5 to 20 KB of JSON: some thousands of nodes."""
RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_KINDS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
)
"""Labels that name the GPU: NVIDIA's and AMD's feature discovery, GKE."""
_MACHINE = "node.kubernetes.io/instance-type"
_SHARING = "nvidia.com/gpu.sharing-strategy"
_TIERS = (
    ("region", "topology.kubernetes.io/region"),
    ("zone", "topology.kubernetes.io/zone"),
    ("core", "network.topology.nvidia.com/core"),
    ("core", "network.topology.nvidia.com/datacenter"),
    ("spine", "network.topology.nvidia.com/spine"),
    ("leaf", "network.topology.nvidia.com/leaf"),
    ("leaf", "network.topology.nvidia.com/block"),
    ("layer1", "topology.k8s.aws/network-node-layer-1"),
    ("layer2", "topology.k8s.aws/network-node-layer-2"),
    ("layer3", "topology.k8s.aws/network-node-layer-3"),
    ("block", "cloud.google.com/gce-topology-block"),
    ("subblock", "cloud.google.com/gce-topology-subblock"),
    ("block", "cloud.provider.com/topology-block"),
    ("rack", "cloud.provider.com/topology-rack"),
    (NVLINK, "network.topology.nvidia.com/accelerator"),
    (NVLINK, "nvidia.com/gpu.clique"),
)
"""Labels of where a node stands, outermost first: Kubernetes' own, NVIDIA topograph's (and its
earlier names), EKS's, GKE's, those of Kueue's documentation, and NVLink domains."""
_OFF = ("NoSchedule", "NoExecute")
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class ListedNode:
    """A node with GPUs: how many, of which kind, where it stands, and why no job may have it."""

    name: str
    gpus: int
    kind: str | None
    machine: str | None
    labels: Mapping[str, str]
    kept_off: str | None


def node_list(text: str) -> dict[str, Any] | None:
    """The document where ``text`` is a Kubernetes list with nodes; None where it is none."""
    if not text.lstrip().startswith("{") or '"items"' not in text:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and isinstance(data.get("items"), list) else None


def read_node_list(data: Mapping[str, Any], where: str, gpu: str | None = None) -> Cluster:
    """The nodes that jobs may have now, alike in GPU type and number, under their switches.

    Of several kinds that of ``gpu`` is taken, else the one with the most free GPUs. Raises
    ProfileError where no node is left, with what keeps jobs off.
    """
    items = [item for item in data["items"] if isinstance(item, Mapping)]
    busy = _busy(item for item in items if item.get("kind") == "Pod")
    nodes = [_node(item, busy) for item in items if item.get("kind", "Node") == "Node"]
    with_gpus = [node for node in nodes if node.gpus]
    if not with_gpus:
        raise ProfileError(
            f"{where} lists {len(nodes)} nodes, none with allocatable {' or '.join(RESOURCES)}",
            field="cluster",
        )
    chosen = _alike(with_gpus, where, gpu)
    cluster = _machine(chosen, gpu)
    paths, names = _paths(chosen)
    note = _left_out(with_gpus, chosen)
    found = fragment(cluster, paths, names)
    filled = (*found.filled, *([note] if note else []))
    source = "kubectl get nodes -o json"
    return found.model_copy(update={"name": where, "source": source, "filled": filled})


def _node(item: Mapping[str, Any], busy: Counter[str]) -> ListedNode:
    meta, spec, status = (_mapping(item.get(key)) for key in ("metadata", "spec", "status"))
    labels = {str(k): str(v) for k, v in _mapping(meta.get("labels")).items()}
    allocatable = _mapping(status.get("allocatable"))
    gpus = sum(_count(allocatable.get(resource)) for resource in RESOURCES)
    name = str(meta.get("name", ""))
    return ListedNode(
        name=name,
        gpus=gpus,
        kind=next((labels[key] for key in _KINDS if key in labels), None),
        machine=labels.get(_MACHINE),
        labels=labels,
        kept_off=_kept_off(spec, status, labels) or ("with GPUs in use" if busy[name] else None),
    )


def _kept_off(
    spec: Mapping[str, Any], status: Mapping[str, Any], labels: Mapping[str, str]
) -> str | None:
    """Why no training job may have the node, in a few words."""
    if spec.get("unschedulable") is True:
        return "cordoned"
    ready = [_mapping(one) for one in _list(status.get("conditions"))]
    if not any(one.get("type") == "Ready" and one.get("status") == "True" for one in ready):
        return "not ready"
    for taint in map(_mapping, _list(spec.get("taints"))):
        # A taint that is called like the resource is tolerated by pods that ask for it
        # (admission plugin ExtendedResourceToleration).
        if taint.get("effect") in _OFF and taint.get("key") not in RESOURCES:
            return f"tainted {str(taint.get('key'))[:60]}"
    if labels.get(_SHARING, "none") != "none" or labels.get(_KINDS[0], "").endswith("-SHARED"):
        return "with GPUs shared in time"
    return "with GPUs cut by MIG" if "-MIG-" in labels.get(_KINDS[0], "") else None


def _busy(pods: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """GPUs that pods hold, by node."""
    found: Counter[str] = Counter()
    for pod in pods:
        spec, status = _mapping(pod.get("spec")), _mapping(pod.get("status"))
        if status.get("phase") in _OVER:
            continue
        for container in map(_mapping, _list(spec.get("containers"))):
            asked = _mapping(container.get("resources"))
            wanted = _mapping(asked.get("requests")) or _mapping(asked.get("limits"))
            found[str(spec.get("nodeName"))] += sum(_count(wanted.get(one)) for one in RESOURCES)
    return found


def _alike(nodes: list[ListedNode], where: str, gpu: str | None) -> list[ListedNode]:
    """The free nodes of one GPU type and number that have the most GPUs."""
    wanted = catalog.find_gpu(gpu)[0].name if gpu is not None else None
    groups: dict[tuple[str | None, int], list[ListedNode]] = {}
    for node in nodes:
        if node.kept_off is None:
            groups.setdefault((_canonical(node), node.gpus), []).append(node)
    found = [
        group
        for (kind, _), group in groups.items()
        if wanted is None or kind is None or kind == wanted
    ]
    if not found:
        there = Counter(node.kept_off or f"{_canonical(node)}" for node in nodes)
        said = ", ".join(f"{count} {why}" for why, count in sorted(there.items()))
        what = f"with GPUs of type {gpu} is" if gpu else "is"
        raise ProfileError(
            f"{where}: no node {what} free for a job: {said}", field="cluster", value=gpu
        )
    return max(found, key=lambda group: sum(node.gpus for node in group))


def _canonical(node: ListedNode) -> str | None:
    """The GPU's name in the catalogue; the label itself where that does not know it."""
    if node.kind is not None:
        try:
            return catalog.find_gpu_name(node.kind)[0]
        except InputError:
            return node.kind
    machine = _instance(node)
    return catalog.load_instance(machine).gpu if machine else None


def _instance(node: ListedNode) -> str | None:
    """The cloud machine that the node is, where the catalogue has it with as many GPUs."""
    name = catalog.find_instance_name(node.machine) if node.machine else None
    if name is None:
        return None
    return name if catalog.load_instance(name).gpus_per_node == node.gpus else None


def _machine(nodes: list[ListedNode], gpu: str | None) -> Cluster:
    """The usual links of the GPU, those of the cloud machine where all nodes are the same one."""
    first = nodes[0]
    kind = _canonical(first) or gpu
    if kind is None:
        raise ProfileError(
            f"no label says which GPUs the nodes have ({', '.join(_KINDS)}): give --gpu",
            field="gpu",
        )
    device, _ = catalog.find_gpu(kind)
    machines = {_instance(node) for node in nodes}
    if len(machines) == 1 and (machine := machines.pop()) is not None:
        instance = catalog.load_instance(machine)
        if instance.instance and instance.gpu == device.name:
            return instance_cluster(instance)
    return cluster_for(device, gpus_per_node=first.gpus)


def _paths(nodes: list[ListedNode]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Switches over each node, and the tiers' names: labels that every one of them has."""
    kept: list[tuple[str, str]] = []
    for tier, label in _TIERS:
        if all(node.labels.get(label) for node in nodes) and tier not in dict(kept):
            kept.append((tier, label))
    paths = {node.name: tuple(node.labels[label] for _, label in kept) for node in nodes}
    return paths, [tier for tier, _ in kept]


def _left_out(nodes: list[ListedNode], chosen: list[ListedNode]) -> Filled | None:
    """How many nodes are not taken, and why."""
    names = {node.name for node in chosen}
    why = Counter(
        node.kept_off or f"of {node.gpus} x {_canonical(node)}"
        for node in nodes
        if node.name not in names
    )
    if not why:
        return None
    reason = ", ".join(f"{count} {words}" for words, count in sorted(why.items()))
    return Filled(
        option="nodes", value=f"{len(chosen)} of {len(nodes)}", reason=f"left out: {reason}"
    )


def _count(value: object) -> int:
    """A whole quantity as Kubernetes writes it; 0 for anything else."""
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
