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


WALL = {"search_s"}
"""Columns that differ from run to run."""


def answers(store: Any) -> list[dict[str, Any]]:
    """Rows of a store without what differs from run to run."""
    from layoutopt.sweep.store import EXPORTED

    return [
        {name: value for name, value in zip(EXPORTED, row, strict=True) if name not in WALL}
        for row in store.rows()
    ]
