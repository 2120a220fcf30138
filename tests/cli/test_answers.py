"""What the commands answer: JSON by the published schema, tables with the answer first."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from layoutopt.costmodel.assumptions import ALL
from layoutopt.costmodel.results import BREAKDOWN
from tests.cli.conftest import Ran, Run, StandIn, feasible, infeasible, optimal, unknown
from tests.cli.schemas import check

LLAMA = ("--model", "llama-3.1-405b", "--gpus", "16384", "--seq-len", "8192")
GIVEN = ("estimate", *LLAMA, "--global-batch", "2048", "--layout")
FITS = "tp=8,cp=1,pp=16,dp=128,recompute=full"
SMALL = ("solve", "--model", "llama-3.1-8b", "--gpus", "64")


def test_estimate_answers_by_the_schema(run: Run) -> None:
    ran = run(*GIVEN, FITS, "--json")
    answer = ran.json
    assert ran.code == 0
    check(answer, "plan")
    assert answer["status"] == "given"
    assert answer["layout"]["gpus"] == 16384
    assert answer["layout"]["dp"] * answer["layout"]["microbatches"] == 2048
    assert answer["layout"]["layers_per_stage"] == [7, *[8] * 14, 7]
    assert answer["memory"]["fits"] is True


def test_the_parts_of_a_step_add_up(run: Run) -> None:
    step = run(*GIVEN, FITS, "--json").json["step"]
    assert tuple(step["breakdown_s"]) == BREAKDOWN
    assert math.fsum(step["breakdown_s"].values()) == pytest.approx(step["time_s"], rel=1e-9)


def test_the_peak_is_that_of_the_fullest_stage(run: Run) -> None:
    memory = run(*GIVEN, FITS, "--json").json["memory"]
    assert memory["peak_bytes"] == max(stage["reserved"] for stage in memory["stages"])
    worst = memory["stages"][memory["peak_stage"]]
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
    assert sum(worst[part] for part in parts) == memory["peak_allocated_bytes"]


def test_a_given_layout_that_does_not_fit_is_exit_3_with_everything_filled(run: Run) -> None:
    ran = run("estimate", "--model", "405B", "--gpus", "8", "--layout", "tp=8", "--json")
    assert ran.code == 3
    check(ran.json, "plan")
    assert ran.json["status"] == "given"
    assert ran.json["memory"]["fits"] is False
    assert ran.json["step"]["time_s"] > 0


def test_the_layout_of_an_answer_is_accepted_back(run: Run, tmp_path: Path) -> None:
    first = run(*GIVEN, FITS, "--json")
    path = tmp_path / "answer.json"
    path.write_text(first.out)
    ways = {
        "object": (json.dumps(first.json["layout"]), ""),
        "file": (str(path), ""),
        "stdin": ("-", first.out),
    }
    for text, stdin in ways.values():
        again = run(*GIVEN, text, "--json", stdin=stdin).json
        for key in ("layout", "step", "memory", "checkpoint", "run"):
            assert again[key] == first.json[key]


def test_a_layout_can_state_the_gpus_and_the_batch(run: Run) -> None:
    text = "tp=8,pp=16,dp=128,micro_batch=1,microbatches=16,gpus=16384,recompute=full"
    request = run("estimate", "--model", "405B", "--layout", text, "--json").json["request"]
    assert (request["gpus"], request["global_batch"]) == (16384, 2048)
    reasons = {entry["option"]: entry["reason"] for entry in request["filled"]}
    assert "layout" in reasons["gpus"]
    assert "layout" in reasons["global_batch"]


def test_every_default_is_echoed_with_its_reason(run: Run) -> None:
    request = run(
        "estimate", "--model", "1T", "--gpus", "3072", "--layout", "tp=8,pp=64", "--json"
    ).json["request"]
    filled = {entry["option"]: entry for entry in request["filled"]}
    for option in ("model", "gpu", "cluster", "seq_len", "global_batch", "tokens", "precision"):
        assert filled[option]["reason"]
    assert filled["layout.dp"]["value"] == 6
    assert filled["seq_len"]["value"] == 2048  # the most that this architecture was made for
    assert "Hoffmann" in filled["tokens"]["reason"]
    assert request["tokens"] == 20 * request["architecture"]["active_parameters"]


def test_what_is_given_is_not_listed_as_filled(run: Run) -> None:
    request = run(*GIVEN, FITS, "--gpu", "h100-sxm-80gb", "--json").json["request"]
    options = {entry["option"] for entry in request["filled"]}
    assert not options & {"gpu", "gpus", "seq_len", "global_batch", "layout.tp", "model"}


def test_solve_answers_by_the_schema(run: Run, search_is: StandIn) -> None:
    search_is(optimal)
    ran = run(*SMALL, "--fix", "tp=1", "--limit", "pp<=8", "--deadline", "900d", "--json")
    answer = ran.json
    assert ran.code == 0
    check(answer, "plan")
    assert answer["status"] == "optimal"
    assert answer["request"]["fix"] == {"tp": 1}
    assert answer["request"]["limit"] == ["pp<=8"]
    assert answer["request"]["deadline_s"] == 900 * 86_400
    assert answer["alternatives"][0]["step_time_s"] > answer["step"]["time_s"]
    assert "The bubble binds." in answer["explain"]
    assert any(sentence.startswith("Batch:") for sentence in answer["explain"])


def test_nothing_fits_is_exit_3_with_the_way_out(run: Run, search_is: StandIn) -> None:
    search_is(infeasible)
    ran = run(*SMALL, "--json")
    answer = ran.json
    assert ran.code == 3
    check(answer, "plan")
    for key in ("layout", "step", "memory", "checkpoint", "run"):
        assert answer[key] is None
    assert answer["misses"][0]["over_bytes"] == 3 * 2**30
    assert answer["misses"][0]["changes"][0] == {
        "option": "recompute",
        "value": "full",
        "step_time_s": 12.5,
    }


def test_out_of_time_with_nothing_is_exit_4_with_a_bound(run: Run, search_is: StandIn) -> None:
    search_is(unknown)
    ran = run(*SMALL, "--json")
    assert ran.code == 4
    check(ran.json, "plan")
    assert ran.json["status"] == "unknown"
    assert ran.json["search"]["bound"] == 0.75


def test_out_of_time_with_a_layout_is_an_answer(run: Run, search_is: StandIn) -> None:
    search_is(feasible)
    ran = run(*SMALL, "--json")
    assert ran.code == 0
    check(ran.json, "plan")
    table = run(*SMALL).out
    assert "best so far" in table
    assert "3.1%" in table


def test_the_table_starts_with_the_answer_and_keeps_to_100_columns(
    run: Run, search_is: StandIn
) -> None:
    search_is(optimal)
    ran = run(*SMALL)
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 100
    labels = [line.split()[0] for line in lines[:10] if line and not line.startswith(" ")]
    assert labels == [
        "Job",
        "Layout",
        "Step",
        "Run",
        "Memory",
        "Checkpoint",
        "Proof",
        "Uncertainty",
    ]
    for part in ("Where the step goes", "Memory of stage", "Why", "Next best: with  ", "Filled in"):
        assert part in ran.out
    assert "\x1b" not in ran.out


def test_the_layout_line_of_the_table_can_be_pasted_back(run: Run, search_is: StandIn) -> None:
    search_is(optimal)
    line = next(line for line in run(*SMALL).out.splitlines() if line.startswith("Layout"))
    solved = run(*SMALL, "--json").json
    pasted = run("estimate", *SMALL[1:], "--layout", line.split()[1], "--json").json
    assert pasted["layout"] == solved["layout"]
    assert pasted["step"] == solved["step"]


def test_the_table_of_nothing_fits_says_by_how_much_and_what_helps(
    run: Run, search_is: StandIn
) -> None:
    search_is(infeasible)
    ran = run(*SMALL)
    assert ran.code == 3
    assert "memory on stage 0 is 3 GiB over" in ran.out
    assert "recompute" in ran.out
    assert "12.5 s" in ran.out


def _why_not(run: Run, text: str) -> dict[str, Any]:
    ran: Ran = run(*SMALL, "--why-not", text, "--json")
    assert ran.code == 0
    check(ran.json, "plan")
    return dict(ran.json["why_not"])


def test_why_not_compares_by_part(run: Run, search_is: StandIn) -> None:
    search_is(optimal)
    entry = _why_not(run, "tp=1,zero_stage=3,recompute=full")
    assert entry["refused"] is None
    assert entry["by_part_s"]["recompute"] > 0
    gap = math.fsum(entry["by_part_s"].values())
    best = run(*SMALL, "--json").json["step"]["time_s"]
    assert entry["step"]["time_s"] == pytest.approx(best + gap)
    assert "slower" in entry["sentence"]


def test_why_not_says_which_rule_a_layout_breaks(run: Run, search_is: StandIn) -> None:
    search_is(optimal)
    assert "64 GPUs" in _why_not(run, "tp=3")["refused"]
    assert "layers" in _why_not(run, "pp=64,micro_batch=1")["refused"]
    assert "breaks a rule" in _why_not(run, "pp=64,micro_batch=1")["sentence"]
    assert "Why not" in run(*SMALL, "--why-not", "tp=3").out


def test_a_longer_sequence_than_the_model_was_made_for_is_a_warning(run: Run) -> None:
    ran = run("estimate", "--model", "llama-2-7b", "--gpus", "8", "--layout", "tp=8",
              "--seq-len", "8Ki", "--json")  # fmt: skip
    assert any("4,096" in warning for warning in ran.json["warnings"])


def test_json_output_is_the_same_every_time(run: Run) -> None:
    assert run(*GIVEN, FITS, "--json").out == run(*GIVEN, FITS, "--json").out


def test_a_cluster_that_never_fails_leaves_no_infinity(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: mine\ngpu: a100-sxm-80gb\ngpus_per_node: 8\nnodes: 4\n"
        "levels:\n"
        "  - {name: nvlink, gpus: 8, bandwidth_per_gpu_one_way: 300GB/s, latency: 2us}\n"
        "  - {name: network, gpus: 32, bandwidth_per_gpu_one_way: 25Gbps, latency: 5us}\n"
        "storage: {write: 10GB/s, write_per_node: 2GB/s}\n"
        "failures_per_gpu_hour: 0\n"
    )
    ran = run("estimate", "--model", "llama-2-7b", "--cluster", str(path), "--layout", "tp=8",
              "--json")  # fmt: skip
    assert ran.code == 0
    check(ran.json, "plan")
    assert ran.json["request"]["gpus"] == 32
    assert ran.json["run"]["expected_interruptions"] == 0


def test_explain_prints_the_assumptions_that_the_figures_lean_on(run: Run) -> None:
    numbers = run(*GIVEN, FITS, "--json").json["assumptions"]
    table = run(*GIVEN, FITS, "--explain").out
    assert numbers
    for number in numbers:
        assert ALL[number].text.split()[0] in table
        assert any(line.startswith(f"{number} ") for line in table.splitlines())
    assert "Leans on" not in run(*GIVEN, FITS).out


def test_the_next_best_are_shown_by_what_differs(run: Run, search_is: StandIn) -> None:
    search_is(optimal)
    lines = run(*SMALL).out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("Next best: with"))
    assert lines[start + 1].startswith("recompute=full ")


def test_a_short_run_is_told_in_its_own_units(run: Run) -> None:
    ran = run("estimate", "--model", "1B", "--gpus", "8", "--tokens", "1B", "--layout", "tp=1")
    lines = {line.split()[0]: line for line in ran.out.splitlines() if line.strip()}
    assert " min (" in lines["Run"]
    assert " kWh" in ran.out
    assert "1 node writes" in " ".join(ran.out.split())
    long = run("estimate", "--model", "1B", "--gpus", "8", "--tokens", "1T", "--layout", "tp=1")
    assert " days (" in long.out


def test_recompute_stage_by_stage_is_in_the_schema(run: Run) -> None:
    text = "tp=8,pp=4,recompute=full:4+3+2*0"
    answer = run("estimate", "--model", "70B", "--gpus", "64", "--layout", text, "--json").json
    check(answer, "plan")
    assert answer["layout"]["recompute"] == "full:4+3+2*0"
    check({"model": "70B", "gpus": 64, "layout": answer["layout"]}, "request")
