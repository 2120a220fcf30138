"""What sweeps cost: a thousand points, dask against itself, a resume, a hundred thousand rows.

    python -m benchmarks.sweep                    prints the figures
    python -m benchmarks.sweep points resume      some of them
    python -m benchmarks.sweep --record           also writes results/DATE_sweep.md

Wall seconds are what a person waits on an idle machine; CPU seconds (of all processes together)
tell how far the machine was busy with something else: on two free cores wall is about half of CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_file import ROOT, new_file
from layoutopt.sweep.store import EXPORTED, FILE, Store

SPEC = """\
axes:
  model: [8B, 70B, 175B, 405B, 1T]
  gpu: [h100, a100, b200, mi300x]
  gpus: {logspace: [64, 65536, 50], multiple: 8}
"""
MOST_POINTS_S, MOST_PARENT_MIB = 480.0, 1024.0
DASK_SPEC = "axes: {model: [8B, 70B], gpus: {range: [64, 1024, 16]}}\n"
LEAST_SPEEDUP = 1.7
RESUME_SPEC = "axes: {gpus: {range: [64, 480, 32]}}\nfixed: {model: 8B}\n"
ROWS, MOST_ROWS_S = 100_000, 5.0


@dataclass(frozen=True)
class Ran:
    """One run of the command."""

    wall_s: float
    cpu_s: float
    parent_mib: float
    """Most memory that the parent held, its workers not counted."""
    out: str


def run(arguments: Sequence[str]) -> Ran:
    """``layoutopt ARGUMENTS`` as a process of its own, its memory looked at ten times a second."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([sys.executable, "-m", "layoutopt", *arguments], stdout=out)
        most = 0.0
        while True:
            most = max(most, _resident_mib(process.pid))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.1)
        wall = time.perf_counter() - began
        out.seek(0)
        if status:
            raise RuntimeError(f"layoutopt {' '.join(arguments)} ended with {status}")
        return Ran(wall, usage.ru_utime + usage.ru_stime, most, out.read())


