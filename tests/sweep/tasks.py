"""Stand-ins for a solve that dask workers import by name."""

from __future__ import annotations

import time

from layoutopt.sweep.task import Row, Task


def slow(task: Task) -> Row:
    """A row after a while."""
    time.sleep(0.5)
    return {"status": "optimal", "gpus": task.options["gpus"]}


def broken(task: Task) -> Row:
    """A row, or a fault that is no row."""
    if task.options["gpus"] == 16:
        raise ZeroDivisionError("a slip")
    return {"status": "optimal", "gpus": task.options["gpus"]}
