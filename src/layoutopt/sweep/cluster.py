"""The distributed engine: an existing dask scheduler, or one that dask-jobqueue starts on Slurm.

Dask hands out the points and repeats those whose worker died. What it cannot repair is repaired
here: where the scheduler is restarted, the points without a row are submitted again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from layoutopt.errors import InputError, ToolError
from layoutopt.sweep.task import Row, Task, failed_row, solve_task

if TYPE_CHECKING:
    from distributed import Client, Future

SLURM = "slurm"
CONNECT_S = 30.0
"""Seconds of one attempt to reach the scheduler."""
CLOSE_S = 3.0
"""Seconds that the end of a connection may take: its scheduler may be gone."""
PATIENCE_S = 600.0
"""Seconds without a scheduler, or without any worker, after which the sweep gives up."""
_AHEAD = 3
"""Points in flight for each thread of the cluster."""


class _LostError(Exception):
    """The scheduler is gone, and with it what was in flight."""


def need_dask() -> None:
    """Raises ToolError where dask.distributed is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise ToolError(
            "--dask needs dask.distributed, here and on the workers: pip install 'layoutopt[sweep]'"
        ) from None


def solve_on_dask(
    tasks: Iterable[Task], address: str, jobs: int, patience_s: float = PATIENCE_S
) -> Iterator[tuple[str, Row]]:
    """Key and row of each task, as the workers of a dask cluster solve them.

    ``address`` is the scheduler's (``tcp://host:8786``), or ``slurm``: then ``jobs`` Slurm jobs
    are started as dask's own configuration describes them. Each task yields exactly one row.
    Raises ToolError where no scheduler, or no worker, is there for ``patience_s``.
    """
    need_dask()
    if address == SLURM:
        with _slurm_cluster(jobs) as cluster:
            yield from _solve(tasks, cluster.scheduler_address, patience_s)
    else:
        yield from _solve(tasks, address, patience_s)


def _solve(tasks: Iterable[Task], address: str, patience_s: float) -> Iterator[tuple[str, Row]]:
    left = {task.key: task for task in tasks}
    since = time.monotonic()
    reached = False
    while left:
        try:
            with _client(address) as client:
                reached = True
                _wait_for_worker(client, since, patience_s)
                for key, row in _rows(client, list(left.values())):
                    del left[key]
                    since = time.monotonic()
                    yield key, row
        except (_LostError, OSError, TimeoutError) as error:
            if not reached:
                raise ToolError(f"no dask scheduler answers at {address}: {error}") from None
            if time.monotonic() - since > patience_s:
                raise ToolError(
                    f"the dask scheduler at {address} has been gone for {patience_s:.0f} s; what "
                    "is solved is kept, and the same command resumes"
                ) from None
            time.sleep(1.0)


@contextlib.contextmanager
def _client(address: str) -> Iterator[Client]:
    """A connection whose end leaves nothing on the scheduler."""
    from distributed import Client

    def connect() -> Client:
        return Client(address, timeout=CONNECT_S, set_as_default=False)

    try:
        try:
            client = connect()
        except AssertionError:  # the event loop of a client before this one is just ending
            time.sleep(1.0)
            client = connect()
    except ValueError as error:
        raise InputError(f"--dask {address}: {error}", field="dask", value=address) from None
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=CLOSE_S)


def _wait_for_worker(client: Client, since: float, patience_s: float) -> None:
    """Returns when the cluster has a worker."""
    while not _threads(client):
        if client.status != "running":
            raise _LostError
        if time.monotonic() - since > patience_s:
            raise ToolError(f"no dask worker came within {patience_s:.0f} s")
        time.sleep(0.2)


def _threads(client: Client) -> int:
    try:
        return sum(client.nthreads().values())
    except (AttributeError, RuntimeError, ValueError) as error:
        # What a client raises whose scheduler has just gone differs from release to release.
        raise _LostError from error


def _rows(client: Client, tasks: list[Task]) -> Iterator[tuple[str, Row]]:
    """Rows as they come; raises _LostError where the scheduler lost what was in flight."""
    from distributed import as_completed

    waiting = iter(tasks)
    flying: dict[Any, Task] = {}
    coming = as_completed(loop=client.loop)

    def submit(number: int) -> None:
        for _, task in zip(range(number), waiting, strict=False):
            future = client.submit(solve_task, task, key=f"layoutopt-{task.key}", pure=False)
            flying[future] = task
            coming.add(future)

    submit(_AHEAD * _threads(client))
    for future in coming:
        task = flying.pop(future)
        if future.status in ("pending", "lost") and client.status == "running":
            # Its worker died with the row before it was fetched: the scheduler does it again.
            flying[future] = task
            coming.add(future)
            continue
        yield task.key, _result(future, task)
        future.release()
        if client.status != "running":
            raise _LostError
        submit(_AHEAD * _threads(client) - len(flying))


def _result(future: Future, task: Task) -> Row:
    """The row of a finished future; a point that kills every worker it meets has failed."""
    from distributed import CancelledError, KilledWorker

    if future.status in ("cancelled", "lost", "pending"):
        raise _LostError
    if future.status != "error":
        try:
            row: Row = future.result()
        except (CancelledError, KilledWorker, OSError, TimeoutError) as gone:
            if future.status != "error":  # lost on its way here
                raise _LostError from gone
        else:
            return row
    error = future.exception()
    if isinstance(error, ToolError):
        raise error
    if isinstance(error, KilledWorker):
        return failed_row(f"every worker that had it died: {error}")
    if isinstance(error, ImportError):
        raise ToolError(f"a dask worker cannot load layoutopt: {error}; install it there")
    return failed_row(f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _slurm_cluster(jobs: int) -> Iterator[Any]:
    """A scheduler here and ``jobs`` workers in Slurm jobs, ended with the sweep."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise ToolError(
            "--dask slurm needs dask-jobqueue: pip install 'layoutopt[sweep]'"
        ) from None
    try:
        cluster = SLURMCluster()
    except (ValueError, TypeError) as error:
        raise ToolError(
            f"dask-jobqueue cannot describe a job: {error}; set jobqueue.slurm cores and memory in "
            "dask's configuration (docs/sweeps.md)"
        ) from None
    try:
        cluster.scale(jobs=jobs)
        yield cluster
    finally:
        cluster.close()
