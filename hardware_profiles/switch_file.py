"""``switches`` of a cluster file: the nodes of a fragment and the tree of switches over them."""

from __future__ import annotations

import re
from typing import Any

from layoutopt.hardware_profiles.reading import Fields
from layoutopt.hardware_profiles.schema import Level, Switch

MOST_NODES = 100_000
_RANGE = re.compile(r"([A-Za-z0-9_.-]*)\[(\d+)-(\d+)\]\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z", re.ASCII)


def read_switches(fields: Fields) -> tuple[Switch, ...]:
    """The outermost switches. Each key is a switch; its value lists nodes, or other switches.

    ``n[001-018]`` stands for n001 to n018. All nodes lie equally deep.
    """
    given = fields.mapping("switches", required=True)
    below: dict[str, list[str]] = {}
    total = 0
    for name in [] if given is None else given.data:
        below[str(name)] = _names(given or fields, str(name))
        total += len(below[str(name)])
        if total > MOST_NODES:
            raise fields.error("switches", f"lists more than {MOST_NODES:,} nodes")
    if not below:
        raise fields.error("switches", "is empty; write leaf1: [n1, n2]")
    _refuse_twice(fields, below)
    roots = [name for name in below if not any(name in names for names in below.values())]
    found = tuple(_switch(fields, name, below) for name in roots)
    if sum(_count(one) for one in found) < len(below):
        raise fields.error("switches", "hang on one another in a circle")
    depths = {depth for one in found for depth in _depths(one)}
    if len(depths) != 1:
        raise fields.error(
            "switches",
            f"put nodes {' and '.join(map(str, sorted(depths)))} switches deep: all "
            "nodes have to lie equally deep",
        )
    return found


def tiers(switches: tuple[Switch, ...]) -> int:
    """Tiers of switches that a job may have to cross: a single switch over all is none of them."""
    count = 0
    while switches:
        if len(switches) > 1:
            count += 1
        elif count == 0 and not switches[0].switches:
            return 0
        switches = tuple(one for switch in switches for one in switch.switches)
    return count


def check_levels(fields: Fields, levels: tuple[Level, ...], per_node: int, count: int) -> None:
    """One level inside the node or more, one for each tier, one over all; from fast to slow."""
    inner = [level for level in levels if level.gpus <= per_node and level is not levels[-1]]
    outer = levels[len(inner) :]
    if len(outer) != count + 1:
        raise fields.error(
            "levels",
            f"has {len(outer)} beyond the node, but the switches stand in {count} tiers: "
            f"{count + 1} are needed, one under each tier's switches and one over all",
            value=len(outer),
        )
    for n in range(1, len(outer)):
        near, far = outer[n - 1], outer[n]
        if far.usable_bytes_per_s > near.usable_bytes_per_s or far.latency_s < near.latency_s:
            raise fields.error(
                f"levels[{len(inner) + n}]",
                f"({far.name}) is faster than {near.name} below it: levels over switches run from "
                "fast to slow",
            )


def _names(fields: Fields, switch: str) -> list[str]:
    """The nodes or switches that hang on one switch."""
    value = fields.take(switch, required=True)
    words = value if isinstance(value, list) else [value]
    found: list[str] = []
    for word in words:
        found += _expanded(fields, switch, word)
    if not found:
        raise fields.error(switch, "has nothing on it; write [n1, n2]")
    return found


def _expanded(fields: Fields, switch: str, word: Any) -> list[str]:
    text = word.strip() if isinstance(word, str) else str(word)
    match = _RANGE.match(text)
    if not match:
        if not isinstance(word, str) or not _NAME.match(text):
            raise fields.error(
                switch,
                f"lists {text[:40]!r}; names of nodes are needed, as n7 or n[1-18]",
                value=text,
            )
        return [text]
    prefix, first, last = match.groups()
    if int(first) > int(last) or int(last) - int(first) >= MOST_NODES:
        raise fields.error(switch, f"lists {text[:40]!r}, which counts no nodes", value=text)
    width = len(first) if first.startswith("0") else 0
    return [f"{prefix}{n:0{width}d}" for n in range(int(first), int(last) + 1)]


def _refuse_twice(fields: Fields, below: dict[str, list[str]]) -> None:
    seen: dict[str, str] = {}
    for switch, names in below.items():
        for name in names:
            if name in seen:
                raise fields.error(
                    f"switches.{switch}",
                    f"lists {name}, which hangs on {seen[name]} too",
                    value=name,
                )
            seen[name] = switch


def _switch(fields: Fields, name: str, below: dict[str, list[str]]) -> Switch:
    """A root's tree: since a name hangs on one switch, no path comes back to the root."""
    names = below[name]
    inner = [one for one in names if one in below]
    if inner and len(inner) != len(names):
        raise fields.error(
            f"switches.{name}", "holds nodes and switches; it has to hold one of them"
        )
    return Switch(
        name=name,
        nodes=() if inner else tuple(names),
        switches=tuple(_switch(fields, one, below) for one in inner),
    )


def _count(switch: Switch) -> int:
    return 1 + sum(_count(one) for one in switch.switches)


def _depths(switch: Switch) -> set[int]:
    if not switch.switches:
        return {1}
    return {1 + depth for one in switch.switches for depth in _depths(one)}
