"""A sweep from its spec to its rows: what is there is kept, what is missing is solved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layoutopt.errors import InputError
from layoutopt.inputs.numbers import MOST_GPUS, read_count
from layoutopt.sweep.columns import QUESTION
from layoutopt.sweep.points import Point, Points, points_of
from layoutopt.sweep.spec import Spec
from layoutopt.sweep.store import FILE, Store
from layoutopt.sweep.task import Row, Task, task_of

Engine = Callable[[Iterable[Task]], Iterator[tuple[str, Row]]]
"""Solves tasks in any order: exactly one (key, row) for each."""


class Watcher:
    """Told how a sweep goes; does nothing itself."""

    def begin(self, total: int, there: int) -> None:
        """Before the first point: how many there are, how many of them have an answer."""

    def solved(self, point: Point, row: Row) -> None:
        """A point's row has been kept."""

    def end(self) -> None:
        """After the last point, or when the sweep was interrupted."""


@dataclass(frozen=True)
class Summary:
    """How a sweep ended."""

    path: Path
    points: int
    twice: int
    there: int
    """Points that had an answer before."""
    solved: int
    """Points that were solved by this call."""
    statuses: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return {
            "schema": "layoutopt.sweep/1",
            "results": str(self.path),
            "points": self.points,
            "asked_twice": self.twice,
            "reused": self.there,
            "solved": self.solved,
            "statuses": self.statuses,
            "wall_s": self.wall_s,
        }


def run_sweep(
    spec: Spec,
    folder: str | Path,
    engine: Engine,
    watcher: Watcher | None = None,
    *,
    retry: bool = False,
    points: Points | None = None,
) -> Summary:
    """Solves what ``folder`` has no answer for and keeps each row as it comes.

    ``points`` are those of ``spec`` where they have been read already. ``retry`` solves failed and
    unproved points again. Raises InputError for a bad spec or a foreign store, before anything
    is solved.
    """
    began = time.monotonic()
    watcher = watcher or Watcher()
    points = points or points_of(spec)
    with Store.create(folder) as store:
        done = store.done(retry=retry)
        missing = [point for point in points.points if point.key not in done]
        store.begin(points.points, spec.text)
        there = len(points.points) - len(missing)
        watcher.begin(len(points.points), there)
        try:
            solved = _solve(points, missing, engine, store, watcher)
        finally:
            watcher.end()
        return Summary(
            path=Path(folder) / FILE,
            points=len(points.points),
            twice=points.twice,
            there=there,
            solved=solved,
            statuses=store.statuses(),
            wall_s=time.monotonic() - began,
        )


def _solve(
    points: Points, missing: list[Point], engine: Engine, store: Store, watcher: Watcher
) -> int:
    place = {point.key: number for number, point in enumerate(points.points)}
    open_points = {point.key: point for point in missing}
    solved = 0

    def keep(point: Point, row: Row) -> None:
        nonlocal solved
        store.put(point, place[point.key], row)
        watcher.solved(point, row)
        solved += 1

    for point in missing:
        if point.refused is not None:
            keep(open_points.pop(point.key), refused_row(point))
    rows = engine([task_of(point) for point in open_points.values()])
    for key, row in rows:
        # A scheduler may run a point twice: the first answer counts.
        if (found := open_points.pop(key, None)) is not None:
            keep(found, row)
    return solved


def refused_row(point: Point) -> Row:
    """The row of a point that no layout can answer; its question as far as it can be read."""
    row: Row = {name: point.asked[name] for name in QUESTION if name in point.asked}
    try:
        row["gpus"] = read_count(point.asked.get("gpus"), "gpus", most=MOST_GPUS)
    except InputError:
        row.pop("gpus", None)
    return {**row, "status": "refused", "reason": point.refused}
