"""Which nodes hold which ranks, as JSON and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.node_map import Placement

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.report.answer import Answer

_SHOWN = 32
"""Stages that the table lists; the JSON lists all."""


def placement_json(placement: Placement) -> dict[str, Any]:
    """The JSON ``placement``."""
    each = placement.ranks_per_node
    return {
        "nodes": list(placement.nodes),
        "ranks_per_node": each,
        "ranks": {name: [n * each, (n + 1) * each - 1] for n, name in enumerate(placement.nodes)},
        "chunk_nodes": list(placement.chunk_nodes),
        "stages": [
            {"stage": one.stage, "nodes": list(one.nodes), "switches": one.switches}
            for one in placement.stages
        ],
        "unused": list(placement.unused),
        "proved": placement.proved,
    }


def placement_part(answer: Answer) -> list[RenderableType]:
    """Stages and the switches that their nodes hang on."""
    # Late: an answer as JSON needs no tables.
    from layoutopt.report.console import table

    if answer.placement is None:
        return []
    rows = [
        (
            str(one.stage),
            str(len(one.nodes)),
            ", ".join(f"{switch} ({nodes})" for switch, nodes in one.switches.items()),
        )
        for one in answer.placement.stages[:_SHOWN]
    ]
    more = len(answer.placement.stages) - _SHOWN
    if more > 0:
        rows.append(("...", "", f"{more} more: --json lists all, with the nodes"))
    return ["", table(rows, ("Stage", "nodes", "under switch (nodes)"), right=(0, 1))]
