"""A scheduler's fragment, from file to answer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.schemas import check
from tests.conftest import FULL

FRAGMENT = str(Path(__file__).parents[2] / "docs" / "examples" / "fragmented.yaml")
ASKED = ("--model", "405B", "--cluster", FRAGMENT)


def test_256_nodes_on_16_switches(run: Run) -> None:
    """All nodes; with the full counts also as documented, where fewer may be taken."""
    ran = run("solve", *ASKED, *(() if FULL else ("--gpus", "2048")), "--json")
    answer = ran.json
    assert ran.code == 0
    check(answer, "plan")
    assert answer["status"] == "optimal"
    place, layout = answer["placement"], answer["layout"]
    assert len(set(place["nodes"])) == len(place["nodes"]) == layout["gpus"] // 8
    assert place["ranks"][place["nodes"][1]] == [8, 15]
    assert len(place["stages"]) == layout["pp"]
    assert any(len(stage["switches"]) == 1 for stage in place["stages"])
    again = run("estimate", *ASKED, "--layout", json.dumps(layout), "--json")
    assert again.code == 0
    assert abs(again.json["step"]["time_s"] / answer["step"]["time_s"] - 1) < 1e-9
    assert again.json["placement"]["nodes"] == place["nodes"]
    table = run("estimate", *ASKED, "--layout", json.dumps(layout)).out
    assert "under switch (nodes)" in table


def test_a_fragment_that_is_none(run: Run, tmp_path: Path) -> None:
    text = Path(FRAGMENT).read_text("utf-8").replace("leaf16: n[253-256]", "leaf16: n[250-256]")
    broken = tmp_path / "broken.yaml"
    broken.write_text(text, "utf-8")
    ran = run("solve", "--model", "8B", "--cluster", str(broken))
    assert ran.code == 2
    assert "switches.leaf16 lists n250, which hangs on leaf15 too" in ran.err
