"""How the search grows with the question, beside trying everything.

    python -m benchmarks.search             prints the table
    python -m benchmarks.search --record    also writes results/DATE_search.md

CPU seconds of one process, the best of a few runs, imports left out: with one worker, the wall
seconds of an idle core. Trying everything is timed twice: with the vectorised cost model over all
legal layouts, and with ``estimate`` one layout after another, on a sample, scaled. A question whose
two answers differ is marked.
"""

from __future__ import annotations

import argparse
import importlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from benchmarks.results_file import circumstances, new_file
from layoutopt.costmodel.axes import Ints, ints
from layoutopt.costmodel.checkpoint import checkpoint_bytes, checkpoint_cost, run_wall_s
from layoutopt.costmodel.estimate import estimate
from layoutopt.inputs.request import read_solve
from layoutopt.optimizer.pricing import complete, price, row
from layoutopt.optimizer.program import Program
from layoutopt.optimizer.question import AXES, Budget, Question
from layoutopt.optimizer.rounds import Found, Rounds
from layoutopt.optimizer.space import Space, layout_of, space_of

COMMAND = "python -m benchmarks.search --record"
MODEL, GPUS = "1T", (64, 256, 1024, 4096, 16384, 65536, 131072)
REPEATS = 3
SAMPLE = 500
"""Layouts priced one by one."""
ROWS_AT_ONCE = 50_000
SAME = 1e-6
"""Wall times closer than this, relatively, are the same answer: the solver's resolution."""
PEERS_LAYOUTS_PER_CPU_S = 300
"""Calculon's exhaustive search (Isaev et al. 2023, SC23): 797 CPU-seconds for 1T on 4,096 GPUs
without offload. As this project's task on the search states it; not measured here."""


class Watched(Rounds):
    """The search as it is, with a note of when each layout was found."""

    def __init__(self, space: Space) -> None:
        self.began = time.process_time()
        self.found_at: list[tuple[float, float]] = []
        """(seconds since the start, wall time of the run)."""
        self.rounds = 0
        super().__init__(space, Budget(seconds=600.0), time.monotonic())

    def _found(self, chosen: dict[str, int]) -> Found:
        found = super()._found(chosen)
        self.found_at.append((time.process_time() - self.began, found.estimate.run.wall_time_s))
        return found

    def _narrow(self, program: Program) -> None:
        self.rounds += 1
        self.rows = sum(size.rows for size in program.sizes)
        super()._narrow(program)


@dataclass(frozen=True)
class Searched:
    """One search: seconds from the question on, and how large the model was."""

    first_s: float | None
    optimum_s: float | None
    """None where nothing fits."""
    proof_s: float
    rounds: int
    rows: int
    """Of all tables."""
    rows_left: int
    """After the warm start's cut-off."""
    proved: bool
    wall_time_s: float | None
    """Of the best run; None where nothing fits."""


@dataclass(frozen=True)
class Tried:
    """Trying every layout: seconds, and the best run."""

    seconds: float
    layouts: int
    wall_time_s: float | None


@dataclass(frozen=True)
class Line:
    """One question of the table."""

    question: Question
    layouts: int
    searched: Searched
    tried: Tried
    one_by_one_s: float

    @property
    def agree(self) -> bool:
        """Both found the same run, or none."""
        mine, other = self.searched.wall_time_s, self.tried.wall_time_s
        if mine is None or other is None:
            return mine is other
        return abs(mine / other - 1) <= SAME


def questions() -> Iterator[Question]:
    """The questions of the table, as the command reads them."""
    for gpus in GPUS:
        yield read_solve({"model": MODEL, "gpus": gpus}).question
    yield read_solve({"model": "405B", "gpus": 6000, "global_batch": 1500}).question


def searched(question: Question) -> Searched:
    """One search, from the question to the proof."""
    began = time.process_time()
    space = space_of(question)
    watched = Watched(space)
    before = watched.began - began
    ended = watched.run()
    proof = time.process_time() - began
    best = ended.best.estimate.run.wall_time_s if ended.best else None
    tables = (watched.tables.layer, watched.tables.ends, watched.tables.shard)
    rows = sum(len(table) for table in (*tables, watched.floors.shape))
    rows += len(space.grids) + len(space.batches) + len(space.chunks)
    times = [(before + at, wall) for at, wall in watched.found_at]
    return Searched(
        first_s=min((at for at, _ in times), default=None),
        optimum_s=min((at for at, wall in times if wall == best), default=None),
        proof_s=proof,
        rounds=watched.rounds,
        rows=rows,
        rows_left=watched.rows,
        proved=ended.proved,
        wall_time_s=best,
    )


