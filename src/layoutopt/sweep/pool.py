"""The local engine: one process a core, each of which imports the solver once.

A worker that dies (killed, out of memory) takes down only what was in flight: those points are
tried again one at a time, so that the one that kills its worker is found and the others are not
blamed. Workers end when their parent does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_any

from layoutopt.sweep.task import Row, Task, failed_row, solve_task

DEATHS = 2
"""Workers that a point may kill while it runs alone before it counts as failed."""
_AHEAD = 2
"""Points in flight for each worker: one that runs, one that waits."""


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def solve_locally(tasks: Iterable[Task], workers: int) -> Iterator[tuple[str, Row]]:
    """Key and row of each task, as they are solved by ``workers`` processes.

    Closing the iterator ends the workers at once.
    """
    left, suspects, deaths = deque(tasks), deque[Task](), Counter[str]()
    while left or suspects:
        flying: dict[Future[Row], Task] = {}
        pool = _pool(min(workers, len(left) + len(suspects)))
        try:
            yield from _fly(pool, workers, left, suspects, flying)
        except BrokenProcessPool:
            alone = len(flying) == 1
            for future, task in flying.items():
                if future.done() and future.exception() is None:
                    yield task.key, future.result()
                    continue
                deaths[task.key] += alone
                if deaths[task.key] >= DEATHS:
                    yield task.key, failed_row(f"its worker process died {DEATHS} times")
                else:
                    suspects.append(task)
        finally:
            _end(pool)


def _fly(
    pool: ProcessPoolExecutor,
    workers: int,
    left: deque[Task],
    suspects: deque[Task],
    flying: dict[Future[Row], Task],
) -> Iterator[tuple[str, Row]]:
    """Feeds the pool and yields rows; raises BrokenProcessPool with ``flying`` as it stood."""
    while left or suspects or flying:
        source, most = (suspects, 1) if suspects else (left, _AHEAD * workers)
        while source and len(flying) < most:
            task = source.popleft()
            try:
                flying[pool.submit(solve_task, task)] = task
            except BrokenProcessPool:
                source.appendleft(task)
                raise
        done, _ = wait(flying, return_when=FIRST_COMPLETED)
        for future in done:
            row = future.result()
            yield flying.pop(future).key, row


def _pool(workers: int) -> ProcessPoolExecutor:
    # Fresh processes: no locks or connections of this one are copied into them.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)


def _end(pool: ProcessPoolExecutor) -> None:
    """Ends the workers without waiting for what they are at."""
    workers = multiprocessing.active_children()
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(timeout=10)


def _begin() -> None:
    """What a worker does first: it leaves Ctrl-C to its parent, and imports the solver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    # Late: the parent solves nothing. A fault here would break the pool; each point's row has it.
    with contextlib.suppress(Exception):
        import layoutopt.optimizer.search  # noqa: F401


def _end_with(sentinel: int) -> None:
    """Ends this process when its parent has ended, in whatever way, even amid a solve."""
    wait_for_any([sentinel])
    os._exit(1)
