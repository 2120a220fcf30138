"""Clusters: the usual one around a GPU, a cloud machine's."""

from __future__ import annotations

from layoutopt.hardware_profiles import catalog
from layoutopt.hardware_profiles.defaults import (
    defaults,
    price_of,
    scale_out_level,
    scale_up_levels,
    watts_of,
)
from layoutopt.hardware_profiles.schema import MAX_GPUS, Cluster, Filled, Gpu, Instance, Level
from layoutopt.units import format_bandwidth


def default_cluster(gpu: Gpu, gpus: int | None = None) -> Cluster:
    """The usual cluster of a GPU: its scale-up domain, its usual network adapters.

    ``gpus`` None: as many nodes as are asked for; else just enough nodes for that many.
    """
    cluster = cluster_for(gpu)
    if gpus is None:
        return cluster
    nodes = -(-gpus // cluster.gpus_per_node)
    return with_nodes(cluster, nodes)


def cluster_for(
    gpu: Gpu,
    gpus_per_node: int | None = None,
    nvlink_domain: int | None = None,
    internode_bytes_per_s: float | None = None,
) -> Cluster:
    """A cluster of any size, with those figures where given and the GPU's usual ones where not.

    ``internode_bytes_per_s`` is per GPU, one direction.
    """
    per_node = gpus_per_node or gpu.gpus_per_node
    domain = nvlink_domain or gpu.link_domain_gpus
    inner = scale_up_levels(gpu, per_node, domain)
    outer = scale_out_level(gpu, MAX_GPUS, internode_bytes_per_s)
    known = defaults()
    watts, watts_filled = watts_of(gpu)
    price, price_filled = price_of(gpu)
    filled = [
        *_filled_network(gpu, inner, outer, internode_bytes_per_s),
        known.filled("storage.write", "storage.write"),
        known.filled("storage.write_per_node", "storage.write_per_node"),
        known.filled("failures_per_gpu_hour", "failures_per_gpu_hour"),
        *filter(None, (price_filled, watts_filled)),
    ]
    return Cluster(
        name=gpu.name,
        gpu=gpu,
        gpus_per_node=per_node,
        levels=(*inner, outer),
        storage=known.storage,
        failures_per_gpu_hour=known.failures_per_gpu_hour,
        usd_per_gpu_hour=price,
        watts_per_gpu=watts,
        filled=tuple(filled),
    )


def instance_cluster(instance: Instance) -> Cluster:
    """A cluster of any number of those cloud machines.

    An offer that names no machine is a price: the GPU's usual server is taken.
    """
    gpu = catalog.load_gpu(instance.gpu)
    per_node = instance.gpus_per_node if instance.instance else None
    network = instance.node_bytes_per_s_one_way
    share = network / instance.gpus_per_node if network else None
    cluster = cluster_for(gpu, per_node, None, share)
    price = instance.usd_per_gpu_hour
    changes: dict[str, object] = {"name": instance.name, "source": f"{instance.provider} machine"}
    if price is not None:
        kept = tuple(one for one in cluster.filled if one.option != "usd_per_gpu_hour")
        changes |= {"usd_per_gpu_hour": price, "filled": kept}
    return cluster.model_copy(update=changes)


def with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """The same cluster with that many nodes; its last level spans them."""
    last = cluster.levels[-1]
    inner = cluster.levels[-2].gpus if len(cluster.levels) > 1 else 1
    gpus = max(nodes * cluster.gpus_per_node, inner)
    levels = (*cluster.levels[:-1], last.model_copy(update={"gpus": gpus}))
    return cluster.model_copy(update={"nodes": nodes, "levels": levels})


def with_network(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """The same cluster with another network between nodes: bytes/s per GPU, one direction.

    Levels inside the server or the scale-up domain keep theirs.
    """
    inside = max(cluster.gpus_per_node, cluster.gpu.link_domain_gpus)
    last = len(cluster.levels) - 1
    levels = tuple(
        level.model_copy(update={"bytes_per_s_per_gpu_one_way": bytes_per_s})
        if n == last or level.gpus > inside
        else level
        for n, level in enumerate(cluster.levels)
    )
    return cluster.model_copy(update={"levels": levels})


def _filled_network(
    gpu: Gpu, inner: list[Level], outer: Level, given: float | None
) -> list[Filled]:
    """What was taken for the levels' bandwidths, which decides the answer."""
    found = [
        Filled(
            option=f"levels.{level.name}",
            value=f"{format_bandwidth(level.bytes_per_s_per_gpu_one_way)} over {level.gpus} GPUs",
            reason=f"{gpu.link_kind} of {gpu.name}",
        )
        for level in inner
    ]
    if given is None:
        value = format_bandwidth(outer.bytes_per_s_per_gpu_one_way)
        if gpu.scaleout_bytes_per_s_one_way is None:
            key = "scaleout_bandwidth_one_way"
            found.append(defaults().filled("levels.network", key, value))
        else:
            reason = f"usual network adapter of {gpu.name}, per GPU and direction"
            found.append(Filled(option="levels.network", value=value, reason=reason))
    return found
