"""layoutopt simulate: answers by the schema, files that are asked for, messages for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


RUN = ("simulate", "--model", "8B", "--gpus", "512", "--layout", "tp=2", "--run", "--runs", "50")


def test_runs_are_answered_by_the_schema(run: Run) -> None:
    answer = run(*RUN, "--mtbf", "3h", "--json").json
    check(answer, "simulation")
    assert answer["kind"] == "run"
    assert answer["plan"]["mtbf_s"] == pytest.approx(3 * 3600)
    assert answer["closed_form"]["beyond"] == []
    assert abs(answer["closed_form"]["difference"]) < 0.02
    spent = sum(answer["run"]["overhead_s"].values()) + answer["run"]["ideal_s"]
    assert spent == pytest.approx(answer["run"]["wall_time_s"])
    quantiles = list(answer["run"]["wall_time_quantiles_s"].values())
    assert quantiles == sorted(quantiles)


def test_the_answer_says_what_the_closed_form_does_not_know(run: Run) -> None:
    tiers = ("--tier", "peer,every=10,write=2s,stall=1s,load=2s", "--interval", "40")
    more = ("--failures", "weibull:0.7", "--spares", "2", "--switch-share", "10%", "--mtbf", "3h")
    ran = run(*RUN, *tiers, *more)
    assert ran.code == 0
    for words in ("several tiers", "Weibull", "waiting for nodes", "2 spare nodes", "10% switch"):
        assert words in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= 100


def test_the_plans_interval_nests_with_quicker_tiers(run: Run) -> None:
    """A peer every 7 steps: the shared storage at the nearest multiple of 7."""
    plain = run(*RUN, "--json").json["plan"]["tiers"][0]["every_steps"]
    shared, peer = run(*RUN, "--tier", "peer,every=7", "--json").json["plan"]["tiers"]
    assert (peer["every_steps"], shared["every_steps"] % 7) == (7, 0)
    assert abs(shared["every_steps"] - plain) <= 3


def test_failures_can_be_listed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "failures.txt"
    path.write_text("# ours\n3h\n20h  # a switch\n", encoding="utf-8")
    answer = run(*RUN, "--failures", str(path), "--json").json
    assert answer["plan"]["mtbf_s"] == 10 * 3600
    path.write_text("3h\n2h\n", encoding="utf-8")
    assert "failures.txt:2: 2h is not after" in run(*RUN, "--failures", str(path)).err


def test_failure_rates_reach_estimate(run: Run) -> None:
    """64 nodes at 10 failures per 1,000 node-days: one in 37.5 h."""
    job = ("estimate", "--model", "8B", "--gpus", "512", "--layout", "tp=2", "--json")
    rate = run(*job, "--failure-rate", "10").json
    mtbf = run(*job, "--mtbf", "37.5h").json
    assert rate["run"]["wall_time_s"] == pytest.approx(mtbf["run"]["wall_time_s"])
    assert rate["request"]["machine"]["failures_per_gpu_hour"] == pytest.approx(1 / 37.5 / 512)
    filled = {entry["option"] for entry in rate["request"]["filled"]}
    assert "cluster.failures_per_gpu_hour" not in filled


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mtbf", "3h", "--failure-rate", "3"), "give one of them"),
        (("--failure-rate", "often"), "failures per 1,000 node-days"),
        (("--mtbf", "0s"), "above 0"),
        (("--mtbf", "2h..6h"), "one time, not the range"),
        (("--failures", "weibul:0.7"), "no distribution and no file"),
        (("--failures", "weibull:0"), "below 0.1"),
        (("--tier", "tape"), "tier"),
        (("--tier", "peer,evry=10"), "nearest: every"),
        (("--tier", "peer,every=7", "--interval", "10"), "no multiple"),
        (("--process-share", "0.8", "--switch-share", "0.8"), "more than 1 together"),
        (("--nodes-per-switch", "0"), "below 1"),
        (("--trace", "a.json"), "trace is of a step"),
        (("--degraded", "2"), "degraded is of estimate and solve"),
    ],
)
def test_wrong_options_of_runs_are_refused_in_words(
    run: Run, options: tuple[str, ...], words: str
) -> None:
    ran = run(*RUN, *options, "--json")
    assert ran.code == 2
    assert words in ran.err
    check(ran.json, "error")


def test_runs_on_several_pools_fail_as_estimate_says(run: Run) -> None:
    """Half the nodes of one pool: the time between failures of the GPUs that are used, and --mtbf
    on every pool. A step on several pools is refused: the step simulator knows one GPU type."""
    machine = ("--model", "8B", "--cluster", "docs/examples/mixed.yaml", "--tokens", "1T")
    layout = ("--layout", "tp=8,pp=2,dp=64,pools_per_stage=2*a100", "--json")
    for options in ((), ("--mtbf", "2h")):
        told = run("estimate", *machine, *layout, *options).json
        seen = run("simulate", *machine, *layout, "--run", "--runs", "200", *options).json
        closed = told["run"]["wall_time_s"]
        assert seen["closed_form"]["wall_time_s"] == pytest.approx(closed)
        assert seen["run"]["wall_time_s"] == pytest.approx(closed, rel=0.01)
    refused = run("simulate", *machine, *layout)
    assert refused.code == 2
    assert "several pools" in refused.err


def test_options_of_runs_need_run(run: Run) -> None:
    ran = run(*STEP, *LAYOUT, "--spares", "3")
    assert ran.code == 2
    assert "--run" in ran.err


def test_a_cluster_file_says_how_it_recovers(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(
        "gpu: h100-sxm-80gb\nnodes: 64\ndetection: 30s\nrestart: 5min\n", encoding="utf-8"
    )
    job = ("--model", "8B", "--gpus", "512", "--layout", "tp=2", "--cluster", str(path))
    answer = run("simulate", *job, "--run", "--runs", "2", "--json").json
    assert (answer["plan"]["detect_s"], answer["plan"]["restart_s"]) == (30.0, 300.0)
    usual = run("estimate", "--model", "8B", "--gpus", "512", "--layout", "tp=2", "--json").json
    mine = run("estimate", *job, "--json").json
    assert mine["run"]["overhead_s"]["restart"] < usual["run"]["overhead_s"]["restart"]


def test_estimate_plans_checkpoints_and_restarts_on_fewer_nodes(run: Run) -> None:
    job = ("estimate", "--model", "8B", "--gpus", "512", "--layout", "tp=2", "--degraded", "2")
    answer = run(*job, "--json").json
    check(answer, "plan")
    assert answer["degraded"]["gpus_left"] == 496
    assert answer["degraded"]["smaller_batch"]["layout"]["dp"] == 248
    assert [tier["kind"] for tier in answer["checkpoint"]["tiers"]] == ["host", "peer", "shared"]
    table = " ".join(run(*job).out.split())
    for words in ("Failures and checkpoints", "spare nodes are worth holding", "2 nodes gone"):
        assert words in table
    assert run(*job[:-1], "64").code == 2


@pytest.mark.parametrize("name", ["tier", "straggler"])
@pytest.mark.parametrize("value", [3, 0.5, True, float("nan"), {"a": 1}, ["x", 2]])
def test_nonsense_of_any_type_is_an_input_error(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value, "run": name == "tier"}
    with pytest.raises(layoutopt.InputError):
        layoutopt.simulate(model="8B", gpus=16, layout="pp=4", global_batch=16, **options)
