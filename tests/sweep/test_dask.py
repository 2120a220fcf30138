"""The distributed engine against real dask processes: killed workers, a restarted scheduler."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layoutopt.errors import InputError, ToolError
from layoutopt.sweep import cluster as engine
from layoutopt.sweep.cluster import SLURM, solve_on_dask
from layoutopt.sweep.store import Store
from layoutopt.sweep.sweep import run_sweep
from layoutopt.sweep.task import Row, Task, solve_task, task_of
from tests.sweep import tasks
from tests.sweep.builders import answers, points, spec_of
from tests.sweep.dask_cluster import DaskCluster, kill

if os.environ.get("LAYOUTOPT_REQUIRE_DASK"):
    import dask_jobqueue  # noqa: F401
    import distributed  # noqa: F401
else:
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")

SIX = {"gpus": [8, 16, 24, 32, 40, 48]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A scheduler for the whole file, which a test restarts; workers are started by the tests."""
    found = DaskCluster(tmp_path_factory.mktemp("dask"))
    found.start_scheduler()
    yield found
    found.close()


def here(given: Any) -> Iterator[tuple[str, Row]]:
    """The tasks one by one in this process."""
    for task in given:
        yield task.key, solve_task(task)


def test_without_a_scheduler_or_a_worker_it_gives_up(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [task_of(point) for point in points()]
    with pytest.raises(ToolError, match="no dask worker came"):
        list(solve_on_dask(given, cluster.address, 1, patience_s=0.5))
    monkeypatch.setattr(engine, "CONNECT_S", 0.5)
    with pytest.raises(ToolError, match=r"no dask scheduler answers at tcp://127\.0\.0\.1:1"):
        list(solve_on_dask(given, "tcp://127.0.0.1:1", 1))
    with pytest.raises(InputError, match="--dask nonsense://x"):
        list(solve_on_dask(given, "nonsense://x", 1))


def test_a_killed_worker_changes_no_row(cluster: DaskCluster, tmp_path: Path) -> None:
    """Two workers, one killed by its pid amid the sweep: row for row what a local sweep stores."""
    first, _ = cluster.start_worker(), cluster.start_worker()

    def distributed_engine(given: Any) -> Iterator[tuple[str, Row]]:
        for number, found in enumerate(solve_on_dask(given, cluster.address, 1)):
            if number == 0:
                kill(first)
            yield found

    # On a busy machine a search that runs out of time would answer "feasible".
    fixed = {"model": "8B", "time_limit": 600}
    spec = spec_of(axes={"gpus": [8, 16, 24, 32, 50], "fix.tp": [4]}, fixed=fixed)
    summary = run_sweep(spec, tmp_path / "dask-results", distributed_engine)
    run_sweep(spec, tmp_path / "local", here)
    assert summary.solved == 5
    with Store.open(tmp_path / "dask-results") as mine, Store.open(tmp_path / "local") as other:
        assert answers(mine) == answers(other)
        assert {row["solves"] for row in answers(mine)} == {1}
        assert mine.statuses() == {"optimal": 4, "refused": 1}


def test_rows_that_a_worker_took_with_it_are_solved_again(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only worker has finished rows that nobody has fetched when it is killed."""
    monkeypatch.setattr(engine, "solve_task", tasks.slow)
    for worker in cluster.workers:
        kill(worker)
    alone = cluster.start_worker()
    given = [task_of(point) for point in points(axes=SIX)]
    found: list[tuple[str, Any]] = []
    for key, row in solve_on_dask(given, cluster.address, 1):
        if not found:
            time.sleep(1.3)
            kill(alone)
            cluster.start_worker()
        found.append((key, row["gpus"]))
    assert sorted(found) == sorted((t.key, t.options["gpus"]) for t in given)


def test_a_point_that_fails_on_a_worker_is_a_row(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "solve_task", tasks.broken)
    cluster.need_worker()
    given = [task_of(point) for point in points()]
    found = dict(solve_on_dask(given, cluster.address, 1))
    assert [found[task.key]["status"] for task in given] == ["optimal", "failed"]
    assert "a slip" in found[given[1].key]["reason"]
    monkeypatch.setattr(engine, "solve_task", solve_task)
    other = [Task(task.key, task.options, "0.0.1+other") for task in given]
    with pytest.raises(ToolError, match="same layoutopt everywhere"):
        list(solve_on_dask(other, cluster.address, 1))


def test_a_restarted_scheduler_loses_no_point(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "solve_task", tasks.slow)
    cluster.need_worker()
    given = [task_of(point) for point in points(axes=SIX)]
    found: list[tuple[str, Any]] = []
    for key, row in solve_on_dask(given, cluster.address, 1):
        if len(found) == 1:
            assert cluster.scheduler is not None
            kill(cluster.scheduler)
            cluster.start_scheduler()
            cluster.start_worker()
        found.append((key, row["gpus"]))
    assert sorted(found) == sorted((t.key, t.options["gpus"]) for t in given)


SBATCH = """#!/usr/bin/env bash
# Stands in for Slurm's: runs the job script at once, and answers as sbatch does.
cp "$1" "$JOBS/$$.sh"
nohup bash "$JOBS/$$.sh" >"$JOBS/$$.log" 2>&1 &
echo $! >"$JOBS/$$.pid"
echo "Submitted batch job $$"
"""
SCANCEL = """#!/usr/bin/env bash
for job in "$@"; do
  [[ -f $JOBS/$job.pid ]] && pkill -9 -P "$(cat "$JOBS/$job.pid")"
  echo "$job" >>"$JOBS/cancelled"
done
"""


def test_workers_in_slurm_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dask-jobqueue writes and submits a real job script; only sbatch and scancel are ours."""
    import dask

    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JOBS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "solve_task", _gpus)
    slurm = {"cores": 1, "memory": "2GB", "interface": "lo", "python": sys.executable}
    given = [task_of(point) for point in points()]
    with dask.config.set({"jobqueue.slurm": {**dask.config.get("jobqueue.slurm"), **slurm}}):
        found = dict(solve_on_dask(given, SLURM, 1))
    assert [found[task.key]["gpus"] for task in given] == [8, 16]
    assert "#SBATCH --cpus-per-task=1" in next(tmp_path.glob("*.sh")).read_text()
    end = time.monotonic() + 30
    while not (tmp_path / "cancelled").exists():
        assert time.monotonic() < end, "the job was left running"
        time.sleep(0.1)


_gpus = lambda task: {"gpus": task.options["gpus"]}  # noqa: E731 (sent by value: jobs do not see the tests)


def test_a_slurm_job_that_nobody_described_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import dask

    bare = {**dask.config.get("jobqueue.slurm"), "cores": None}
    with (
        dask.config.set({"jobqueue.slurm": bare}),
        pytest.raises(ToolError, match=r"jobqueue\.slurm cores and memory"),
    ):
        list(solve_on_dask([], SLURM, 1))
