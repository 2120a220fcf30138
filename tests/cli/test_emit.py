"""layoutopt emit, solve --emit and estimate --from-launch, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

ESTIMATE = (
    "estimate",
    "--model",
    "8B",
    "--gpus",
    "8",
    "--framework",
    "megatron",
    "--layout",
    "tp=2",
)


@pytest.fixture
def plan(run: Run) -> str:
    return run(*ESTIMATE, "--json").out


def test_a_plan_on_standard_input(run: Run, plan: str) -> None:
    done = run("emit", "--format", "megatron", "-", stdin=plan)
    assert done.code == 0
    assert "--tensor-model-parallel-size 2 \\" in done.out


def test_a_plan_in_a_file_to_a_file(run: Run, plan: str, tmp_path: Path) -> None:
    source, out = tmp_path / "plan.json", tmp_path / "launch.sh"
    source.write_text(plan)
    asked = ("emit", "--format", "megatron", str(source), "--out", str(out))
    assert run(*asked).code == 0
    written = out.read_text()
    assert written.startswith("#!/usr/bin/env bash")
    again = run(*asked)
    assert (again.code, again.out) == (2, "")
    assert "exists; --force overwrites it" in again.err
    assert run(*asked, "--force").code == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["launch.sh", "plan.json"]


def test_solve_emits_in_one_go(run: Run) -> None:
    asked = ("solve", "--model", "8B", "--gpus", "8", "--framework", "megatron")
    done = run(*asked, "--emit", "megatron")
    assert done.code == 0
    assert done.out.startswith("#!/usr/bin/env bash")
    both = run(*asked, "--emit", "megatron", "--json")
    assert both.code == 2
    assert "exclude each other" in both.err


@pytest.mark.parametrize(
    ("stdin", "words", "why"),
    [
        ("", ("--format", "megatron"), "is empty"),
        ("{", ("--format", "megatron"), "is not JSON"),
        ('{"schema": "layoutopt.plan/2"}', ("--format", "megatron"), "layoutopt.plan/1"),
        (
            '{"schema": "layoutopt.plan/1", "status": "infeasible"}',
            ("--format", "job"),
            "no layout",
        ),
        (
            '{"schema": "layoutopt.plan/1", "layout": {"tp": 1}}',
            ("--format", "megatron"),
            "no whole plan of this version",
        ),
        ("", (), "--format is missing"),
        ("", ("--format", "megatron", "--queue", "x"), "--queue is for"),
    ],
)
def test_bad_input_is_one_sentence(run: Run, stdin: str, words: tuple[str, ...], why: str) -> None:
    done = run("emit", *words, stdin=stdin)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert "Traceback" not in done.err


def test_a_launch_is_scored_beside_the_best(run: Run, plan: str, tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(run("emit", "--format", "megatron", "-", stdin=plan).out)
    done = run("estimate", "--from-launch", str(script), "--json")
    assert done.code == 0
    answer = done.json
    assert answer["layout"]["tp"] == 2
    best = answer["best"]
    assert best["status"] == "optimal"
    lost = answer["step"]["time_s"] - best["step_time_s"]
    assert lost >= 0
    assert sum(best["by_part_s"].values()) == pytest.approx(lost, abs=1e-9)
    both = run("estimate", "--from-launch", str(script), "--layout", "tp=2")
    assert both.code == 2
    shown = run("estimate", "--from-launch", str(script))
    assert "Beside the best (optimal)" in shown.out
