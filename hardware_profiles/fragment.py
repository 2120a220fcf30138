"""The nodes that a scheduler has, under the switches that they hang on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layoutopt.hardware_profiles.schema import Cluster, Filled, Level, Switch

Paths = Mapping[str, tuple[str, ...]]
"""Node to the switches over it, outermost first; all as long."""


def fragment(cluster: Cluster, paths: Paths, names: Sequence[str] = ()) -> Cluster:
    """``cluster`` with those nodes and no others, and a network level for each tier of switches.

    ``names`` are what the tiers are called, outermost first. Nobody says how fast the links between
    switches are, so each tier is taken as fast as the network: the answer then keeps neighbours
    under one switch where that costs nothing. Where the scale-up link leaves the server (an NVL72
    rack), a tier called ``nvlink`` holds its domains; without one, switches are left out.
    """
    racks = cluster.gpu.rack_scale and cluster.levels[-2].gpus > cluster.gpus_per_node
    domains = len(names) - 1 if names and names[-1] == NVLINK else None
    kept = [] if racks and domains is None else _kept(paths)
    if not racks and domains in kept:
        kept.remove(domains)
    words = [names[n] if names else f"tier{n}" for n in kept]
    if racks and domains is not None and len(set(paths.values())) == len(paths) > 1:
        cluster = _alone(cluster)
    return cluster.model_copy(
        update={
            "nodes": len(paths),
            "levels": _levels(cluster, words, len(paths) * cluster.gpus_per_node),
            "switches": _tree({node: tuple(path[n] for n in kept) for node, path in paths.items()}),
            "filled": (*cluster.filled, *_filled(words)),
        }
    )


NVLINK = "nvlink"
"""Name of the tier whose domains the scale-up link joins."""


def _kept(paths: Paths) -> list[int]:
    """Tiers that say something: not those of one node a switch, nor those like the one above."""
    depth = len(next(iter(paths.values()), ()))
    kept: list[int] = []
    before = 1
    for tier in range(depth):
        groups = len({path[: tier + 1] for path in paths.values()})
        if before < groups < len(paths):
            kept.append(tier)
            before = groups
    return kept


def _tree(paths: Paths, over: str = "") -> tuple[Switch, ...]:
    """The switches of the outermost tier; without any, one over all nodes."""
    if not any(paths.values()):
        return (Switch(name=over or "nodes", nodes=tuple(paths)),)
    below: dict[str, dict[str, tuple[str, ...]]] = {}
    for node, path in paths.items():
        below.setdefault(path[0], {})[node] = path[1:]
    found = []
    for name, nodes in below.items():
        full = f"{over}/{name}" if over else name
        inner = _tree(nodes, full)
        last = not any(nodes.values())
        found.append(inner[0] if last else Switch(name=full, switches=inner))
    return tuple(found)


def _alone(cluster: Cluster) -> Cluster:
    """No two nodes share a scale-up domain: it ends at the node."""
    *inner, domain, network = cluster.levels
    domain = domain.model_copy(update={"gpus": cluster.gpus_per_node})
    return cluster.model_copy(update={"levels": (*inner, domain, network)})


def _levels(cluster: Cluster, words: Sequence[str], gpus: int) -> tuple[Level, ...]:
    """Those inside the node, one for each tier from the inside out, and one over all."""
    *inside, network = cluster.levels
    outer = []
    for word in reversed(words):
        like = inside.pop() if word == NVLINK else network
        # Until a job is placed (costmodel.fragments) no two of its nodes share a switch.
        outer.append(like.model_copy(update={"name": word, "gpus": cluster.gpus_per_node}))
    widest = max([gpus, *(level.gpus for level in inside)])
    return (*inside, *outer, network.model_copy(update={"gpus": widest}))


def _filled(words: Sequence[str]) -> list[Filled]:
    return [
        Filled(
            option=f"levels.{word}",
            value="as fast as the network",
            reason="a list of nodes does not say what links between switches carry; a cluster "
            "file with levels and switches does",
        )
        for word in words
        if word != NVLINK
    ]
