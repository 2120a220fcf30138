"""How long people wait: cold wall times of the commands, and layouts priced a second.

    python -m benchmarks.speed             prints the figures
    python -m benchmarks.speed --record    also writes results/DATE_speed.md

A cold time is that of a fresh process, the best and the median of a few. The rate is that of the
vectorised cost model (step time and memory, what the solver's bounds use) on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np

from layoutopt.costmodel.axes import ONE_F_ONE_B, Axes, Ints
from layoutopt.costmodel.estimate import allocated_kib, step_seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.rules import divisors

RESULTS = Path(__file__).parent / "results"
_LARGE = ("--model", "405B", "--seq-len", "8192", "--global-batch", "2048")
_LAYOUT = ("--layout", "tp=8,cp=1,pp=16,dp=128")


@dataclass(frozen=True)
class Timed:
    """A command, how often it is run, and what it may take: seconds of wall time, or none."""

    arguments: tuple[str, ...]
    repeats: int
    target_s: float | None


COMMANDS = (
    Timed(("--version",), 7, 0.3),
    Timed(("estimate", *_LARGE, "--gpus", "16384", *_LAYOUT), 5, 0.7),
    Timed(("solve", "--model", "1T", "--gpus", "16384"), 5, 3.0),
    Timed(("solve", "--model", "1T", "--gpus", "131072"), 3, None),
    Timed(("solve", "--model", "405B", "--gpus", "6000", "--global-batch", "1500"), 3, 3.0),
)
LARGER, SMALLER, MOST_RATIO = COMMANDS[3], COMMANDS[2], 1.5
TARGET_LAYOUTS_PER_S = 300_000


def cold_seconds(timed: Timed) -> list[float]:
    """Wall seconds of each fresh process, rising."""
    command = [sys.executable, "-m", "layoutopt", *timed.arguments]
    seconds = []
    for _ in range(timed.repeats):
        start = time.perf_counter()
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)


def status_of(timed: Timed) -> str:
    """The status of the answer; a dash where the command has none."""
    if timed.arguments[0] not in ("solve", "estimate"):
        return "-"
    command = [sys.executable, "-m", "layoutopt", *timed.arguments, "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    return str(answer.get("status", answer.get("message")))


def layouts(job: Job, micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16)) -> Axes:
    """Every division of the job's GPUs and batch over the axes, as arrays.

    Memory and a framework's rules are left out: they cost the pricing nothing.
    """
    rows = np.array(list(_rows(job, micro_batches)), dtype=np.int64)
    tp, cp, pp, dp, micro_batch, microbatches, vpp, zero_stage, recompute = rows.T
    ones = np.ones_like(tp)
    return Axes(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        ep=ones,
        etp=ones,
        vpp=vpp,
        micro_batch=micro_batch,
        microbatches=microbatches,
        zero_stage=zero_stage,
        recompute=recompute,
        sequence_parallel=tp > 1,
        schedule=np.full_like(tp, ONE_F_ONE_B),
        shard_degree=dp * cp,
        reshard=np.ones(len(tp), dtype=bool),
    )


def _rows(job: Job, micro_batches: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    batch = job.training.global_batch
    for tp, cp, pp in product(divisors(64), (1, 2, 4, 8), divisors(job.model.layers)):
        dp, rest = divmod(job.gpus, tp * cp * pp)
        if rest or dp == 0:
            continue
        chunks = divisors(job.model.layers // pp) if pp > 1 else [1]
        for micro_batch, vpp, zero_stage, recompute in product(
            micro_batches, chunks, range(4), range(3)
        ):
            microbatches, left = divmod(batch, dp * micro_batch)
            if left == 0:
                yield tp, cp, pp, dp, micro_batch, microbatches, vpp, zero_stage, recompute


def layouts_per_second(job: Job, repeats: int = 5) -> tuple[float, int]:
    """Layouts that step time and memory are computed of in a second, and how many were tried."""
    axes = layouts(job)
    best = min(_seconds_to_price(job, axes) for _ in range(repeats))
    return len(axes.tp) / best, len(axes.tp)


def _seconds_to_price(job: Job, axes: Axes) -> float:
    start = time.process_time()
    step_seconds(job, axes)
    _: Ints = allocated_kib(job, axes)
    return time.process_time() - start


def large_job() -> Job:
    """1T on 16,384 GPUs, as the command reads it."""
    from layoutopt.inputs.request import read_solve

    return read_solve({"model": "1T", "gpus": 16384}).job


def report() -> list[str]:
    """The figures as lines of text."""
    lines = [f"{'best':>7} {'median':>7} {'target':>7}  {'status':<9} command"]
    best: dict[Timed, float] = {}
    for timed in COMMANDS:
        seconds = cold_seconds(timed)
        best[timed] = seconds[0]
        target = f"{timed.target_s:.1f} s" if timed.target_s else "-"
        lines.append(
            f"{seconds[0]:5.2f} s {statistics.median(seconds):5.2f} s {target:>7}  "
            f"{status_of(timed):<9} layoutopt {' '.join(timed.arguments)}"
        )
    ratio = best[LARGER] / best[SMALLER]
    lines.append(f"131,072 GPUs take {ratio:.2f} times as long as 16,384 (at most {MOST_RATIO})")
    rate, tried = layouts_per_second(large_job())
    lines.append(
        f"{rate:,.0f} layouts a second on one core ({tried:,} layouts of 1T on 16,384 GPUs, step "
        f"time and memory; at least {TARGET_LAYOUTS_PER_S:,})"
    )
    return lines


def circumstances() -> list[str]:
    """Where and on what the figures were measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        check=False,
        capture_output=True,
        text=True,
    ).stdout.strip()
    packages = " ".join(f"{name} {version(name)}" for name in ("layoutopt", "ortools", "numpy"))
    return [
        "command   python -m benchmarks.speed --record",
        f"commit    {commit or 'unknown'}",
        f"machine   {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        f"versions  Python {platform.python_version()}, {packages}",
    ]


def main() -> None:
    """Prints the figures; with --record writes them too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", action="store_true", help="also write results/DATE_speed.md")
    record = parser.parse_args().record
    lines = [*circumstances(), "", *report()]
    print("\n".join(lines))
    if record:
        day = datetime.now(UTC).date().isoformat()
        text = "\n".join([f"# Speed, {day}", "", "```text", *lines, "```", ""])
        (RESULTS / f"{day}_speed.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
