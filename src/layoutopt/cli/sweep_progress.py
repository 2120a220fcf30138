"""How a sweep goes, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import click

from layoutopt.sweep.sweep import Watcher
from layoutopt.units import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from layoutopt.sweep.points import Point
    from layoutopt.sweep.task import Row

EVERY_S = 10.0
"""Seconds between two plain lines."""


class _Counting(Watcher):
    """Counts, and how fast they grow."""

    def __init__(self) -> None:
        self.total = self.there = self.solved_now = 0
        self.statuses: Counter[str] = Counter()
        self.began = time.monotonic()

    def begin(self, total: int, there: int) -> None:
        self.total, self.there, self.began = total, there, time.monotonic()

    def solved(self, point: Point, row: Row) -> None:
        self.solved_now += 1
        self.statuses[str(row["status"])] += 1

    @property
    def words(self) -> str:
        """Failed, infeasible and refused points, and the rate."""
        shown = [f"{self.statuses[name]:,} {name}" for name in ("failed", "infeasible", "refused")]
        elapsed = max(time.monotonic() - self.began, 1e-9)
        return f"{', '.join(shown)}, {self.solved_now / elapsed:.2f}/s"

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest takes at the rate so far."""
        if not self.solved_now:
            return None
        rate = (time.monotonic() - self.began) / self.solved_now
        return (self.total - self.there - self.solved_now) * rate


class PlainProgress(_Counting):
    """Whole lines: for logs."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        super().__init__()
        self.every_s, self._last = every_s, time.monotonic()

    def begin(self, total: int, there: int) -> None:
        super().begin(total, there)
        click.echo(f"{total:,} points, {there:,} of them solved before", err=True)

    def solved(self, point: Point, row: Row) -> None:
        super().solved(point, row)
        if time.monotonic() - self._last >= self.every_s:
            self._say()

    def _say(self) -> None:
        self._last = time.monotonic()
        left = f", {format_seconds(self.left_s)} left" if self.left_s else ""
        done = self.there + self.solved_now
        click.echo(f"{done:,} of {self.total:,} done: {self.words}{left}", err=True)

    def end(self) -> None:
        if self.solved_now:
            self._say()


class BarProgress(_Counting):
    """One bar that stays in its place."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, total: int, there: int) -> None:
        super().begin(total, there)
        self._bar = _bar()
        self._task = self._bar.add_task("sweep", total=total, completed=there, words="")
        self._bar.start()

    def solved(self, point: Point, row: Row) -> None:
        super().solved(point, row)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, words=self.words)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        # A long memory: points differ, and workers answer in bursts.
        TimeRemainingColumn(),
        console=Console(stderr=True),
        speed_estimate_period=120.0,
    )


def progress_of(quiet: bool) -> Watcher:
    """The progress that fits standard error; none at all where it is to be quiet."""
    if quiet:
        return Watcher()
    return BarProgress() if sys.stderr.isatty() else PlainProgress()
