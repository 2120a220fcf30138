"""What is not the person's fault: exit codes 69, 70 and 130, and never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from layoutopt import api
from layoutopt.costmodel.estimate import estimate
from layoutopt.errors import InternalError, ToolError
from layoutopt.optimizer.outcome import Outcome, Status
from layoutopt.optimizer.question import Budget, Question
from layoutopt.report.guard import dumps, plain
from tests.cli.conftest import Run, StandIn, optimal, unknown
from tests.cli.schemas import check

ESTIMATE = ("estimate", "--model", "8B", "--gpus", "8", "--layout", "tp=8", "--json")


def _raises(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (ToolError("sbatch is not installed"), 69, "tool"),
        (InternalError("a table is empty"), 70, "internal"),
        (ZeroDivisionError("division by zero"), 70, "internal"),
        (RecursionError("too deep"), 70, "internal"),
        (MemoryError(), 70, "internal"),
        (OSError("disk on fire"), 70, "internal"),
        (PermissionError(13, "Permission denied", "config.json"), 2, "input"),
    ],
)
def test_every_failure_has_its_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, word: str
) -> None:
    monkeypatch.setattr(api, "answer_estimate", _raises(error))
    ran = run(*ESTIMATE)
    assert ran.code == code
    assert "Traceback" not in ran.err
    check(ran.json, "error")
    assert ran.json["code"] == word
    assert ran.json["message"] in ran.err


def test_a_fault_of_ours_prints_its_traceback_when_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYOUTOPT_DEBUG", "1")
    monkeypatch.setattr(api, "answer_estimate", _raises(ZeroDivisionError("division by zero")))
    assert "Traceback" in run(*ESTIMATE).err


def test_interrupted_is_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "answer_estimate", _raises(KeyboardInterrupt()))
    ran = run(*ESTIMATE)
    assert (ran.code, ran.out, ran.err.strip()) == (130, "", "layoutopt: interrupted")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), object(), {1, 2}])
def test_nothing_but_plain_finite_json_leaves(value: object) -> None:
    with pytest.raises(InternalError, match=r"\$\.step\[1\]\.x"):
        dumps({"step": [0, {"x": value}]})


def test_numpy_scalars_are_a_fault_too() -> None:
    np = pytest.importorskip("numpy")
    for value in (np.int64(3), np.float64(0.5), np.bool_(True)):
        with pytest.raises(InternalError):
            plain({"x": value})


def test_an_infinite_step_is_a_fault_not_an_answer(run: Run, search_is: StandIn) -> None:
    def broken(question: Question, budget: Budget) -> Outcome:
        outcome = optimal(question, budget)
        assert outcome.plan is not None
        step = replace(outcome.plan.step, mfu=float("nan"))
        return replace(outcome, plan=replace(outcome.plan, step=step))

    search_is(broken)
    ran = run("solve", "--model", "8B", "--gpus", "64", "--json")
    assert ran.code == 70
    check(ran.json, "error")
    assert "$.step.mfu" in ran.err


def test_why_not_says_which_limit_excluded_a_layout(run: Run, search_is: StandIn) -> None:
    search_is(optimal)
    ran = run("solve", "--model", "8B", "--gpus", "64", "--limit", "tp<=1", "--fix", "pp=1",
              "--why-not", "tp=2,pp=2", "--json")  # fmt: skip
    sentence: str = ran.json["why_not"]["sentence"]
    assert sentence.startswith("It is outside fix pp=1 and limit tp<=1. ")


def test_the_stand_in_is_the_cost_model() -> None:
    """These tests change how an answer ends, not what a layout costs."""
    answer: Any = api.estimate(model="8B", gpus=8, layout="tp=8")
    assert answer.plan == estimate(answer.request.job, answer.request.layout)


@pytest.mark.parametrize("status", [Status.OPTIMAL, Status.FEASIBLE])
def test_a_proof_without_a_layout_is_a_fault(run: Run, search_is: StandIn, status: Status) -> None:
    search_is(lambda question, budget: replace(unknown(question, budget), status=status))
    ran = run("solve", "--model", "8B", "--gpus", "64", "--json")
    assert ran.code == 70
    assert "no layout" in ran.err
