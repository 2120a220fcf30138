"""Running the command in this process, and a stand-in for the search."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from layoutopt.cli.main import run as run_command
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.optimizer.outcome import Alternative, Change, Miss, Outcome, SearchReport, Status
from layoutopt.optimizer.question import Budget, Question


@dataclass(frozen=True)
class Ran:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output as one JSON object that holds no NaN or Infinity."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} in the output")

        answer: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return answer


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("estimate", "--gpus", "8", stdin="")``."""

    def call(*args: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = run_command(args)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return call


Answering = Callable[[Question, Budget], Outcome]
StandIn = Callable[[Answering], None]


@pytest.fixture
def search_is(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Replaces the search: these tests look at how an outcome is shown, not at how it is found."""

    def replace(answer: Answering) -> None:
        module = ModuleType("layoutopt.optimizer.search")
        module.search = answer  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "layoutopt.optimizer.search", module)

    return replace


def _report(**changes: Any) -> SearchReport:
    figures: dict[str, Any] = {
        "objective": "time",
        "bound": 1.0,
        "gap": 0.0,
        "wall_s": 0.25,
        "candidates": 1234,
        "workers": 2,
    }
    return SearchReport(**{**figures, **changes})


def sharded(question: Question, **changes: Any) -> Layout:
    """Data parallelism alone, one sequence at a time."""
    job = question.job
    values: dict[str, Any] = {
        "dp": job.gpus,
        "microbatches": job.training.global_batch // job.gpus,
        "zero_stage": 3,
        "recompute": "selective",
        "sequence_parallel": False,
    }
    return Layout(**{**values, **changes})


def optimal(question: Question, budget: Budget) -> Outcome:
    """A proved answer with one alternative."""
    job = question.job
    plan = estimate(job, sharded(question))
    other = estimate(job, sharded(question, recompute="full"))
    reason = f"recomputes everything: {other.step.time_s - plan.step.time_s:.3f} s more a step"
    return Outcome(
        Status.OPTIMAL, plan, _report(), (Alternative(other, reason),), (), ("The bubble binds.",)
    )


def infeasible(question: Question, budget: Budget) -> Outcome:
    """No layout fits: one miss, two ways out."""
    changes = (Change("recompute", "full", 12.5), Change("gpus", "512", None))
    miss = Miss("memory", 0, 3 * 2**30, None, None, sharded(question), changes)
    return Outcome(Status.INFEASIBLE, None, _report(bound=None, gap=None), (), (miss,), ())


def feasible(question: Question, budget: Budget) -> Outcome:
    """Out of time with a layout in hand."""
    plan = estimate(question.job, sharded(question))
    return Outcome(Status.FEASIBLE, plan, _report(gap=0.031))


def unknown(question: Question, budget: Budget) -> Outcome:
    """Out of time with nothing but a bound."""
    return Outcome(Status.UNKNOWN, None, _report(gap=None, bound=0.75))
