"""layoutopt simulate: answers by the schema, files that are asked for, messages for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import layoutopt
from tests.cli.conftest import Run
from tests.cli.schemas import check

STEP = ("simulate", "--model", "8B", "--gpus", "16", "--global-batch", "32")
LAYOUT = ("--layout", "tp=1,pp=4,dp=4")


def test_a_step_is_answered_by_the_schema(run: Run) -> None:
    answer = run(*STEP, *LAYOUT, "--json").json
    check(answer, "simulation")
    assert answer["kind"] == "step"
    assert abs(answer["step"]["difference"]) < 0.01
    assert [stage["units_in_flight"] for stage in answer["stages"]] == [4, 3, 2, 1]
    assert answer["memory"]["peak_allocated_bytes"] == answer["memory"]["estimate_bytes"]


def test_the_table_says_what_was_simulated(run: Run, tmp_path: Path) -> None:
    trace, plot = tmp_path / "a.json", tmp_path / "a.svg"
    ran = run(
        *STEP,
        *LAYOUT,
        "--straggler",
        "stage=1,slow=1.5",
        "--trace",
        str(trace),
        "--plot",
        str(plot),
    )
    assert ran.code == 0
    assert "stage 1 1.5 times as slow" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100 + len(str(tmp_path))
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert plot.read_text("utf-8").startswith("<svg")


def test_python_simulates_the_same() -> None:
    answer = layoutopt.simulate(
        model="8B",
        gpus=16,
        global_batch=32,
        layout={"pp": 4},
        straggler={"stage": 2, "slow": 2},
        jitter="3%",
        seed=4,
    )
    again = answer.to_dict()["disturbance"]
    assert again["stragglers"] == [{"stage": 2, "slow": 2.0}]
    assert (again["jitter"], again["seed"], again["allowance"]) == (0.03, 4, 0.0)
    assert answer.difference > 0.2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--straggler", "stage=4,slow=2"), "straggler stage 4 is above 3"),
        (("--straggler", "stage=1"), "stage=STAGE,slow=FACTOR"),
        (("--straggler", "stage=1,slow=0"), "above 0"),
        (("--straggler", "stag=1,slow=2"), "nearest: stage"),
        (("--straggler", "stage=1,slow=2", "--straggler", "stage=1,slow=3"), "given twice"),
        (("--jitter", "lots"), "such as 0.05 or 5%"),
        (("--jitter", "-1"), "such as 0.05 or 5%"),
        (("--seed", "-1"), "below 0"),
        (("--trace", "step.txt"), "end in .json"),
        (("--plot", "step.png"), "end in .svg"),
        (("--plot", "nowhere/at/all/step.svg"), "No such file"),
    ],
)
def test_wrong_options_are_refused_in_words(run: Run, options: tuple[str, ...], words: str) -> None:
    ran = run(*STEP, *LAYOUT, *options, "--json")
    assert ran.code == 2
    assert words in ran.err
    check(ran.json, "error")


def test_a_layout_that_breaks_a_rule_is_refused(run: Run) -> None:
    ran = run(*STEP, "--layout", "tp=1,pp=4,dp=3")
    assert ran.code == 2
    assert "= 12 GPUs" in ran.err
