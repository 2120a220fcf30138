"""A dask scheduler and workers as real processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0


class DaskCluster:
    """Started process by process; ``close`` ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_scheduler(self) -> None:
        """On the cluster's port, also after an earlier one has gone; returns when it answers."""
        place = ("--host", "127.0.0.1", "--port", str(self.port))
        self.scheduler = self._start("scheduler", *place, "--no-dashboard", "--no-show")
        end = time.monotonic() + PATIENCE_S
        while not self._answers():
            if time.monotonic() > end:
                raise TimeoutError(f"no scheduler within {PATIENCE_S} s")
            time.sleep(0.1)

    def _answers(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self.port)) == 0

    def start_worker(self) -> subprocess.Popen[bytes]:
        """One process of one thread, which nothing restarts."""
        how = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0")
        worker = self._start("worker", self.address, *how)
        self.workers.append(worker)
        return worker

    def need_worker(self) -> None:
        """One worker at the least."""
        if all(worker.poll() is not None for worker in self.workers):
            self.start_worker()

    def close(self) -> None:
        """Kills what is left."""
        for process in (self.scheduler, *self.workers):
            if process is not None:
                kill(process)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A dask process whose tasks may come from the tests; its words go to a file."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdout=log,
                stderr=log,
            )


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and wait for it."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
