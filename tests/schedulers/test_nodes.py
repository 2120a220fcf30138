"""Nodes as Slurm's commands print them, in the shapes of its versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layoutopt.errors import InputError, ToolError
from layoutopt.schedulers import slurm_nodes, tools
from layoutopt.schedulers.nodes import Node, pool_for
from layoutopt.schedulers.slurm_nodes import (
    expand,
    nodes_of_json,
    nodes_of_lines,
    paths_of_lines,
)

OLD = json.loads((Path(__file__).parent / "sinfo-22.05.json").read_text())
NEW = {
    "nodes": [
        {
            "name": "a1",
            "gres": "gpu:h200:8(S:0-1),nic:4",
            "state": ["IDLE", "DRAIN"],
            "features": ["h200"],
            "partitions": ["train"],
        },
        {"name": "a2", "gres": "gpu:h200:8(S:0-1)", "state": ["IDLE"], "partitions": ["train"]},
        {"name": "login", "gres": "", "state": ["IDLE"], "partitions": ["cpu"]},
    ]
}
GROUPED = {
    "sinfo": [
        {
            "nodes": {"nodes": ["b[01-03]"]},
            "gres": {"total": "gpu:a100:4"},
            "node": {"state": ["MIXED"]},
            "partition": {"name": "main"},
        }
    ]
}
LINES = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=1 Gres=gpu:h100:8 State=IDLE Partitions=gpu OS=Linux 6.1 #1
NodeName=n2 Arch=x86_64 ActiveFeatures=h100,nvlink Gres=gpu:h100:8(S:0-1) State=IDLE+DRAIN
NodeName=n3 Gres=(null) State=DOWN* Partitions=gpu,cpu
"""


def test_old_records() -> None:
    nodes = nodes_of_json(OLD)
    assert [node.name for node in nodes] == ["n1", "n2", "n3", "n4"]
    assert nodes[0] == Node("n1", 8, "h100", frozenset({"idle"}), ("gpu",), ("h100", "nvlink"))
    assert nodes[0].free


def test_new_records_and_groups() -> None:
    drained, idle, login = nodes_of_json(NEW)
    assert (drained.gpus, drained.kind, drained.free) == (8, "h200", False)
    assert idle.free
    assert login.gpus == 0
    grouped = nodes_of_json(GROUPED)
    assert [node.name for node in grouped] == ["b01", "b02", "b03"]
    assert not grouped[0].free


def test_lines() -> None:
    first, second, third = nodes_of_lines(LINES)
    assert (first.gpus, first.kind, first.free, first.partitions) == (8, "h100", True, ("gpu",))
    assert (second.gpus, second.free, second.features) == (8, False, ("h100", "nvlink"))
    assert (third.gpus, third.kind, third.free) == (0, None, False)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],head", ["n1", "n2", "n3", "n7", "head"]),
        ("gpu[008-010]", ["gpu008", "gpu009", "gpu010"]),
    ],
)
def test_lists_of_names(text: str, names: list[str]) -> None:
    assert expand(text) == names


def node(name: str, gpus: int, kind: str | None, *states: str) -> Node:
    return Node(name, gpus, kind, frozenset(states), ("gpu",))


def test_the_pool_with_most_free_gpus_is_taken() -> None:
    nodes = [
        node("a", 8, "h100", "idle"),
        node("b", 8, "a100", "idle"),
        node("c", 8, "a100", "idle"),
        node("d", 8, "h100", "allocated"),
    ]
    assert pool_for(nodes, None, None).kind == "a100"
    assert len(pool_for(nodes, "h100-sxm-80gb", None).free) == 1


@pytest.mark.parametrize(
    ("kind", "partition", "why"),
    [
        ("v100", None, "no node has GPUs of type v100; there are 1 x 8 h100"),
        (None, "cpu", "partition cpu has no nodes; partitions are gpu"),
    ],
)
def test_what_is_not_there_is_said(kind: str | None, partition: str | None, why: str) -> None:
    with pytest.raises(InputError, match=why):
        pool_for([node("a", 8, "h100", "idle")], kind, partition)


def fake(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH beside the system's shell tools."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    return tmp_path


def test_lines_are_read_where_no_json_is(path: Path) -> None:
    fake(path, "sinfo", "echo 'unrecognized option' >&2; exit 1")
    body = f"case \"$*\" in *json*) exit 1;; esac\ncat <<'END'\n{LINES}END"
    fake(path, "scontrol", body)
    assert [one.name for one in slurm_nodes.slurm_nodes()] == ["n1", "n2", "n3"]


def test_json_that_is_none_is_passed_over(path: Path) -> None:
    fake(path, "sinfo", "echo '{broken'")
    body = f"case \"$*\" in *json*) echo '{{\"nodes\": 7}}'; exit 0;; esac\ncat <<'END'\n{LINES}END"
    fake(path, "scontrol", body)
    assert len(slurm_nodes.slurm_nodes()) == 3


def test_a_command_that_hangs_is_a_tool_s_fault(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(path, "scontrol", "sleep 30")
    monkeypatch.setattr(tools, "SECONDS", 0.2)
    with pytest.raises(ToolError, match=r"scontrol has not answered for 0\.2 s"):
        tools.try_tool(["scontrol"], 0.2)
    with pytest.raises(ToolError, match="sbatchx is not installed"):
        tools.run_tool(["sbatchx"])


TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n3,n4
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
"""


def test_switches_over_nodes() -> None:
    assert paths_of_lines(TREE) == {
        "n1": ("spine", "leaf1"),
        "n2": ("spine", "leaf1"),
        "n3": ("spine", "leaf2"),
        "n4": ("spine", "leaf2"),
    }
    blocks = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 Nodes=n[3-4]\n"
    assert paths_of_lines(blocks)["n3"] == ("b2",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No topology information available\n",
        TREE + "SwitchName=far Level=0 Nodes=n9\n",  # not as deep as the others
        TREE + "SwitchName=leaf3 Level=0 Nodes=n4\n",  # n4 hangs on two
        "SwitchName=a Level=0 Nodes=n1 Switches=a\nSwitchName=b Level=1 Switches=a,b\n",
    ],
)
def test_trees_that_say_nothing_sure_are_left_out(text: str) -> None:
    assert len(set(map(len, paths_of_lines(text).values()))) <= 1
    assert "n9" not in paths_of_lines(text)
