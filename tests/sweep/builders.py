"""Small sweeps, and an engine that prices without the solver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from layoutopt.sweep.columns import request_row
from layoutopt.sweep.points import Point, points_of
from layoutopt.sweep.spec import Spec, read_spec
from layoutopt.sweep.task import Row, Task


def spec_of(**keys: Any) -> Spec:
    """A spec of these keys; by default two small clusters for one small model."""
    usual: dict[str, Any] = {"axes": {"gpus": [8, 16]}, "fixed": {"model": "8B"}}
    return read_spec({**usual, **keys})


def points(**keys: Any) -> tuple[Point, ...]:
    """The points of such a spec."""
    return points_of(spec_of(**keys)).points


def stand_in(tasks: Iterable[Task]) -> Iterator[tuple[str, Row]]:
    """Rows without a search: the store and the exports do not ask how an answer was found."""
    from layoutopt.inputs.request import read_solve

    for task in tasks:
        row = request_row(read_solve(task.options))
        yield task.key, {**row, "status": "infeasible", "reason": "not looked for"}


def priced(tasks: Iterable[Task]) -> Iterator[tuple[str, Row]]:
    """Answers of a fixed layout instead of a search: rows with every figure.

    tp and pp are those that are fixed, else 2; from 4,096 GPUs on nothing fits.
    """
    from layoutopt.costmodel.estimate import estimate
    from layoutopt.costmodel.layout import Layout
    from layoutopt.inputs.request import read_solve
    from layoutopt.report.answer import Answer
    from layoutopt.sweep.columns import answer_row

    for task in tasks:
        request = read_solve(task.options)
        job, fix = request.job, request.question.fix
        tp, pp = int(fix.get("tp", 2)), int(fix.get("pp", 2))
        dp = job.gpus // (tp * pp)
        layout = Layout(
            tp=tp,
            pp=pp,
            dp=dp,
            microbatches=job.training.global_batch // dp,
            zero_stage=1,
            recompute="full",
            recompute_layers=3,
        )
        if job.gpus >= 4096:
            yield task.key, answer_row(Answer("infeasible", request, None))
        else:
            yield task.key, answer_row(Answer("optimal", request, estimate(job, layout)))


WALL = {"search_s"}
"""Columns that differ from run to run."""


def answers(store: Any) -> list[dict[str, Any]]:
    """Rows of a store without what differs from run to run."""
    from layoutopt.sweep.store import EXPORTED

    return [
        {name: value for name, value in zip(EXPORTED, row, strict=True) if name not in WALL}
        for row in store.rows()
    ]
