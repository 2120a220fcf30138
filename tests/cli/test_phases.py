"""A run in phases, as a user asks for it: solve, estimate, emit, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import layoutopt
from tests.cli.conftest import Run
from tests.cli.schemas import check

JOB = ("--model", "8B", "--gpus", "16")
FIRST = "tokens=20B,seq_len=8192,global_batch=64"
LONGER = "tokens=2B,seq_len=32768,global_batch=16"
PHASES = (
    "--phase",
    FIRST,
    "--phase",
    "tokens=20B,seq_len=8192,global_batch=128",
    "--phase",
    LONGER,
)
LAYOUT = ("--layout", "tp=2,cp=1,pp=1,recompute=full,micro_batch=1")


@pytest.fixture
def solved(run: Run) -> str:
    fix = ("--fix", "tp=2,pp=1,zero_stage=1,cp=1,recompute=full")
    ran = run("solve", *JOB, *PHASES, *fix, "--json")
    assert ran.code == 0
    return ran.out


def test_the_answer_adds_up(solved: str) -> None:
    answer = json.loads(solved)
    check(answer, "plan")
    assert answer["status"] == "optimal"
    phases, run = answer["phases"], answer["run"]
    assert [one["tokens"] for one in phases["list"]] == [20 * 10**9, 20 * 10**9, 2 * 10**9]
    assert run["tokens"] == 42 * 10**9
    assert run["steps"] == sum(one["steps"] for one in phases["list"])
    walls = sum(one["run"]["wall_time_s"] for one in phases["list"])
    assert run["wall_time_s"] == pytest.approx(walls + phases["restart_s"], rel=1e-12)
    assert answer["search"]["bound"] <= run["wall_time_s"]
    longest = max(phases["list"], key=lambda one: one["run"]["wall_time_s"])
    assert answer["layout"] == longest["layout"]
    assert answer["request"]["global_batch"] == longest["global_batch"]
    ways = phases["ways"]
    assert ways["auto"]["extra_s"] == 0
    assert min(ways["one"]["extra_s"], ways["each"]["extra_s"]) >= 0
    restart = phases["list"][1]["restart_after"]
    assert "seq_len" in restart["changes"]
    parts = restart["write_s"] + restart["restart_s"] + restart["load_s"]
    assert restart["total_s"] == pytest.approx(parts)


def test_cost_and_limits_are_of_the_whole_run(run: Run, solved: str) -> None:
    """The shortest run on given GPUs is the cheapest; what it misses is said with by how much."""
    plain = json.loads(solved)["run"]
    fix = ("--fix", "tp=2,pp=1,zero_stage=1,cp=1,recompute=full")
    days = plain["wall_time_s"] / 86400
    within = ("--deadline", f"{days * 1.01:.4f}d", "--max-power", "1MW")
    cheap = run("solve", *JOB, *PHASES, *fix, *within, "--objective", "cost", "--json").json
    check(cheap, "plan")
    assert cheap["run"] == plain
    assert cheap["search"]["objective"] == "cost"
    assert cheap["search"]["bound"] == pytest.approx(plain["cost_usd"], rel=1e-5)
    assert cheap["search"]["bound"] <= plain["cost_usd"]
    over = ("--deadline", f"{days / 2:.4f}d", "--budget", "1", "--max-power", "1kW")
    ran = run("solve", *JOB, *PHASES, *fix, *over, "--json")
    assert (ran.code, ran.json["status"]) == (3, "infeasible")
    check(ran.json, "plan")
    late, dear, power = ran.json["misses"]
    assert late["over_s"] == pytest.approx(plain["wall_time_s"] / 2, rel=1e-3)
    assert dear["over_usd"] == pytest.approx(plain["cost_usd"] - 1)
    assert power["over_w"] > 0
    assert late["changes"][0]["option"] == "deadline"
    assert "Nearest miss: deadline is" in run("solve", *JOB, *PHASES, *fix, *over).out


def test_a_phase_of_the_plan_is_emitted(run: Run, solved: str) -> None:
    done = run("emit", "--format", "megatron", "--phase", "3", "-", stdin=solved)
    assert done.code == 0
    assert "--seq-length 32768 \\" in done.out
    assert "--global-batch-size 16 \\" in done.out
    for wrong in ((), ("--phase", "4")):
        refused = run("emit", "--format", "megatron", *wrong, "-", stdin=solved)
        assert refused.code == 2
        assert "has 3 phases: say which" in refused.err


def test_a_given_layout_over_all_phases(run: Run) -> None:
    ran = run("estimate", *JOB, *PHASES, *LAYOUT, "--json")
    check(ran.json, "plan")
    assert (ran.code, ran.json["status"]) == (0, "given")
    listed = ran.json["phases"]["list"]
    assert [one["layout"]["microbatches"] for one in listed] == [8, 16, 2]
    assert [bool(one["restart_after"]) for one in listed] == [False, True, False]
    assert listed[1]["restart_after"]["changes"] == ["seq_len"]
    assert listed[1]["restart_after"]["reshards"] is False
    alone = run("estimate", *JOB, *LAYOUT, "--seq-len", "32768", "--global-batch", "16",
                "--tokens", "42B", "--json").json  # fmt: skip
    assert listed[2]["step"] == alone["step"]
    share = listed[2]["steps"] / alone["run"]["steps"]
    wall = alone["run"]["wall_time_s"]
    assert listed[2]["run"]["wall_time_s"] == pytest.approx(share * wall, rel=1e-12)


def test_one_phase_is_the_plain_question(run: Run) -> None:
    plain = run("estimate", *JOB, *LAYOUT, "--tokens", "20B", "--seq-len", "8192",
                "--global-batch", "64", "--eval-every", "100", "--eval-time", "1min",
                "--json").json  # fmt: skip
    phased = run("estimate", *JOB, *LAYOUT, "--phase", FIRST, "--eval-every", "100",
                 "--eval-time", "1min", "--json").json  # fmt: skip
    for key in ("layout", "step", "memory", "run"):
        assert phased[key] == plain[key]
    assert "phases" not in plain
    assert "phases" not in plain["request"]


def test_phases_in_a_file_in_a_list_and_in_python(run: Run, tmp_path: Path) -> None:
    listed = [dict(pair.split("=") for pair in text.split(",")) for text in PHASES[1::2]]
    file = tmp_path / "phases.yaml"
    file.write_text(f"phases: {json.dumps(listed)}\n")
    by_file = run("estimate", *JOB, *LAYOUT, "--phases", str(file), "--json").json
    by_option = run("estimate", *JOB, *LAYOUT, *PHASES, "--json").json
    layout = {"tp": 2, "cp": 1, "pp": 1, "recompute": "full", "micro_batch": 1}
    by_call = layoutopt.estimate(model="8B", gpus=16, layout=layout, phases=listed)
    assert by_file == by_option == by_call.to_dict()


def test_a_phase_that_does_not_fit_is_named(run: Run) -> None:
    long = ("--phase", "tokens=1B,seq_len=1Mi,global_batch=16")
    ran = run("estimate", *JOB, *PHASES[:2], *long, *LAYOUT, "--json")
    assert ran.code == 3
    assert ran.json["request"]["seq_len"] == 2**20
    solved = run(
        "solve", *JOB, *PHASES[:2], *long, "--fix", "tp=2,pp=1,cp=1,zero_stage=1", "--json"
    )
    assert (solved.code, solved.json["status"]) == (3, "infeasible")
    assert solved.json["misses"]
    assert solved.json["request"]["seq_len"] == 2**20


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--phase", "seq_len=8192"), "phases[1] has no tokens"),
        (("--phase", "tokens=1B,seq=8192"), "phases[1] has no key 'seq'"),
        (("--phase", "tokens=1B,tokens=2B"), "'tokens=2B' is given twice"),
        (("--phase", "tokens=lots"), "phases[1].tokens"),
        (("--phase", FIRST, "--tokens", "1T"), "tokens stands in each phase"),
        (("--phase", FIRST, "--pareto"), "pareto is asked of one job"),
        (("--phase", FIRST, "--gpus", "8..64"), "is a range"),
        (("--phase", FIRST, "--objective", "gpus"), "runs on given GPUs"),
        (("--phase", FIRST, "--emit", "megatron"), "then emit --phase N"),
        (("--phase", FIRST, "--phases", "x.yaml"), "give one of them"),
        (("--phase", FIRST, "--phase-layouts", "two"), "it can be auto, one, each"),
        (("--phase-layouts", "one"), "give --phases or --phase"),
        (("--phases", "none.yaml"), "cannot read none.yaml"),
    ],
)
def test_what_is_wrong_is_said(run: Run, options: tuple[str, ...], why: str) -> None:
    job = JOB[:2] if "--gpus" in options else JOB
    ran = run("solve", *job, *options)
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err


def test_one_layout_on_two_counts_is_no_way(run: Run) -> None:
    more = ("--phase", f"{FIRST},gpus=32")
    fix = ("--fix", "tp=2,pp=1,cp=1,zero_stage=1,recompute=full,micro_batch=1")
    ran = run("solve", *JOB, *PHASES[:2], *more, *fix, "--json")
    assert ran.json["phases"]["ways"]["one"]["why_not"] == "the phases run on different GPU counts"
    assert [one["layout"]["gpus"] for one in ran.json["phases"]["list"]] == [16, 32]
    one = run("solve", *JOB, *PHASES[:2], *more, *fix, "--phase-layouts", "one", "--json")
    assert (one.code, one.json["status"]) == (3, "infeasible")
    check(one.json, "plan")
    assert one.json["misses"][0]["changes"][0]["option"] == "phase_layouts"
