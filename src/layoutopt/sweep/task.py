"""What a worker does: one question, solved as by hand, back as a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layoutopt.errors import InputError, ToolError
from layoutopt.sweep.points import Point
from layoutopt.sweep.version import model_version

Row = dict[str, Any]
"""Columns of RESULT; those that are missing are null."""


@dataclass(frozen=True)
class Task:
    """A point's question on its way to a worker."""

    key: str
    options: dict[str, Any]
    version: str
    """Of the model: a worker with another one would answer another question."""


def task_of(point: Point) -> Task:
    """The task of a point."""
    return Task(point.key, point.options, model_version())


def solve_task(task: Task) -> Row:
    """The row of the task's answer; a fault is a row too. Raises ToolError for another version."""
    if task.version != model_version():
        raise ToolError(
            f"a worker has model version {model_version()}, this process {task.version}: install "
            "the same layoutopt everywhere"
        )
    from layoutopt.api import answer_solve
    from layoutopt.inputs.request import read_solve
    from layoutopt.report.errors import for_people
    from layoutopt.sweep.columns import answer_row, request_row

    row: Row = {}
    try:
        # First the question, so that a refused or failed point says what it was.
        row = request_row(read_solve(task.options))
        return answer_row(answer_solve(task.options, None, brief=True))
    except InputError as error:
        return {**row, "status": "refused", "reason": for_people(error)}
    except Exception as error:  # one point's fault is not the sweep's
        return failed_row(f"{type(error).__name__}: {error}", row)


def failed_row(reason: str, row: Row | None = None) -> Row:
    """The row of a point that has no answer."""
    return {**(row or {}), "status": "failed", "reason": reason[:500]}
