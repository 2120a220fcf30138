"""Servers of a cluster as a scheduler sees them, and which of them a job may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from layoutopt.errors import InputError

_FREE = {"idle"}
_HELD = {
    "drain", "draining", "drained", "down", "fail", "failing", "maint", "reserved", "planned",
    "not_responding", "power_down", "powered_down", "powering_down", "reboot", "reboot_requested",
    "future", "unknown", "invalid", "blocked", "no_respond",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """A server: its GPUs, their type as the scheduler writes it, and its states, lower case."""

    name: str
    gpus: int
    kind: str | None
    states: frozenset[str]
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """No job is on it and none is kept off it."""
        return bool(self.states & _FREE) and not self.states & _HELD

    @property
    def state(self) -> str:
        """The states in one word."""
        return "+".join(sorted(self.states)) or "unknown"


@dataclass(frozen=True)
class Pool:
    """Nodes that are alike: one GPU type, as many on each."""

    kind: str | None
    gpus_per_node: int
    nodes: tuple[Node, ...]

    @property
    def free(self) -> tuple[Node, ...]:
        """The nodes that a job may have now."""
        return tuple(node for node in self.nodes if node.free)


def pools(nodes: Iterable[Node]) -> list[Pool]:
    """Nodes by GPU type and number, those with the most free GPUs first."""
    groups: dict[tuple[str | None, int], list[Node]] = {}
    for node in nodes:
        if node.gpus:
            groups.setdefault((node.kind, node.gpus), []).append(node)
    found = [Pool(kind, gpus, tuple(group)) for (kind, gpus), group in groups.items()]
    return sorted(found, key=lambda pool: (-len(pool.free) * pool.gpus_per_node, str(pool.kind)))


def pool_for(nodes: Iterable[Node], kind: str | None, partition: str | None) -> Pool:
    """The pool to use: of the named type and partition, else the one with the most free GPUs.

    Raises InputError where there is none, with what there is.
    """
    nodes = list(nodes)
    inside = [node for node in nodes if partition is None or partition in node.partitions]
    if not inside:
        known = tuple(sorted({name for node in nodes for name in node.partitions}))
        raise InputError(
            f"partition {partition} has no nodes; partitions are {', '.join(known) or 'none'}",
            field="partition",
            value=partition,
            nearest=known,
        )
    found = [pool for pool in pools(inside) if kind is None or _same(pool.kind, kind)]
    if not found:
        there = ", ".join(f"{len(p.nodes)} x {p.gpus_per_node} {p.kind}" for p in pools(inside))
        raise InputError(
            f"no node has GPUs of type {kind}; there are {there or 'no nodes with GPUs'}"
            if kind
            else f"none of {len(inside)} nodes has GPUs (GRES gpu)",
            field="gpu",
            value=kind,
        )
    return found[0]


def states_of(pool: Pool) -> str:
    """``3 allocated, 1 idle+drain``: what keeps nodes from being free."""
    counts = Counter(node.state for node in pool.nodes)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def _same(mine: str | None, asked: str) -> bool:
    """The scheduler's short name of a GPU against a person's: h100 against h100-sxm-80gb."""
    if mine is None:
        return True
    short, long = sorted((mine.lower(), asked.lower()), key=len)
    return long == short or long.startswith((f"{short}-", f"{short}_"))
