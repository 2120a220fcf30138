"""Layers per stage on several pools: one small CP-SAT model for each choice of all the rest.

Stages of a pool differ by what they hold in flight, and the first and last of all by embedding and
loss head. The model: whole layers l_s, T at least every stage's time, the step
(m - 1) T + sum of stage times + the slowest pool's once-a-step work, memory as a cap on l_s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.costmodel.axes import Array, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.mixed import MixedPipeline
from layoutopt.costmodel.stages import even_split
from layoutopt.errors import InternalError

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

FINE = 2**40
"""Quanta of the objective's largest value: its rounding stays below a billionth of a step."""


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
    def once(self) -> tuple[Array, ...]:
        """For the first stage of each pool: once-a-step seconds with 1, 2, ... layers."""
        counts = np.arange(1, self.layers - self.layout.pp + 2)
        return tuple(np.sum(self.terms.once_s(s, counts), axis=0) for s in self.terms.starts)

    @property
    def always_s(self) -> Array:
        """Seconds of a microbatch on each stage beside its layers."""
        return self.terms.ends_s + self.terms.fixed_s

    def step_s(self, seconds: float) -> float:
        """The whole step of a split that takes ``seconds``."""
        overhead = self.terms.job.software.step_overhead_s + self.terms.tied_s
        return (1 + self.terms.jitter) * (seconds + overhead)

    def seconds_within(self, step_s: float) -> float:
        """The most seconds of a split whose step is no longer than ``step_s``."""
        overhead = self.terms.job.software.step_overhead_s + self.terms.tied_s
        return step_s / (1 + self.terms.jitter) - overhead

    def seconds_of(self, layers: Ints) -> float:
        """Pipeline and once-a-step work of one split."""
        stage = layers * self.terms.layer_s + self.always_s
        once = [table[layers[s] - 1] for table, s in zip(self.once, self.terms.starts, strict=True)]
        rounds = self.layout.microbatches - 1
        return rounds * float(stage.max()) + float(stage.sum()) + float(max(once))

    def floor_s(self) -> float:
        """No split takes fewer seconds; infinite where the layers do not fit.

        For each time T that a stage can take: (m - 1) T and the least time of all stages within T
        and within memory, fast ones filled first; beside it the least once-a-step work.
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
        total = layer_s.sum() + held @ layer_s + self.always_s.sum()
        once = max(float(table[: self.caps[s]].min()) for table, s in self._starting())
        rounds = self.layout.microbatches - 1
        return float(np.min((rounds * times[:, 0] + total)[enough])) + once

    def _starting(self) -> list[tuple[Array, int]]:
        return list(zip(self.once, self.terms.starts, strict=True))

    def _stage_times(self) -> Array:
        """Every time that a stage can take, rising."""
        counts = np.arange(1, self.layers - self.layout.pp + 2)
        every = counts[None, :] * self.terms.layer_s[:, None] + self.always_s[:, None]
        least = (self.terms.layer_s + self.always_s).max()
        return np.unique(every[(counts[None, :] <= self.caps[:, None]) & (every >= least)])

    def best(self, most_s: float, seconds: float) -> tuple[Split | None, bool]:
        """The split of fewest seconds, if at most ``most_s``, and whether that is proved.

        CP-SAT decides; only an even split is no choice.
        """
        if self.even:
            return self._even_one(most_s), True
        from layoutopt.optimizer.cp_sat import cp_model

        scale = FINE / max(self.seconds_of(np.minimum(self._greedy(), self.caps)), 1e-9)
        model, layers = self._model(scale, most_s)
        if message := model.validate():
            raise InternalError(f"the model of a split is invalid: {message[:300]}")
        solver = cp_model.CpSolver()
        # Presolve stays off, as in solver.py: with it on, wrong optima have been proved.
        solver.parameters.cp_model_presolve = False
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_time_in_seconds = max(seconds, 0.01)
        status = solver.solve(model)
        if status == cp_model.MODEL_INVALID:
            raise InternalError("the solver calls the model of a split invalid")
        proved = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, proved
        found = np.array([solver.value(one) for one in layers], dtype=np.int64)
        return Split(tuple(found.tolist()), self.seconds_of(found)), proved

    def _greedy(self) -> Ints:
        """Any split: what is left goes to the first stages. It sets the scale alone."""
        found = np.ones(self.layout.pp, dtype=np.int64)
        found[0] += self.layers - self.layout.pp
        return found

    def _even_one(self, most_s: float) -> Split | None:
        layers = np.array(even_split(self.layers, self.layout.pp), dtype=np.int64)
        if (layers > self.caps).any() or self.seconds_of(layers) > most_s:
            return None
        return Split(tuple(layers.tolist()), self.seconds_of(layers))

    def _model(self, scale: float, most_s: float) -> tuple[CpModel, list[IntVar]]:
        """Whole quanta of 1 / scale seconds; cut off a little above ``most_s``."""
        from layoutopt.optimizer.cp_sat import cp_model

        model, pp, rounds = cp_model.CpModel(), self.layout.pp, self.layout.microbatches - 1
        caps = self.caps.tolist()
        layers = [model.new_int_var(1, cap, f"layers {s}") for s, cap in enumerate(caps)]
        model.add(sum(layers) == self.layers)
        each = _quanta(self.terms.layer_s * scale)
        beside = _quanta(self.always_s * scale)
        times = {e * n + b for e, b, cap in zip(each, beside, caps, strict=True) for n in _to(cap)}
        slowest = model.new_int_var_from_domain(
            cp_model.Domain.from_values(sorted(times)), "slowest"
        )
        for one, e, b in zip(layers, each, beside, strict=True):
            model.add(slowest >= e * one + b)
        most_once = max(float(table.max()) for table in self.once) * scale
        once = model.new_int_var(0, round(most_once) + 1, "once")
        for table, s in self._starting():
            self._at_least(model, once, layers[s], _quanta(table[: caps[s]] * scale))
        self._order_equals(model, layers, each, beside)
        total = rounds * slowest + sum(e * one for e, one in zip(each, layers, strict=True)) + once
        if np.isfinite(most_s):
            rounding = rounds + 2 * self.layers + pp + 4
            model.add(total <= int(most_s * scale) - sum(beside) + rounding)
        model.minimize(total)
        return model, layers

    @staticmethod
    def _at_least(model: CpModel, once: IntVar, layers: IntVar, table: list[int]) -> None:
        """``once`` is at least the table's entry at ``layers``."""
        chosen = [model.new_bool_var("") for _ in table]
        model.add_exactly_one(chosen)
        model.add(sum((n + 1) * one for n, one in enumerate(chosen)) == layers)
        model.add(once >= sum(entry * one for entry, one in zip(table, chosen, strict=True)))

    def _order_equals(
        self, model: CpModel, layers: list[IntVar], each: list[int], beside: list[int]
    ) -> None:
        """Stages of equal cost are interchangeable, and a later one holds no less: rising layers.

        The first stage of a pool is left out: it carries the once-a-step work.
        """
        last: dict[tuple[int, int], int] = {}
        for s, key in enumerate(zip(each, beside, strict=True)):
            if s in self.terms.starts or s == self.layout.pp - 1:
                continue
            if key in last and self.caps[last[key]] <= self.caps[s]:
                model.add(layers[last[key]] <= layers[s])
            last[key] = s


def _to(cap: int) -> range:
    return range(1, cap + 1)


def _quanta(values: Array) -> list[int]:
    return [round(float(value)) for value in values]


def with_layers(layout: Layout, layers: tuple[int, ...]) -> Layout:
    """``layout`` with that split."""
    return replace(layout, layers_per_stage=layers)
