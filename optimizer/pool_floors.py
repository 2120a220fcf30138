"""Floors of choices on several pools: seconds that no split of the layers can beat.

A choice is a row of axes and the stages on each pool; rows are parallel arrays, with pp 1 for a
single stage and 2 for pipelines of any length.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from layoutopt.costmodel import once, stage_work
from layoutopt.costmodel.axes import Array, Axes, Ints, take
from layoutopt.costmodel.collectives import send
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.mixed import between_pools
from layoutopt.costmodel.placement import boundary
from layoutopt.costmodel.stage_work import LayerKind
from layoutopt.costmodel.terms import message_bytes

_HALVINGS = 30


class Floors:
    """The floors of one question's rows; ``kinds``: a layer and microbatch of each row, pool by
    pool."""

    def __init__(self, job: Job, jobs: list[Job], axes: Axes, kinds: list[LayerKind]) -> None:
        self.job, self.jobs, self.axes, self.kinds = job, jobs, axes, kinds
        self.layer_s = np.stack([self._wide(kind.total) for kind in kinds], axis=-1)
        """A layer and microbatch, row by row and pool by pool."""
        passes = [self._wide(kind.terms.forward) for kind in kinds]
        self.forward = np.max(np.stack(passes, axis=-1) / self.layer_s, axis=-1)
        """The forward pass's largest share of a layer on any pool, row by row."""

    def _wide(self, values: Array) -> Array:
        return np.broadcast_to(np.asarray(values, dtype=float), self.axes.tp.shape)

    def seconds(self, row: Ints, many: Ints, *, whole: bool) -> Array:
        """No step is shorter. With n_p stages of pool p, whose layers take t_p, and T the slowest
        stage's time for layers and ends: the layers on pool p take at most n_p T, and all stages
        least where fast pools are filled first. The step is at least each of the sums of T and of
        all stages that `_bounds` has. ``whole``: T also holds whole layers alone.
        """
        job = self.job
        order = np.argsort(self.layer_s[row], axis=-1, kind="stable")
        layer_s = np.take_along_axis(self.layer_s[row], order, -1)
        stages = np.take_along_axis(many, order, -1)
        used = np.where(stages > 0, layer_s, 0.0).max(axis=-1)
        layers = job.model.layers + self.ends_s[row] / used
        ends = np.cumsum(stages / layer_s, axis=-1)
        # Where the k fastest pools hold everything and are full.
        corners = layers[:, None] / np.maximum(ends, 1e-300)
        least = corners[:, -1]
        if whole:
            least = np.maximum(least, self._whole(layer_s, stages, least, used))
        pp, bounds = many.sum(axis=1), self._bounds(row, many)
        best = np.full((len(bounds), len(row)), np.inf)
        for slowest in (least, *corners.T[:-1]):
            slowest = np.maximum(slowest, least)
            left, total = layers, np.zeros(len(row))
            for place in range(layer_s.shape[1]):
                held = np.minimum(left, stages[:, place] * slowest / layer_s[:, place])
                left, total = left - held, total + held * layer_s[:, place]
            told = [factor * slowest + share * total for factor, share, _ in bounds]
            best = np.minimum(best, told)
        fixed = self.message_s[row] + job.software.microbatch_overhead_s
        pipeline = np.max(best + [times * fixed for _, _, times in bounds], axis=0)
        beside = (pp - 1) * self.late_s[row] + self._once_s(row, many)
        jitter = min(machine(one).reach.jitter for one in self.jobs)
        scale = 1 + jitter * np.log2(
            np.maximum(1.0, self.axes.tp[row] * self.axes.group[row] * pp / 8)
        )
        seconds: Array = scale * (pipeline + beside + job.software.step_overhead_s)
        return seconds * (1 - 1e-9)

    def _bounds(self, row: Ints, many: Ints) -> tuple[tuple[Array, Array, Array], ...]:
        """(factor, share, fixed): the pipeline takes ``factor`` times the slowest stage's layers
        and ends, ``share`` times those of all stages, and messages and host of a microbatch
        ``fixed`` times, at least (`outer.Group.bounds`)."""
        m, pp = self.axes.microbatches[row], many.sum(axis=1)
        forward = (np.minimum(pp, m) - 1) * self.forward[row]
        turns = np.maximum(m - 1 - pp, 0)
        share = np.where(m > pp, 2, 1)
        return (m - 1 - forward, np.ones(len(row)), m - 1 + pp), (turns, share, turns + share * pp)

    def _whole(self, layer_s: Array, stages: Ints, least: Array, used: Array) -> Array:
        """A time within which the stages cannot take all layers, if each takes whole ones."""
        low, high = least * (1 - 1e-9), least + used
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            held = np.floor(middle[:, None] / layer_s * (1 + 1e-9))
            enough = np.sum(stages * held, axis=-1) >= self.job.model.layers
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return low

    @cached_property
    def ends_s(self) -> Array:
        """Embedding and head on the pools that are fastest at them, row by row."""
        axes = self.axes
        found = [stage_work.end_seconds(job, axes) for job in self.jobs]
        embedding = np.min([self._wide(one.embedding) for one in found], axis=0)
        head = np.min([self._wide(one.head) for one in found], axis=0)
        return np.asarray(embedding + head)

    @cached_property
    def message_s(self) -> Array:
        """The least message of a stage, row by row: over a pool's own network or between pools."""
        return (1 - self.job.software.overlap_pp) * self._sent_s

    @cached_property
    def late_s(self) -> Array:
        """What of it hides where a stage has other work, but not while the pipeline fills."""
        return self.job.software.overlap_pp * self._sent_s

    @cached_property
    def _sent_s(self) -> Array:
        """There and back over the fastest boundary; none where a stage is alone."""
        axes = self.axes
        sp = axes.sequence_parallel
        size = message_bytes(self.job, axes.tp, axes.cp, axes.micro_batch, sp=sp)
        links = [boundary(job, axes.tp, axes.cp, axes.pp) for job in self.jobs]
        sent = [send(link, size) for link in (*links, between_pools(self.job))]
        return np.where(axes.pp == 1, 0.0, 2 * np.min(sent, axis=0))

    def _once_s(self, row: Ints, many: Ints) -> Array:
        """What comes once a step at least: traffic that the first stage has left, on the used pool
        where that is least, and the optimizer step of the stage that holds most layers."""
        if not len(row):
            return np.zeros(0)
        layers, pp = self.job.model.layers, many.sum(axis=1)
        axes, most = take(self.axes, row), -(-layers // pp)
        steps = [once.optimizer_seconds(job, axes, most, first=False) for job in self.jobs]
        used = many > 0
        least: Array = np.where(used, self.left_s[row], np.inf).min(axis=-1)
        least += np.where(used, np.stack(steps, axis=-1), np.inf).min(axis=-1)
        return least

    @cached_property
    def left_s(self) -> Array:
        """Traffic that a first stage of one layer or more has left, row by row and pool by pool."""
        layers = np.where(self.axes.pp == 1, self.job.model.layers, 1)
        found = []
        for job, kind in zip(self.jobs, self.kinds, strict=True):
            passes = (kind.terms.forward, once.gradient_pass(self.axes)(kind))
            among = once.replicas(job, self.axes)
            least = once.least_left(job, self.axes, layers, passes, among, first=True)
            found.append(self._wide(least))
        return np.stack(found, axis=-1)
