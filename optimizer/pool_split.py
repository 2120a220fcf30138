"""Layers per stage on several pools: the inner problem of one choice of all the rest.

A stage takes one row of its table (layers, with the seconds that its own pool takes), and rows cost
what `mixed.step_breakdown` says: the paths of 1F1B, the stage that has most of its once-a-step
traffic left, the longest optimizer step. It is the inner problem of uneven stages on one pool
(stagewise.py), with a table of its own for each stage and memory as a cap on its layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from layoutopt.costmodel import once
from layoutopt.costmodel.axes import Array, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.mixed import MixedPipeline
from layoutopt.costmodel.stages import even_split
from layoutopt.optimizer.inner import one_f_one_b_chains
from layoutopt.optimizer.pipelining import most_s as most_of
from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.stagewise import Late, Row, Stagewise, best_rows

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Split:
    """Layers of each stage, and the pipeline's and once-a-step seconds that they take."""

    layers: tuple[int, ...]
    seconds: float


class Splitting:
    """One layout whose layers are free; ``even``: as even as they go, as the framework wants."""

    def __init__(self, job: Job, layout: Layout, *, even: bool = False) -> None:
        self.layout, self.layers, self.even = layout, job.model.layers, even
        self.terms = MixedPipeline(job, layout)

    @cached_property
    def caps(self) -> Ints:
        """The most layers that each stage can hold; 0 where not even one fits."""
        most = self.layers - self.layout.pp + 1
        counts = np.broadcast_to(np.arange(1, most + 1), (self.layout.pp, most))
        fits = self.terms.allocated_kib(counts) <= self.terms.largest_kib[:, None]
        caps: Ints = np.where(fits.all(axis=1), most, np.argmin(fits, axis=1))
        return caps

    @cached_property
    def once(self) -> list[tuple[Array, Array]]:
        """For each stage, with 1, 2, ... layers: the traffic that it has left when it is done, and
        its optimizer step. Stages of a pool between the first and the last are alike."""
        counts = np.arange(1, self.layers - self.layout.pp + 2)
        found: dict[object, tuple[Array, Array]] = {}
        tables = []
        for stage, name in enumerate(self.layout.pools_per_stage or ()):
            alike = (name, stage == 0, stage == self.layout.pp - 1)
            if alike not in found:
                found[alike] = self.terms.held_once(stage, counts)
            tables.append(found[alike])
        return tables

    @property
    def always_s(self) -> Array:
        """Seconds of a microbatch on each stage beside its layers."""
        return self.terms.ends_s + self.terms.fixed_s

    @property
    def beside_s(self) -> float:
        """Seconds of a step that no split changes, jitter aside."""
        overhead = self.terms.job.software.step_overhead_s
        return overhead + self.terms.tied_s + self.terms.late_s

    def step_s(self, seconds: float) -> float:
        """The whole step of a split that takes ``seconds``."""
        return (1 + self.terms.jitter) * (seconds + self.beside_s)

    def seconds_within(self, step_s: float) -> float:
        """The most seconds of a split whose step is no longer than ``step_s``."""
        return step_s / (1 + self.terms.jitter) - self.beside_s

    @cached_property
    def _bounds(self) -> tuple[tuple[float, float], ...]:
        """(factor, share): the pipeline takes ``factor`` times the slowest stage and ``share``
        times all stages at least, as in `outer.Group.bounds`; and all microbatches on the
        slowest."""
        m, pp = self.layout.microbatches, self.layout.pp
        forward = (min(pp, m) - 1) * float(np.max(self.terms.forward_s / self.terms.layer_s))
        both = (float(m - 1 - pp), 2.0) if m > pp > 1 else (0.0, 1.0)
        return ((m - 1 - forward, 1.0), both, (float(m), 0.0))

    def floor_s(self) -> float:
        """No split takes fewer seconds; infinite where the layers do not fit.

        For each time T that a stage can take: the least time of all stages within T and within
        memory, fast ones filled first, and with both the pipeline's bounds; beside it the least
        once-a-step work.
        """
        if int(self.caps.min()) < 1 or int(self.caps.sum()) < self.layers:
            return float("inf")
        order = np.argsort(self.terms.layer_s, kind="stable")
        layer_s, times = self.terms.layer_s[order], self._stage_times()[:, None]
        room = (times * (1 + 1e-12) - self.always_s[order]) / layer_s
        more = np.minimum(np.floor(room), self.caps[order]) - 1
        left = self.layers - self.layout.pp
        before = np.cumsum(more, axis=1) - more
        held = np.clip(left - before, 0, more)
        enough = more.sum(axis=1) >= left
        if not enough.any():
            return float("inf")
        total = (layer_s.sum() + held @ layer_s + self.always_s.sum())[enough]
        slowest = times[enough, 0]
        pipeline = np.max([f * slowest + share * total for f, share in self._bounds], axis=0)
        return float(np.min(pipeline + self._least_left_s(slowest))) + self._least_optimizer_s

    def _least_left_s(self, slowest_s: Array) -> Array:
        """Traffic that the first stage has left at least, or a later one, whose head start is no
        more than the slowest stage's time for each stage before it."""
        least = [
            float(left[:cap].min()) for (left, _), cap in zip(self.once, self.caps, strict=True)
        ]
        if self.terms.alike:
            return np.full_like(slowest_s, least[0])
        share = float(once.head_start(self.terms.axes)[0])
        starts = share * slowest_s[:, None] * np.arange(len(least))
        most: Array = np.max(np.array(least) - starts, axis=1)
        return most

    @cached_property
    def _least_optimizer_s(self) -> float:
        """The longest optimizer step is no shorter."""
        steps = [
            float(step[:cap].min()) for (_, step), cap in zip(self.once, self.caps, strict=True)
        ]
        return max(steps)

    def _stage_times(self) -> Array:
        """Every time that a stage can take, rising."""
        counts = np.arange(1, self.layers - self.layout.pp + 2)
        every = counts[None, :] * self.terms.layer_s[:, None] + self.always_s[:, None]
        least = (self.terms.layer_s + self.always_s).max()
        return np.unique(every[(counts[None, :] <= self.caps[:, None]) & (every >= least)])

    def best(self, most_s: float, budget: Budget, seconds: float) -> tuple[Split | None, bool]:
        """The split of fewest seconds, if at most ``most_s``, and whether that is proved."""
        problem = self.problem(most_s)
        if problem is None:
            return None, True
        cutoff = most_of(problem) if np.isinf(most_s) else most_s
        chosen = best_rows(problem, cutoff, budget, max(seconds, 0.01))
        if chosen.rows is None:
            return None, chosen.proved
        layers = tuple(row.layers for row in chosen.rows)
        return Split(layers, problem.value_s(chosen.rows)), chosen.proved

    def problem(self, most_s: float = float("inf")) -> Stagewise | None:
        """The inner problem, without rows that alone take the split over ``most_s``; None where
        the layers do not fit."""
        ranges = self._ranges(most_s)
        if ranges is None:
            return None
        terms, pp = self.terms, self.layout.pp
        tables = tuple(
            tuple(self._row(stage, n) for n in numbers) for stage, numbers in enumerate(ranges)
        )
        late = Late(
            float(once.head_start(terms.axes)[0]), tuple(terms.fixed_s.tolist()), terms.alike
        )
        chains = one_f_one_b_chains(pp, self.layout.microbatches)
        return Stagewise(self.layers, 0.0, tables, chains=chains, late=late)

    def _ranges(self, most_s: float) -> list[list[int]] | None:
        """Numbers of layers that each stage may hold within memory and ``most_s``."""
        most = np.minimum(self.caps, self._within(most_s))
        room = int(most.sum())
        if int(most.min()) < 1 or room < self.layers:
            return None
        if self.even:
            even = even_split(self.layers, self.layout.pp)
            fits = all(n <= cap for n, cap in zip(even, most.tolist(), strict=True))
            return [[n] for n in even] if fits else None
        return [list(range(max(1, self.layers - (room - n)), n + 1)) for n in most.tolist()]

    def _within(self, most_s: float) -> Ints:
        """Layers that each stage has the time for in a split of ``most_s``: with T the slowest
        stage's, the pipeline takes at least its bounds with all stages as fast as memory lets
        them be."""
        if np.isinf(most_s):
            return self.caps
        left = most_s * (1 + _ROUNDING) - self._least_optimizer_s
        total = self._least_total_s()
        slowest = min((left - share * total) / f for f, share in self._bounds if f > 0)
        held: Ints = np.floor((slowest - self.always_s) / self.terms.layer_s + 1e-9).astype(
            np.int64
        )
        return held

    def _least_total_s(self) -> float:
        """One microbatch on all stages at least: fast ones filled first."""
        left, total = (
            self.layers - self.layout.pp,
            float((self.terms.layer_s + self.always_s).sum()),
        )
        for stage in np.argsort(self.terms.layer_s, kind="stable").tolist():
            more = min(left, int(self.caps[stage]) - 1)
            left, total = left - more, total + more * float(self.terms.layer_s[stage])
        return total

    def _row(self, stage: int, layers: int) -> Row:
        """One stage with so many layers."""
        terms = self.terms
        left, optimizer = (float(table[layers - 1]) for table in self.once[stage])
        return Row(
            layers,
            0,
            seconds=layers * float(terms.layer_s[stage]) + float(self.always_s[stage]),
            cost_s=left if stage == 0 else 0.0,
            forward_s=(layers + int(terms.predicting[stage])) * float(terms.forward_s[stage]),
            tail_s=optimizer,
            left_s=left,
        )


def with_layers(layout: Layout, layers: tuple[int, ...]) -> Layout:
    """``layout`` with that split."""
    return replace(layout, layers_per_stage=layers)
