"""All choices of a question on several pools but the layers of each stage, and a floor of each.

A row is (tp, cp, dp, micro_batch, zero_stage, recompute); with it goes a number of stages on each
pool and the order of the pools along the pipeline. Numpy bounds; pool_split decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations, product

import numpy as np

from layoutopt.costmodel import memory, stage_work
from layoutopt.costmodel.activations import activation_kib
from layoutopt.costmodel.axes import ONE_F_ONE_B, Array, Axes, Ints, ints
from layoutopt.costmodel.checkpoint import checkpoint_cost, run_wall_s
from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.mixed import pool_jobs
from layoutopt.costmodel.rules import divisors
from layoutopt.costmodel.stages import Stages
from layoutopt.optimizer.domains import fixed, within
from layoutopt.optimizer.pool_floors import Floors
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.space import AXIS_RULES
from layoutopt.units import HOUR

ROW = ("tp", "cp", "dp", "micro_batch", "zero_stage", "recompute")
_AT_ONCE = 1_000_000
"""Floors that are held in memory at a time."""
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Choice:
    """A row and the stages on each pool, with the least objective that any split can have."""

    floor: float
    row: int
    stages: tuple[int, ...]


class Choices:
    """The choices of one question."""

    def __init__(self, question: Question) -> None:
        self.question, self.job = question, question.job
        self.pools = pool_jobs(self.job)
        self.rates = rates_of(self._jobs, question.objective)
        self.rows = self._rows()
        self.alone = self.rows["pp"] == 1
        kinds = [
            stage_work.layer_kind(job, self._axes(), self.rows["recompute"]) for job in self._jobs
        ]
        self.floors = Floors(self.job, self._jobs, self._axes(), kinds)
        self.within = self._layers_within()

    @property
    def _jobs(self) -> list[Job]:
        return list(self.pools.values())

    @property
    def stage_gpus(self) -> Ints:
        """GPUs of a stage, row by row."""
        return self.rows["tp"] * self.rows["cp"] * self.rows["dp"]

    def _may(self, axis: str, values: tuple[int, ...]) -> tuple[int, ...]:
        """What the axis's own rule, ``fix`` and ``limits`` leave of ``values``."""
        question, rule = self.question, AXIS_RULES.get(axis)
        return tuple(
            value
            for value in values
            if (rule is None or rule(self.job, value))
            and (axis not in question.fix or value == fixed(question, axis))
            and within(question.limits, axis, value)
        )

    def _rows(self) -> dict[str, Ints]:
        """Rows that cut the batch evenly; each for pipelines (pp 2) and for a single stage."""
        most = max(job.gpus for job in self._jobs)
        batch, model = self.job.training.global_batch, self.job.model
        small = tuple(n for n in range(1, min(model.heads, most) + 1))
        halves = (1, *(n for n in divisors(self.job.training.seq_len) if 1 < n <= most))
        domains = {
            "tp": self._may("tp", small),
            "cp": self._may("cp", halves),
            "dp": self._may("dp", tuple(n for n in divisors(batch) if n <= most)),
            "micro_batch": self._may("micro_batch", divisors(batch)),
            "zero_stage": self._may("zero_stage", (0, 1, 2, 3)),
            "recompute": self._may("recompute", tuple(range(len(RECOMPUTE)))),
            "pp": (1, 2),
        }
        shapes = [
            (tp, cp, dp)
            for tp, cp, dp in product(domains["tp"], domains["cp"], domains["dp"])
            if tp * cp * dp <= most
        ]
        rest = list(product(*(domains[axis] for axis in (*ROW[3:], "pp"))))
        table = np.array(
            [(*one, *other) for one in shapes for other in rest], dtype=np.int64
        ).reshape(-1, 7)
        rows = dict(zip((*ROW, "pp"), table.T, strict=True))
        whole = batch % (rows["dp"] * rows["micro_batch"]) == 0
        rows = {axis: column[whole] for axis, column in rows.items()}
        rows["microbatches"] = batch // (rows["dp"] * rows["micro_batch"])
        counts = ints(self._may("microbatches", divisors(batch)))
        keep = np.isin(rows["microbatches"], counts)
        return {axis: column[keep] for axis, column in rows.items()}

    def _axes(self) -> Axes:
        rows, ones = self.rows, np.ones_like(self.rows["tp"])
        reshard = {
            pp: default_layout_values(self.job.software, tp=1, pp=pp).reshard for pp in (1, 2)
        }
        return Axes(
            tp=rows["tp"],
            cp=rows["cp"],
            dp=rows["dp"],
            micro_batch=rows["micro_batch"],
            microbatches=rows["microbatches"],
            zero_stage=rows["zero_stage"],
            recompute=rows["recompute"],
            pp=rows["pp"],
            ep=ones,
            etp=ones,
            vpp=ones,
            sequence_parallel=(rows["tp"] > 1) & self.job.software.default_sequence_parallel,
            schedule=ones * ONE_F_ONE_B,
            shard_degree=rows["dp"] * rows["cp"],
            reshard=np.where(rows["pp"] == 1, reshard[1], reshard[2]),
        )

    def _layers_within(self) -> Ints:
        """(rows, n): layers that the last n stages can hold at most, the best pool at each place.

        A stage that is n-th from the end holds min(n, m) microbatches. What a stage allocates is
        convex in its layers, so its first difference is the least that a layer adds.
        """
        places = np.arange(1, self.job.model.layers + 1)
        flights = np.minimum(places[None, :], self.rows["microbatches"][:, None])
        best = np.zeros((len(self.rows["tp"]), len(places)), dtype=np.int64)
        axes = self._axes()
        tail = np.zeros((len(self.rows["tp"]), 2), dtype=bool)
        held = Stages(
            np.broadcast_to(np.maximum(self.rows["pp"] - 1, 0)[:, None], tail.shape),
            np.broadcast_to(np.array([1, 2]), tail.shape),
            tail,
            tail,
        )
        for job in self._jobs:
            parts = memory.stage_bytes(job, axes, held).allocated
            sp = axes.sequence_parallel
            shape = (axes.tp, axes.cp, axes.ep, axes.micro_batch, axes.recompute)
            saved = np.broadcast_to(activation_kib(job, *shape, sp=sp), parts[:, 0].shape)
            # Rounding up to whole KiB of a handful of parts is taken off.
            slope = np.maximum(parts[:, 1] - parts[:, 0] - 16, 1)[:, None]
            each = slope + (flights - 1) * saved[:, None]
            room = memory.largest_allocation_kib(job) - (parts[:, :1] - slope - 16)
            best = np.maximum(best, np.maximum(room // np.maximum(each, 1), 0))
        return np.cumsum(best, axis=1)

    @cached_property
    def count(self) -> int:
        """Choices in every order of their pools."""
        total = 0
        for size, rows in zip(*np.unique(self.stage_gpus, return_counts=True), strict=True):
            counts = self._counts(int(size))
            orders = [math.factorial(n) for n in (counts > 0).sum(axis=1).tolist()]
            single = sum(
                o for o, n in zip(orders, counts.sum(axis=1).tolist(), strict=True) if n == 1
            )
            # Half of the rows are for a single stage, half for pipelines.
            total += int(rows) // 2 * (sum(orders) - single) + int(rows) // 2 * single
        return total

    def likely(self, wanted: int) -> list[Choice]:
        """Choices of the rows that could be fastest if every stage were perfectly shared out, with
        every pool used as far as it goes or not at all."""
        rows = np.argsort(self._least(np.arange(len(self.stage_gpus))), kind="stable")[:wanted]
        return self._listed(rows, np.inf, whole_pools=True)

    def below(self, most: float) -> list[Choice]:
        """Every choice whose floor is less than ``most``, the lowest first."""
        rows = np.flatnonzero(self._least(np.arange(len(self.stage_gpus))) < most)
        return self._listed(rows, most, whole_pools=False)

    def _listed(self, rows: Ints, most: float, *, whole_pools: bool) -> list[Choice]:
        found: list[Choice] = []
        sizes = self.stage_gpus[rows]
        for size in np.unique(sizes).tolist():
            counts = self._counts(size)
            if whole_pools and len(counts):
                counts = counts[((counts == 0) | (counts == counts.max(axis=0))).all(axis=1)]
            mine = rows[sizes == size]
            some = max(1, _AT_ONCE // max(1, len(counts)))
            for first in range(0, len(mine) if len(counts) else 0, some):
                found += self._chosen(mine[first : first + some], size, counts, most)
        return sorted(found, key=lambda one: one.floor)

    def _chosen(self, rows: Ints, size: int, counts: Ints, most: float) -> Iterator[Choice]:
        """Choices of rows of one stage size below ``most``: a plain floor first, a closer one on
        what that leaves, whole layers on what is left then."""
        pp = counts.sum(axis=1)
        keep = self.within[rows][:, pp - 1] >= self.job.model.layers
        keep &= self.alone[rows][:, None] == (pp == 1)[None, :]
        rate = (1 / self.floors.layer_s[rows]) @ counts.T.astype(float)
        plain = self.rows["microbatches"][rows] * self.job.model.layers
        ideal = plain[:, None] / rate * self.job.training.steps
        place, column = np.nonzero(keep & (self._worth(ideal, counts, size) < most))
        row, many = rows[place], counts[column]
        for whole in (False, True):
            floors = self._objective(self.floors.seconds(row, many, whole=whole), row, many, size)
            keep = floors < most
            row, many, floors = row[keep], many[keep], floors[keep]
        for one, n, floor in zip(row.tolist(), many.tolist(), floors.tolist(), strict=True):
            yield Choice(floor, one, tuple(n))

    def _worth(self, walls: Array, counts: Ints, size: int) -> Array:
        """The objective of runs of such wall times; counts along the last axis."""
        if self.rates is None:
            return walls
        worth: Array = walls * (size * (counts @ self.rates))
        return worth

    def _counts(self, size: int) -> Ints:
        """Stages on each pool: at least one in all, no more than layers, within each pool."""
        layers = self.job.model.layers
        pps = [range(min(job.gpus // size, layers) + 1) for job in self._jobs]
        allowed = set(self._may("pp", tuple(range(1, layers + 1))))
        found = [counts for counts in product(*pps) if sum(counts) in allowed]
        return np.array(found, dtype=np.int64).reshape(-1, len(self._jobs))

    def _least(self, rows: Ints) -> Array:
        """A floor of each row whatever the stages: every GPU shares perfectly in all layers."""
        layers, m = self.job.model.layers, self.rows["microbatches"][rows]
        layer_s, size = self.floors.layer_s[rows], self.stage_gpus[rows]
        steps = self.job.training.steps
        if self.rates is not None:
            dearest: Array = m * layers * steps * size * (self.rates * layer_s).min(axis=-1)
            return dearest
        left, rate = np.full(len(rows), layers), np.full(len(rows), 1e-300)
        have = np.stack([job.gpus // size for job in self._jobs], axis=-1)
        layer_s = np.where(have > 0, layer_s, np.inf)
        order = np.argsort(layer_s, axis=-1, kind="stable")
        for place in order.T:
            stages = np.minimum(left, np.take_along_axis(have, place[:, None], -1)[:, 0])
            rate = rate + stages / np.take_along_axis(layer_s, place[:, None], -1)[:, 0]
            left = left - stages
        most = np.minimum(have.sum(axis=-1), layers)
        filled = m - 1 - (np.minimum(most, m) - 1) * self.floors.forward[rows]
        shared: Array = np.maximum(m / rate, filled / rate + layer_s.min(axis=-1)) * layers * steps
        return shared

    def _objective(self, seconds: Array, row: Ints, many: Ints, size: int) -> Array:
        """Wall time, or what it costs, of runs with such steps: failures at the lowest rate, and
        as many writers of a checkpoint as the smallest nodes make."""
        least = min(one.cluster.failures_per_gpu_hour for one in self._jobs)
        smallest = min(self._jobs, key=lambda one: one.cluster.gpus_per_node).cluster
        cluster = smallest.model_copy(update={"failures_per_gpu_hour": least})
        pp, walls = many.sum(axis=1), np.empty_like(seconds)
        for stages in np.unique(pp).tolist():
            here = pp == stages
            job = replace(self.job, cluster=cluster, gpus=size * stages)
            tp, zero = self.rows["tp"][row[here]], self.rows["zero_stage"][row[here]]
            bytes_, write, stall = checkpoint_cost(job, tp, ints(stages), zero)
            walls[here] = run_wall_s(job, seconds[here], write, stall, bytes_)
        return self._worth(walls, many, size)

    def layouts(self, choice: Choice) -> Iterator[Layout]:
        """The choice in every order of its pools along the pipeline; layers still free."""
        values = {axis: int(column[choice.row]) for axis, column in self.rows.items()}
        pp = sum(choice.stages)
        defaults = default_layout_values(self.job.software, tp=values["tp"], pp=pp)
        used = [(name, n) for name, n in zip(self.pools, choice.stages, strict=True) if n]
        for order in permutations(used):
            yield Layout(
                tp=values["tp"],
                cp=values["cp"],
                dp=values["dp"],
                pp=pp,
                micro_batch=values["micro_batch"],
                microbatches=values["microbatches"],
                zero_stage=values["zero_stage"],
                recompute=RECOMPUTE[values["recompute"]],
                sequence_parallel=defaults.sequence_parallel,
                reshard=defaults.reshard,
                pools_per_stage=tuple(name for name, n in order for _ in range(n)),
            )


def rates_of(jobs: list[Job], objective: str) -> Array | None:
    """What a second of one GPU of each job adds to an objective that is not time, dollars or
    kilowatt-hours; None where it is time, or where a price or a power is not known."""
    clusters = [job.cluster for job in jobs]
    prices = [one.usd_per_gpu_hour for one in clusters]
    powers = [one.watts_per_gpu for one in clusters]
    values, unit = (prices, HOUR) if objective == "cost" else (powers, _JOULES_PER_KWH)
    if objective not in ("cost", "energy") or None in values:
        return None
    return np.array([value or 0.0 for value in values]) / unit