def _resident_mib(pid: int) -> float:
    """Peak resident memory of a process so far; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    line = next((line for line in text.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(line.split()[1]) / 1024


def points(folder: Path) -> list[str]:
    """A thousand points on two cores."""
    spec, out = _spec(folder, SPEC), folder / "results"
    ran = run(["sweep", str(spec), "--out", str(out), "--workers", "2"])
    with Store.open(out) as store:
        statuses = store.statuses()
        solves = [row[0] for row in store.rows(columns=("search_s",))]
    proved = {"optimal", "infeasible"}.issuperset(statuses)
    each = sorted(value for value in solves if value is not None)
    return [
        f"{sum(statuses.values()):,} points: {statuses}, {'all' if proved else 'NOT all'} proved",
        f"wall {ran.wall_s:.0f} s (at most {MOST_POINTS_S:.0f} on two free cores), CPU "
        f"{ran.cpu_s:.0f} s, of which half is {ran.cpu_s / 2:.0f} s",
        f"search of a point: median {each[len(each) // 2]:.2f} s, longest {each[-1]:.2f} s",
        f"memory of the parent at most {ran.parent_mib:.0f} MiB (at most {MOST_PARENT_MIB:.0f})",
    ]


def dask(folder: Path) -> list[str]:
    """The same points with one dask worker and with two."""
    spec = _spec(folder, DASK_SPEC)
    walls = {}
    for workers in (1, 2):
        with _Dask(workers) as address:
            # Once to load the solver in each worker, which a long sweep does not notice.
            sizes = ",".join(str(8 * number) for number in range(1, 3 * workers + 1))
            there = ["--out", str(folder / f"with-{workers}"), "--dask", address, "--json"]
            run(["sweep", str(spec), "--set", f"gpus={sizes}", *there])
            # The sweep's own seconds: starting the command is no work of the cluster.
            walls[workers] = json.loads(run(["sweep", str(spec), *there]).out)["wall_s"]
    ratio = walls[1] / walls[2]
    return [
        f"one dask worker {walls[1]:.1f} s, two {walls[2]:.1f} s: {ratio:.2f} times as fast "
        f"(at least {LEAST_SPEEDUP} on two free cores)"
    ]


class _Dask:
    """A scheduler and workers as processes of their own."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> str:
        port = str(random.SystemRandom().randint(20_000, 30_000))
        address = f"tcp://127.0.0.1:{port}"
        self._start("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        for _ in range(self.workers):
            self._start("worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
        return address

    def _start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "dask", *arguments]
        quiet = subprocess.DEVNULL
        self.processes.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def resume(folder: Path) -> list[str]:
    """kill -9 amid a sweep, then the same command again."""
    spec, out = _spec(folder, RESUME_SPEC), folder / "killed"
    arguments = ["sweep", str(spec), "--out", str(out), "--workers", "2", "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "layoutopt", *arguments])
    while _count(out) < 4:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = _count(out)
    run(arguments)
    with Store.open(out) as store:
        solves = [row[0] for row in store.rows(columns=("solves",))]
    return [
        f"killed after {kept} of {len(solves)} points; after the second run {sum(solves)} solves "
        f"in {len(solves)} rows, the most of one row {max(solves)}"
    ]


def _count(folder: Path) -> int:
    if not (folder / FILE).exists():
        return 0
    with Store.open(folder) as store:
        return sum(store.statuses().values())


def rows(folder: Path) -> list[str]:
    """A hundred thousand stored rows: opened, filtered, exported."""
    spec, out = _spec(folder, "axes: {gpus: [64]}\nfixed: {model: 8B}\n"), folder / "many"
    run(["sweep", str(spec), "--out", str(out), "--quiet"])
    _multiply(out, ROWS)
    lines = []
    for name in ("rows.parquet", "rows.csv", "rows.jsonl"):
        ran = run(
            ["report", str(out), "--filter", "gpus >= 64 and mfu > 0", "--out", str(folder / name)]
        )
        lines.append(
            f"{ran.out.strip()}: wall {ran.wall_s:.1f} s, CPU {ran.cpu_s:.1f} s (at most "
            f"{MOST_ROWS_S:.0f} s), {ran.parent_mib:.0f} MiB"
        )
    return [line.replace(f"{folder}/", "") for line in lines]


def _multiply(folder: Path, number: int) -> None:
    """Copies of the one row, with keys, places and GPU counts of their own."""
    with Store.open(folder) as store:
        (row,) = store.rows()
    names = [*EXPORTED, "place"]
    base = sqlite3.connect(folder / FILE)
    text = ", ".join(f'"{name}"' for name in names)
    at = {name: names.index(name) for name in ("key", "gpus")}

    def copy(place: int) -> tuple[object, ...]:
        values = [*row, place]
        values[at["key"]], values[at["gpus"]] = f"{place:032x}", 64 + 8 * place
        return tuple(values)

    with base:
        base.executemany(
            f"INSERT INTO points ({text}) VALUES ({', '.join('?' * len(names))})",
            map(copy, range(1, number)),
        )
    base.close()


def _spec(folder: Path, text: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(text)
    return path


PARTS: dict[str, Callable[[Path], list[str]]] = {
    "points": points,
    "dask": dask,
    "resume": resume,
    "rows": rows,
}


def circumstances(parts: Sequence[str]) -> list[str]:
    """Where and on what the figures were measured."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [
        f"command   python -m benchmarks.sweep {' '.join(parts)} --record",
        f"commit    {described.stdout.strip() or 'unknown'}",
        f"machine   {os.cpu_count()} cores, {platform.system()} {platform.machine()}, load "
        f"{os.getloadavg()[0]:.1f} when it began",
    ]


def main() -> None:
    """Prints the figures; with --record writes them too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--record", action="store_true", help="also write results/DATE_sweep.md")
    arguments = parser.parse_args()
    chosen = arguments.parts or list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    lines = circumstances(chosen)
    print("\n".join(lines), flush=True)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            found = [f"{name:<9} {line}" for line in PARTS[name](Path(folder))]
        print("\n".join(found), flush=True)
        lines += ["", *found]
    lines.append(f"load      {os.getloadavg()[0]:.1f} when it ended")
    if arguments.record:
        path = new_file("sweep", ".md")
        path.write_text("\n".join(["# Sweeps", "", "```text", *lines, "```", ""]), "utf-8")


if __name__ == "__main__":
    main()
