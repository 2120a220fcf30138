"""A cluster of several pools, from file to answer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.schemas import check

MIXED = str(Path(__file__).parents[2] / "docs" / "examples" / "mixed.yaml")
ASKED = ("--model", "70B", "--cluster", MIXED)


def test_512_h100_and_1024_a100(run: Run) -> None:
    ran = run("solve", *ASKED, "--json")
    answer = ran.json
    assert ran.code == 0
    check(answer, "plan")
    assert answer["status"] == "optimal"
    layout = answer["layout"]
    assert set(layout["pools_per_stage"]) == {"h100", "a100"}
    assert sum(layout["layers_per_stage"]) == 80
    assert {stage["pool"] for stage in answer["memory"]["stages"]} == {"h100", "a100"}
    assert answer["search"]["bound"] <= answer["run"]["wall_time_s"]
    assert answer["search"]["wall_s"] > 0
    assert any("alone would take" in sentence for sentence in answer["explain"])
    again = run("estimate", *ASKED, "--layout", json.dumps(layout), "--json")
    assert again.code == 0
    assert again.json["step"] == answer["step"]
    assert again.json["run"] == answer["run"]


def test_a_layout_by_hand_and_one_that_is_none(run: Run) -> None:
    degrees = "tp=8,pp=24,dp=8,layers_per_stage=8*5+8*3+8*2"
    ran = run("estimate", *ASKED, "--layout", f"{degrees},pools_per_stage=8*h100+16*a100")
    assert ran.code == 0
    assert "512 x h100-sxm-80gb + 1,024 x a100-sxm-80gb" in " ".join(ran.out.split())
    refused = run("estimate", *ASKED, "--layout", f"{degrees},pools_per_stage=24*h100")
    assert refused.code == 2
    assert "the pool h100 has 512" in refused.err
    without = run("estimate", *ASKED, "--layout", "tp=8,pp=24,dp=8")
    assert without.code == 2
    assert "pools_per_stage" in without.err
