"""How the search grows with the question, beside trying everything.

    python -m benchmarks.search             prints the table
    python -m benchmarks.search --record    also writes results/DATE_search.md

CPU seconds of one process, the best of a few runs, imports left out: with one worker, the wall
seconds of an idle core. A search is the whole of what `solve` decides: even stages with their
proof, uneven ones, every order of the axes. Trying everything is trying every layout of even stages
(those of uneven ones cannot be listed), timed twice: with the vectorised cost model over all of
them, and with ``estimate`` one after another, on a sample, scaled. A question whose two answers
differ is marked.
"""

from __future__ import annotations

import argparse
import importlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.results_file import circumstances, new_file
from layoutopt.costmodel.axes import Ints, ints
from layoutopt.costmodel.checkpoint import checkpoint_bytes, checkpoint_cost, run_wall_s
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.results import Estimate
from layoutopt.errors import InternalError
from layoutopt.inputs.request import read_solve
from layoutopt.optimizer import choices, orders
from layoutopt.optimizer.pipelining import Pipelines
from layoutopt.optimizer.pricing import complete, price, row
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.rounds import Ended, Found, Rounds
from layoutopt.optimizer.space import Space, layout_of

COMMAND = "python -m benchmarks.search --record"
GPUS = (64, 256, 1024, 4096, 16384, 65536, 262144)
OTHERS: tuple[dict[str, object], ...] = (
    {"model": "405B", "gpus": 6000, "global_batch": 1500},
    {"model": "405B", "gpus": 16384},
    {"model": "deepseek-v3", "gpu": "h800", "gpus": 2048},
)
REPEATS = 2
SAMPLE = 300
"""Layouts priced one by one."""
ROWS_AT_ONCE = 50_000
SAME = 1e-6
"""Wall times closer than this, relatively, are the same answer: the solver's resolution."""
PEERS_LAYOUTS_PER_CPU_S = 300
"""Calculon's exhaustive search (Isaev et al. 2023, SC23): 797 CPU-seconds for 1T on 4,096 GPUs
without offload. As this project's task on the search states it; not measured here."""


@dataclass
class Notes:
    """What one search came to, and when."""

    began: float = field(default_factory=time.process_time)
    found: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the start, wall time of the run)."""
    even: list[Ended] = field(default_factory=list)
    """How the search of even stages ended, order by order."""

    def note(self, found: Estimate | None) -> None:
        """A layout that is known from now on."""
        if found is not None:
            self.found.append((time.process_time() - self.began, found.run.wall_time_s))

    def watched(self) -> Any:
        """The search of even stages and of the others, taking notes."""
        notes, inside = self, Pipelines._inside

        class Watched(Rounds):
            def _found(self, chosen: dict[str, int]) -> Found:
                found = super()._found(chosen)
                notes.note(found.estimate)
                return found

            def run(self) -> Ended:
                ended = super().run()
                notes.even.append(ended)
                return ended

        def watching(self: Pipelines, *args: Any) -> tuple[Estimate | None, bool]:
            best, sure = inside(self, *args)
            notes.note(best)
            return best, sure

        return patch.object(orders, "Rounds", Watched), patch.object(Pipelines, "_inside", watching)


@dataclass(frozen=True)
class Searched:
    """One search: seconds from the question on."""

    first_s: float | None
    optimum_s: float | None
    """None where nothing fits."""
    proof_s: float
    proved: bool
    even_s: float | None
    """Wall time of the best run with even stages in the first order; None where nothing fits."""
    wall_time_s: float | None
    """Of the best run; None where nothing fits."""
    outer: int
    inner: int
    """Choices of all but the split that were looked into, and splits that the solver was asked
    for."""


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
        """Both found the same run with even stages, or none; uneven ones are no worse."""
        mine, other, answer = (
            self.searched.even_s,
            self.tried.wall_time_s,
            self.searched.wall_time_s,
        )
        if mine is None or other is None:
            return mine is other
        return abs(mine / other - 1) <= SAME and answer is not None and answer <= mine * (1 + SAME)


def questions() -> Iterator[Question]:
    """The questions of the table, as the command reads them."""
    for gpus in GPUS:
        yield read_solve({"model": "1T", "gpus": gpus}).question
    for options in OTHERS:
        yield read_solve(options).question


def space_asked(question: Question) -> Space:
    """The question's space in its first order of the axes."""
    space = orders.first_space(question)
    if space is None:
        raise InternalError("a question of the table has no legal layout")
    return space


