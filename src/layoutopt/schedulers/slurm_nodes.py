"""Nodes from Slurm: JSON of scontrol or sinfo where there is, else scontrol's lines.

``scontrol show nodes --json`` is of Slurm 23.02 and later, ``sinfo --json`` of 21.08 and later in
two shapes (a list of nodes; groups of nodes), the lines of ``scontrol show nodes -o`` are always
there, and so is ``scontrol show topology``. State and features are a word and a comma list in older
versions, lists in newer ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from layoutopt.errors import ToolError
from layoutopt.schedulers.nodes import Node
from layoutopt.schedulers.tools import run_tool, try_tool

_GRES = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?(?::(\d+))?(?:\([^)]*\))?(?=,|$)")
_PAIR = re.compile(r"(\w+)=(.*?)(?=\s+\w+=|$)")


def slurm_nodes() -> list[Node]:
    """Every node that Slurm knows; raises ToolError where no command of it answers."""
    for words in (["scontrol", "show", "nodes", "--json"], ["sinfo", "--json"]):
        done = try_tool(words)
        if done.returncode == 0 and done.stdout.lstrip().startswith("{"):
            try:
                found = nodes_of_json(json.loads(done.stdout))
            except (ValueError, RecursionError, TypeError, AttributeError):
                continue
            if found:
                return found
    found = nodes_of_lines(run_tool(["scontrol", "show", "nodes", "-o"]))
    if not found:
        raise ToolError("scontrol show nodes -o lists no node")
    return found


def slurm_switches() -> dict[str, tuple[str, ...]]:
    """The switches over each node, outermost first; empty where Slurm knows of none."""
    done = try_tool(["scontrol", "show", "topology"])
    return paths_of_lines(done.stdout) if done.returncode == 0 else {}


def paths_of_lines(text: str) -> dict[str, tuple[str, ...]]:
    """The same of ``scontrol show topology``: trees (SwitchName=) or blocks (BlockName=).

    Empty where nodes hang at unequal depths, or under several leaves.
    """
    leaf: dict[str, str] = {}
    above: dict[str, str] = {}
    for line in text.splitlines():
        pairs = dict(_PAIR.findall(line.strip()))
        name = str(pairs.get("SwitchName") or pairs.get("BlockName") or "")
        if not name:
            continue
        above |= dict.fromkeys(expand(pairs.get("Switches", "")), name)
        if pairs.get("Level", "0") == "0":
            nodes = expand(pairs.get("Nodes", ""))
            if any(node in leaf for node in nodes):
                return {}
            leaf |= dict.fromkeys(nodes, name)
    paths: dict[str, tuple[str, ...]] = {}
    for node, switch in leaf.items():
        path = [switch]
        while path[0] in above and above[path[0]] not in path:
            path.insert(0, above[path[0]])
        paths[node] = tuple(path)
    return paths if len({len(path) for path in paths.values()}) == 1 else {}


def nodes_of_json(document: Mapping[str, Any]) -> list[Node]:
    """Nodes of either command's JSON, in any of its shapes."""
    records = document.get("nodes")
    if isinstance(records, list) and records and isinstance(records[0], Mapping):
        return [_of_record(record) for record in records]
    groups = document.get("sinfo")
    return [node for group in groups or () for node in _of_group(group)]


def nodes_of_lines(text: str) -> list[Node]:
    """Nodes of ``scontrol show nodes -o``: one line each, NAME=VALUE."""
    found = []
    for line in text.splitlines():
        pairs = dict(_PAIR.findall(line.strip()))
        if "NodeName" in pairs:
            gpus, kind = _gres(pairs.get("Gres", ""))
            found.append(
                Node(
                    name=pairs["NodeName"],
                    gpus=gpus,
                    kind=kind,
                    states=_states(re.split(r"[+*~#!%$@^-]+", pairs.get("State", ""))),
                    partitions=_words(pairs.get("Partitions", "")),
                    features=_words(pairs.get("ActiveFeatures", "")),
                )
            )
    return found


def _of_record(record: Mapping[str, Any]) -> Node:
    gpus, kind = _gres(str(record.get("gres") or ""))
    flags = record.get("state_flags") or []
    return Node(
        name=str(record.get("name") or record.get("hostname")),
        gpus=gpus,
        kind=kind,
        states=_states([*_list(record.get("state")), *_list(flags)]),
        partitions=tuple(_list(record.get("partitions"))),
        features=tuple(_list(record.get("features"))),
    )


def _of_group(group: Mapping[str, Any]) -> list[Node]:
    """sinfo of 23.11 and later: nodes of equal state together."""
    nodes = group.get("nodes") or {}
    names = _list(nodes.get("nodes")) if isinstance(nodes, Mapping) else []
    gres, state = group.get("gres") or {}, group.get("node") or {}
    features, partition = group.get("features") or {}, group.get("partition") or {}
    gpus, kind = _gres(str(gres.get("total") or ""))
    return [
        Node(
            name=name,
            gpus=gpus,
            kind=kind,
            states=_states(_list(state.get("state"))),
            partitions=tuple(_list(partition.get("name"))),
            features=tuple(_list(features.get("total"))),
        )
        for entry in names
        for name in expand(entry)
    ]


def expand(text: str) -> list[str]:
    """``n[1-3,7],head`` as names; zeros in front are kept."""
    found = []
    for prefix, inside in re.findall(r"([^,\[]+)(?:\[([^\]]+)\])?(?:,|$)", text):
        if not inside:
            found.append(prefix)
            continue
        for part in inside.split(","):
            first, dash, last = part.partition("-")
            numbers = range(int(first), int(last if dash else first) + 1)
            found += [f"{prefix}{str(number).zfill(len(first))}" for number in numbers]
    return found


def _gres(text: str) -> tuple[int, str | None]:
    """GPUs and their type of ``gpu:h100:8(S:0-1),nic:4``; a gpu entry without a number is one."""
    count, kind = 0, None
    for name, number in _GRES.findall(text):
        if name.isdigit() and not number:
            name, number = "", name
        count += int(number or 1)
        kind = name or kind
    return count, kind


def _states(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word.strip().lower() for word in words if word.strip())


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word and word != "(null)")


def _list(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [word for word in value.split(",") if word]
    return [str(item) for item in value] if isinstance(value, Iterable) else [str(value)]
