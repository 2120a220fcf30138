"""solve over a range of GPU counts: what a person gives and gets."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import layoutopt
from tests.cli.conftest import Run
from tests.cli.schemas import check

SMALL = ("solve", "--model", "llama-3.1-8b", "--gpus", "8", "--top", "0")
RANGE = ("solve", "--model", "llama-3.1-8b", "--gpus", "16..64", "--fix", "recompute=selective")


def test_the_count_is_chosen_and_the_front_is_shown(run: Run) -> None:
    answer = run(*RANGE, "--objective", "cost", "--pareto", "--json").json
    check(answer, "plan")
    assert answer["status"] == "optimal"
    assert answer["request"]["gpus"] == answer["layout"]["gpus"]
    assert answer["request"]["gpus_range"] == [16, 64]
    assert answer["search"]["counts"]["multiple_of"] == 8
    assert answer["search"]["counts"]["pareto_proved"] is True
    front = answer["pareto"]
    assert answer["run"]["cost_usd"] == min(point["cost_usd"] for point in front)
    assert [point["gpus"] for point in front] == sorted(point["gpus"] for point in front)
    table = run(*RANGE, "--objective", "cost", "--pareto").out
    assert "Time against cost: GPUs" in table
    assert max(map(len, table.splitlines())) <= 100


def test_python_takes_the_same_range() -> None:
    answer = layoutopt.solve(model="llama-3.1-8b", gpus="16..24", objective="gpus", top=0)
    assert answer.layout is not None
    assert answer.layout.gpus == 16
    assert answer.pareto is None


def test_a_power_limit_that_no_count_keeps_to(run: Run) -> None:
    ran = run(*RANGE, "--max-power", "5kW", "--json")
    assert ran.code == 3
    check(ran.json, "plan")
    assert ran.json["misses"][0]["limit"] == "power"
    assert ran.json["misses"][0]["over_w"] == pytest.approx(16 * 1275 - 5000)


@pytest.mark.parametrize(
    ("gpus", "more", "words"),
    [
        ("64..16", (), "from the larger count to the smaller"),
        ("64..x", (), "not a whole number"),
        ("64", ("--pareto",), "pareto needs GPU counts to choose from"),
        ("64", ("--objective", "gpus"), "objective gpus needs GPU counts"),
        ("9..15", (), "nearest: 8, 16"),
        ("64..128", ("--max-power", "5 miles"), "max_power"),
    ],
)
def test_what_makes_no_sense_is_refused(
    run: Run, gpus: str, more: tuple[str, ...], words: str
) -> None:
    ran = run("solve", "--model", "llama-3.1-8b", "--gpus", gpus, *more)
    assert ran.code == 2
    assert words in ran.err


def test_estimate_takes_one_count(run: Run) -> None:
    ran = run("estimate", "--model", "llama-3.1-8b", "--gpus", "16..64", "--layout", "tp=8")
    assert ran.code == 2
    assert "one count" in ran.err


def test_the_batch_is_chosen_at_a_price(run: Run) -> None:
    answer = run(
        "solve", "--model", "llama-3.1-8b", "--gpus", "64", "--fix", "recompute=selective",
        "--global-batch", "256..1024", "--critical-batch", "4M", "--json",
    ).json  # fmt: skip
    check(answer, "plan")
    asked = answer["request"]
    batch = asked["global_batch"]
    assert asked["global_batch_range"] == [256, 1024]
    assert answer["layout"]["global_batch"] == batch
    assert batch in answer["search"]["counts"]["batches"]
    small = 20 * asked["architecture"]["active_parameters"]
    needed = small * (1 + batch * asked["seq_len"] / asked["critical_batch"])
    assert answer["run"]["tokens"] == pytest.approx(needed, rel=1e-9)


def test_a_given_batch_may_have_a_price_too() -> None:
    plain, dear = (
        layoutopt.solve(model="llama-3.1-8b", gpus=64, global_batch=512, top=0, **more)  # type: ignore[arg-type]
        for more in ({}, {"critical_batch": 512 * 8192})
    )
    assert plain.run is not None
    assert dear.run is not None
    assert dear.run.tokens == 2 * plain.run.tokens


def test_what_was_refused_is_written_with_its_rule(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "rejected.jsonl"
    ran = run(
        "solve", "--model", "llama-3.1-8b", "--gpus", "24", "--framework", "nanotron",
        "--fix", "recompute=selective", "--rejected", str(file),
    )  # fmt: skip
    assert ran.code == 0
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    said = {(line["rule"], json.dumps(line["layout"])) for line in lines}
    assert ("tensor_divides_heads", '{"tp": 24}') in said
    assert ("framework_axes", '{"vpp": 2}') in said
    assert all(line["message"] for line in lines)
    assert any(line.get("over_bytes", 0) > 0 for line in lines)
    *rest, last = lines
    assert last["refusals"] == Counter(line["rule"] for line in rest)
    assert {"axis_order", "schedule", "offload_optimizer"} <= {
        k for one in lines for k in one["layout"]
    }
    nowhere = run(*SMALL, "--rejected", str(tmp_path / "no" / "file"))
    assert nowhere.code == 2
    assert "cannot write" in nowhere.err


def test_pauses_for_evaluation_need_both_numbers(run: Run) -> None:
    estimate = ("estimate", "--model", "llama-3.1-8b", "--gpus", "8", "--layout", "tp=8")
    answer = run(*estimate, "--eval-every", "1000", "--eval-time", "5min", "--json").json
    check(answer, "plan")
    plain = run(*estimate, "--json").json
    pauses = plain["run"]["steps"] // 1000 * 300
    assert answer["run"]["overhead_s"]["planned"] == pytest.approx(
        plain["run"]["overhead_s"]["planned"] + pauses
    )
    ran = run(*estimate, "--eval-every", "1000")
    assert ran.code == 2
    assert "eval_every needs eval_time" in ran.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--gpus", "64..128"), "a range of GPU counts needs a cluster of one GPU type"),
        (("--gpus", "64", "--global-batch", "64..128"), "a range of batches needs"),
        (("--gpus", "64", "--sensitivity"), "sensitivity needs"),
    ],
)
def test_pools_are_chosen_without_a_range(run: Run, more: tuple[str, ...], words: str) -> None:
    cluster = Path(__file__).parents[2] / "docs" / "examples" / "mixed.yaml"
    ran = run("solve", "--model", "8B", "--cluster", str(cluster), *more)
    assert ran.code == 2
    assert words in ran.err