def every_legal(space: Space) -> Iterator[dict[str, Ints]]:
    """All legal layouts, a few shapes (tp, cp, pp, micro_batch) at a time."""
    by_dp: dict[int, list[int]] = {}
    for dp, micro_batch, _ in space.batches:
        by_dp.setdefault(dp, []).append(micro_batch)
    shapes = ints([(tp, cp, pp, b) for tp, cp, pp, dp in space.grids for b in by_dp.get(dp, [])])
    rest = [ints(space.values[axis]) for axis in ("ep", "vpp", "zero_stage", "recompute")]
    at_once = max(1, ROWS_AT_ONCE // int(np.prod([len(values) for values in rest])))
    for first in range(0, len(shapes), at_once):
        places = np.arange(first, min(first + at_once, len(shapes)))
        place, *others = (grid.ravel() for grid in np.meshgrid(places, *rest, indexing="ij"))
        tp, cp, pp, micro_batch = shapes[place].T
        free = {"tp": tp, "cp": cp, "pp": pp, "micro_batch": micro_batch}
        named = zip(("ep", "vpp", "zero_stage", "recompute"), others, strict=True)
        yield complete(space, {**free, **dict(named)})


def tried(space: Space) -> Tried:
    """Every legal layout priced with the vectorised cost model; the best run of those that fit."""
    began, layouts, best = time.process_time(), 0, np.inf
    size = checkpoint_bytes(space.job)
    for columns in every_legal(space):
        layouts += len(columns["tp"])
        seconds, over = price(space, columns)
        fits = over == 0
        _, write, stall = checkpoint_cost(
            space.job, *(columns[axis][fits] for axis in ("tp", "pp", "zero_stage"))
        )
        walls = run_wall_s(space.job, seconds[fits], write, stall, size)
        best = min(best, float(walls.min(initial=np.inf)))
    seconds_taken = time.process_time() - began
    return Tried(seconds_taken, layouts, best if np.isfinite(best) else None)


def one_by_one_s(space: Space) -> float:
    """Seconds that ``estimate`` takes for every layout, scaled from a sample."""
    columns = [columns for columns in every_legal(space) if len(columns["tp"])]
    joined = {axis: np.concatenate([one[axis] for one in columns]) for axis in AXES}
    places = random.Random(0).choices(range(space.candidates), k=SAMPLE)
    layouts = [layout_of(space.question, row(joined, place)) for place in places]
    began = time.process_time()
    for layout in layouts:
        estimate(space.job, layout)
    return (time.process_time() - began) / SAMPLE * space.candidates


def measured(question: Question) -> Line:
    """One line of the table."""
    space = space_of(question)
    searches = [searched(question) for _ in range(REPEATS)]
    whole = min((tried(space) for _ in range(REPEATS)), key=lambda one: one.seconds)
    if whole.layouts != space.candidates:
        raise ValueError(f"{whole.layouts} layouts listed, {space.candidates} counted")
    return Line(
        question=question,
        layouts=space.candidates,
        searched=min(searches, key=lambda one: one.proof_s),
        tried=whole,
        one_by_one_s=one_by_one_s(space),
    )


def report() -> Iterator[str]:
    """The table, line by line."""
    yield (
        f"{'':22} {'legal':>8} {'table rows':>13}         {'found':>6} {'':>6} {'':>6}  "
        f"{'all at':>6} {'one by':>6} {'at 300':>6}"
    )
    yield (
        f"{'CPU seconds':22} {'layouts':>8} {'all':>6} {'left':>6} {'rounds':>6}  {'first':>6} "
        f"{'best':>6} {'proof':>6}  {'once':>6} {'one':>6} {'a s':>6}"
    )
    for question in questions():
        yield line_of(measured(question))


def line_of(line: Line) -> str:
    """One question as text."""
    job, done = line.question.job, line.searched
    name = f"{job.model.name.removeprefix('llama-3.1-')} on {job.gpus:,}"
    peers = line.layouts / PEERS_LAYOUTS_PER_CPU_S
    return (
        f"{name:22} {line.layouts:8,} {done.rows:6,} {done.rows_left:6,} {done.rounds:6}  "
        f"{_seconds(done.first_s)} {_seconds(done.optimum_s)} {_seconds(done.proof_s)}  "
        f"{_seconds(line.tried.seconds)} {line.one_by_one_s:6.0f} {peers:6.0f}{_remark(line)}"
    )


def _seconds(seconds: float | None) -> str:
    return f"{seconds:6.2f}" if seconds is not None else f"{'-':>6}"


def _remark(line: Line) -> str:
    if not line.searched.proved:
        return "  NOT PROVED"
    if not line.agree:
        return "  NOT THE SAME"
    return "" if line.tried.wall_time_s is not None else "  nothing fits"


def main() -> None:
    """Prints the table; with --record writes it too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", action="store_true", help="also write results/DATE_search.md")
    record = parser.parse_args().record
    importlib.import_module("ortools.sat.python.cp_model")
    made = circumstances(COMMAND)
    versions = {**made["versions"], "ortools": version("ortools")}
    made["versions"] = ", ".join(f"{name} {number}" for name, number in versions.items())
    lines = [*(f"{name:<10} {value}" for name, value in made.items()), ""]
    print("\n".join(lines))
    for line in report():
        print(line, flush=True)
        lines.append(line)
    if record:
        path = new_file("search", ".md")
        text = "\n".join([f"# Search, {made['date']}", "", "```text", *lines, "```", ""])
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
