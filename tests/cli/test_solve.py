"""solve, with the real search: what a person gets."""

from __future__ import annotations

import pytest

import layoutopt
from tests.cli.conftest import Run
from tests.cli.schemas import check

SMALL = ("solve", "--model", "llama-3.1-8b", "--gpus", "64")


def test_a_small_question_is_proved(run: Run) -> None:
    ran = run(*SMALL, "--json")
    answer = ran.json
    assert ran.code == 0
    check(answer, "plan")
    assert answer["status"] == "optimal"
    assert answer["memory"]["fits"] is True
    assert answer["layout"]["gpus"] == 64
    assert answer["search"]["bound"] <= answer["run"]["wall_time_s"] * (1 + 1e-6)
    assert len(answer["alternatives"]) == 3
    for other in answer["alternatives"]:
        assert other["wall_time_s"] >= answer["run"]["wall_time_s"] * (1 - 1e-9)
        assert other["reason"]


def test_the_table_and_python_say_the_same(run: Run) -> None:
    answer = layoutopt.solve(model="llama-3.1-8b", gpus=64)
    entry = run(*SMALL, "--json").json
    entry["search"]["wall_s"] = answer.to_dict()["search"]["wall_s"]
    assert entry == answer.to_dict()
    table = run(*SMALL).out
    assert "optimal for time" in table
    assert max(map(len, table.splitlines())) <= 100


def test_the_answer_is_accepted_back_by_estimate(run: Run) -> None:
    solved = run(*SMALL, "--json")
    again = run("estimate", *SMALL[1:], "--layout", "-", "--json", stdin=solved.out)
    for key in ("layout", "step", "memory", "checkpoint", "run"):
        assert again.json[key] == solved.json[key]


def test_the_number_of_workers_changes_nothing(run: Run) -> None:
    one = run(*SMALL, "--workers", "1", "--json").json
    three = run(*SMALL, "--workers", "3", "--json").json
    for key in ("layout", "step", "memory", "checkpoint", "run", "alternatives"):
        assert one[key] == three[key]


def test_fixed_axes_and_limits_hold(run: Run) -> None:
    answer = run(*SMALL, "--fix", "tp=2,recompute=full", "--limit", "pp<=2,micro_batch<2",
                 "--top", "1", "--json").json  # fmt: skip
    for layout in (answer["layout"], *(other["layout"] for other in answer["alternatives"])):
        assert layout["tp"] == 2
        assert layout["recompute"] == "full"
        assert layout["pp"] <= 2
        assert layout["micro_batch"] == 1
    assert len(answer["alternatives"]) == 1


@pytest.mark.parametrize("objective", ["cost", "energy"])
def test_other_objectives(run: Run, objective: str) -> None:
    answer = run(*SMALL, "--objective", objective, "--json").json
    assert answer["status"] == "optimal"
    assert answer["search"]["objective"] == objective


def test_nothing_fits_says_by_how_much_and_what_helps(run: Run) -> None:
    ran = run("solve", "--model", "405B", "--gpus", "8", "--json")
    assert ran.code == 3
    check(ran.json, "plan")
    assert ran.json["status"] == "infeasible"
    miss = ran.json["misses"][0]
    assert miss["limit"] == "memory"
    assert miss["over_bytes"] > 0
    assert any(change["option"] == "gpus" for change in miss["changes"])
    assert "GiB over" in run("solve", "--model", "405B", "--gpus", "8").out


def test_a_deadline_that_no_layout_meets(run: Run) -> None:
    ran = run(*SMALL, "--deadline", "1h", "--json")
    assert ran.code == 3
    check(ran.json, "plan")
    assert ran.json["misses"][0]["limit"] == "deadline"
    assert ran.json["misses"][0]["over_s"] > 0


def test_a_count_that_no_layout_divides_names_the_nearest(run: Run) -> None:
    """61 is prime: no tp, cp or pp of this model, and 61 replicas do not share 8 sequences."""
    ran = run("solve", "--model", "llama-3.1-8b", "--gpus", "61", "--global-batch", "8", "--json")
    assert ran.code == 2
    check(ran.json, "error")
    assert ran.json["nearest"]
    assert "61" in ran.err


def test_why_not_with_the_real_best(run: Run) -> None:
    ran = run(*SMALL, "--why-not", "tp=8,pp=8", "--json")
    check(ran.json, "plan")
    assert ran.json["why_not"]["step"]["time_s"] > 0
    assert ran.json["why_not"]["sentence"]