def searched(question: Question) -> Searched:
    """One search, from the question to the proof."""
    notes = Notes()
    even, others = notes.watched()
    with even, others:
        _, ended = orders.proved(space_asked(question), Budget(seconds=600.0), time.monotonic())
    proof = time.process_time() - notes.began
    best = ended.best.estimate.run.wall_time_s if ended.best else None
    first = notes.even[0].best
    return Searched(
        first_s=min((at for at, _ in notes.found), default=None),
        optimum_s=min((at for at, wall in notes.found if wall == best), default=None),
        proof_s=proof,
        proved=ended.proved,
        even_s=first.estimate.run.wall_time_s if first else None,
        wall_time_s=best,
        outer=ended.outer,
        inner=ended.inner,
    )


def every_legal(space: Space) -> Iterator[dict[str, Ints]]:
    """All legal layouts of even stages, a few shapes (tp, cp, pp, micro_batch) at a time."""
    by_dp: dict[int, list[int]] = {}
    for dp, micro_batch, _ in space.batches:
        by_dp.setdefault(dp, []).append(micro_batch)
    shapes = ints([(tp, cp, pp, b) for tp, cp, pp, dp in space.grids for b in by_dp.get(dp, [])])
    names = ("experts", "vpp", "sharding", "mode")
    rest = [ints(space.values[axis]) for axis in names]
    at_once = max(1, ROWS_AT_ONCE // int(np.prod([len(values) for values in rest])))
    for first in range(0, len(shapes), at_once):
        places = np.arange(first, min(first + at_once, len(shapes)))
        place, *others = (grid.ravel() for grid in np.meshgrid(places, *rest, indexing="ij"))
        free = dict(zip(("tp", "cp", "pp", "micro_batch"), shapes[place].T, strict=True))
        yield complete(space, {**free, **dict(zip(names, others, strict=True))})


def tried(space: Space) -> Tried:
    """Every legal layout priced with the vectorised cost model; the best run of those that fit."""
    began, layouts, best = time.process_time(), 0, np.inf
    size = checkpoint_bytes(space.job)
    for columns in every_legal(space):
        layouts += len(columns["tp"])
        seconds, over = price(space, columns)
        fits = over == 0
        stage = choices.sharding(columns["sharding"][fits]).zero_stage
        _, write, stall = checkpoint_cost(
            space.job, columns["tp"][fits], columns["pp"][fits], stage
        )
        walls = run_wall_s(space.job, seconds[fits], write, stall, size)
        best = min(best, float(walls.min(initial=np.inf)))
    seconds_taken = time.process_time() - began
    return Tried(seconds_taken, layouts, best if np.isfinite(best) else None)


def one_by_one_s(space: Space) -> float:
    """Seconds that ``estimate`` takes for every layout, scaled from a sample."""
    picked, rng = [], random.Random(0)
    for columns in every_legal(space):
        rows = len(columns["tp"])
        share = SAMPLE * rows / space.candidates
        for place in rng.sample(range(rows), min(rows, int(share + rng.random()))):
            picked.append(layout_of(space.question, row(columns, place)))
    began = time.process_time()
    for layout in picked:
        estimate(space.job, layout)
    return (time.process_time() - began) / len(picked) * space.candidates


def measured(question: Question) -> Line:
    """One line of the table."""
    space = space_asked(question)
    searches = [searched(question) for _ in range(REPEATS)]
    whole = tried(space)
    if whole.layouts != space.candidates:
        raise InternalError(f"{whole.layouts} layouts listed, {space.candidates} counted")
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
        f"{'':23} {'legal':>9} {'looked':>7} {'splits':>6}  {'found':>6} {'':>6} {'':>6} "
        f"{'uneven':>7} {'all at':>7} {'one by':>7} {'at 300':>7}"
    )
    yield (
        f"{'CPU seconds':23} {'layouts':>9} {'into':>7} {'asked':>6}  {'first':>6} {'best':>6} "
        f"{'proof':>6} {'gains':>7} {'once':>7} {'one':>7} {'a s':>7}"
    )
    for question in questions():
        yield line_of(measured(question))


def line_of(line: Line) -> str:
    """One question as text."""
    job, done = line.question.job, line.searched
    name = f"{job.model.name.removeprefix('llama-3.1-')} on {job.gpus:,}"
    peers = line.layouts / PEERS_LAYOUTS_PER_CPU_S
    gain = 1 - done.wall_time_s / done.even_s if done.wall_time_s and done.even_s else 0.0
    return (
        f"{name:23} {line.layouts:9,} {done.outer:7} {done.inner:6}  {_seconds(done.first_s)} "
        f"{_seconds(done.optimum_s)} {_seconds(done.proof_s)} {gain:7.1%} "
        f"{line.tried.seconds:7.1f} {line.one_by_one_s:7,.0f} {peers:7,.0f}{_remark(line)}"
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
    importlib.import_module("layoutopt.optimizer.cp_sat")
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
