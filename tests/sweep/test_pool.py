"""The local engine with real processes: killed workers, a killed parent, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest

import layoutopt
from layoutopt.sweep.columns import answer_row
from layoutopt.sweep.pool import DEATHS, solve_locally
from layoutopt.sweep.store import Store
from layoutopt.sweep.sweep import run_sweep
from layoutopt.sweep.task import Row, Task, solve_task, task_of
from tests.sweep.builders import WALL, answers, points, spec_of

PATIENCE_S = 120.0


def test_a_point_is_a_solve(tmp_path: Path) -> None:
    """The same columns as by hand, from two processes."""
    spec = spec_of(axes={"gpus": [8, 64]}, fixed={"model": "8B", "fix.tp": 2, "precision": "fp8"})
    run_sweep(spec, tmp_path, partial(solve_locally, workers=2))
    with Store.open(tmp_path) as store:
        rows = answers(store)
    for row, gpus in zip(rows, (8, 64), strict=True):
        by_hand = answer_row(layoutopt.solve(model="8B", gpus=gpus, fix={"tp": 2}, precision="fp8"))
        assert by_hand["status"] == "optimal"
        assert {name: row[name] for name in by_hand if name not in WALL} == {
            name: value for name, value in by_hand.items() if name not in WALL
        }
    assert not active_children()


def _dies(task: Task) -> Row:
    """Stands in for a point that takes its worker down."""
    if task.options["gpus"] == 16:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"status": "optimal", "gpus": task.options["gpus"]}


def test_a_point_that_kills_its_workers_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layoutopt.sweep.pool.solve_task", _dies)
    monkeypatch.setattr("layoutopt.sweep.pool._begin", _nothing)
    tasks = [task_of(point) for point in points(axes={"gpus": [8, 16, 32, 64]})]
    found = dict(solve_locally(tasks, 2))
    assert [found[task.key]["status"] for task in tasks] == [
        "optimal", "failed", "optimal", "optimal",
    ]  # fmt: skip
    assert f"died {DEATHS} times" in found[tasks[1].key]["reason"]


def _nothing() -> None:
    """A worker that imports nothing."""


def test_a_killed_worker_loses_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, from outside: the points in flight are solved by the next workers."""
    monkeypatch.setattr("layoutopt.sweep.pool._begin", _nothing)
    monkeypatch.setattr("layoutopt.sweep.pool.solve_task", _slow)
    tasks = [task_of(point) for point in points(axes={"gpus": [8, 16, 32, 64]})]
    found: dict[str, Row] = {}
    for key, row in solve_locally(tasks, 2):
        if not found:
            os.kill(active_children()[0].pid or 0, signal.SIGKILL)
        assert key not in found
        found[key] = row
    assert [found[task.key]["gpus"] for task in tasks] == [8, 16, 32, 64]


def _slow(task: Task) -> Row:
    time.sleep(0.3)
    return {"status": "optimal", "gpus": task.options["gpus"]}


def test_a_fault_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: object, stdin: object, **how: object) -> None:
        raise ZeroDivisionError("a slip")

    monkeypatch.setattr("layoutopt.api.answer_solve", broken)
    row = solve_task(task_of(points()[0]))
    assert (row["status"], row["reason"]) == ("failed", "ZeroDivisionError: a slip")
    assert (row["model"], row["gpus"]) == ("llama-3.1-8b", 8)


def test_a_worker_with_another_model_is_refused() -> None:
    task = Task("k", {"model": "8B", "gpus": 8}, "0.0.1+other")
    with pytest.raises(layoutopt.ToolError, match="same layoutopt everywhere"):
        solve_task(task)


POINTS = 6
SWEEP = ("--set", "model=8B", "--set", "gpus=8,16,24,32,40,48", "--workers", "2")


def _start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "layoutopt", "sweep", *SWEEP, "--out", str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def _solves(folder: Path) -> list[int]:
    """How often each row has been solved; none before there is a store."""
    try:
        with Store.open(folder) as store:
            return [solves for (solves,) in store.rows(columns=("solves",))]
    except layoutopt.InputError:
        return []


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(status.parent.name))
    return found


def _gone(pid: int) -> bool:
    """No such process, or only its record."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_after_kill_9_workers_end_and_nothing_is_solved_twice(tmp_path: Path) -> None:
    sweep = _start(tmp_path)
    _until(lambda: len(_solves(tmp_path)) >= 1)
    workers = _children(sweep.pid)
    assert len(workers) >= 2
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    kept = len(_solves(tmp_path))
    assert 1 <= kept < POINTS
    _until(lambda: all(map(_gone, workers)))
    again = _start(tmp_path)
    out, err = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, err
    assert f"{POINTS - kept} now, {kept} before" in out
    assert _solves(tmp_path) == [1] * POINTS


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_ctrl_c_ends_cleanly_and_keeps_what_is_done(tmp_path: Path) -> None:
    sweep = _start(tmp_path)
    _until(lambda: len(_solves(tmp_path)) >= 1)
    workers = _children(sweep.pid)
    os.killpg(sweep.pid, signal.SIGINT)
    out, err = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err
    assert f"kept in {tmp_path}" in err
    assert 1 <= len(_solves(tmp_path)) < POINTS
    _until(lambda: all(map(_gone, workers)))
    assert not out
