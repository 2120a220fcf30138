"""Nodes of Kubernetes, from kubectl's JSON to an answer that names them."""

from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.hardware_profiles.test_node_list import RACK, node


def test_a_list_from_kubectl_is_solved_and_every_rank_has_a_node(run: Run) -> None:
    """Three nodes in one rack and two in another; two of them do for 16 GPUs."""
    racks = ("r1", "r1", "r1", "r2", "r2")
    nodes = [node(f"gpu-{n}", labels={RACK: rack}) for n, rack in enumerate(racks)]
    text = json.dumps({"kind": "List", "items": nodes})
    asked = ("--model", "8B", "--cluster", "-", "--gpus", "16", "--json")
    ran = run("solve", *asked, "--fix", "tp=1,cp=1,pp=2,micro_batch=1,zero_stage=1", stdin=text)
    assert ran.code == 0, ran.err
    place = ran.json["placement"]
    assert len(place["nodes"]) == 2
    assert set(place["nodes"]) < {f"gpu-{n}" for n in range(5)}
    assert all(len(stage["switches"]) == 1 for stage in place["stages"])
    filled = {one["option"] for one in ran.json["request"]["filled"]}
    assert "cluster.levels.rack" in filled


def test_a_list_without_free_nodes_is_refused_in_words(run: Run) -> None:
    off = node("a", spec={"unschedulable": True})
    text = json.dumps({"kind": "List", "items": [off]})
    ran = run("solve", "--model", "8B", "--cluster", "-", stdin=text)
    assert ran.code == 2
    assert "standard input: no node is free for a job: 1 cordoned" in ran.err
