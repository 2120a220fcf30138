"""When a job fails, and what is lost with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gamma

import numpy as np
from numpy.random import Generator

from layoutopt.costmodel.axes import Array, Ints

KINDS = ("process", "node", "switch")
"""What fails: the job's processes (their hosts' memory stays), a node, or a switch with all nodes
behind it."""


@dataclass(frozen=True)
class Failures:
    """Unplanned failures of one job.

    Between two of them passes a time with mean ``mtbf_s``: exponential, or Weibull with ``shape``
    below 1, where a failure is likelier soon after the last one (infant mortality; Schroeder and
    Gibson 2006 find 0.7 to 0.8 on 23 machines), or as ``trace_s`` lists them, over and over.
    """

    mtbf_s: float
    shape: float = 1.0
    trace_s: tuple[float, ...] = ()
    """Times of failures from the start of the run, rising; the last one ends the period."""
    shares: tuple[float, float, float] = (0.0, 1.0, 0.0)
    """Of each of KINDS; they add up to 1."""
    nodes_per_switch: int = 1
    """Nodes that a switch takes with it."""

    def kinds(self, random: Generator, runs: int) -> Ints:
        """What fails in each run's next failure, as an index of KINDS."""
        bounds = np.cumsum(self.shares)[:-1]
        return np.searchsorted(bounds, random.random(runs), side="right").astype(np.int64)

    def nodes_lost(self, kinds: Ints) -> Ints:
        """Nodes that each failure takes."""
        return np.array([0, 1, self.nodes_per_switch], dtype=np.int64)[kinds]

    def next_s(self, random: Generator, now: Array) -> Array:
        """Seconds from ``now`` (just after a failure, or the start) to each run's next failure."""
        if self.trace_s:
            return self._next_of_trace(now)
        if np.isinf(self.mtbf_s):
            return np.full(now.shape, np.inf)
        if self.shape == 1.0:
            return random.exponential(self.mtbf_s, now.shape)
        return self.mtbf_s / gamma(1 + 1 / self.shape) * random.weibull(self.shape, now.shape)

    def _next_of_trace(self, now: Array) -> Array:
        times, period = np.asarray(self.trace_s), self.trace_s[-1]
        within = np.mod(now, period)
        # a failure at this very moment is the one that has just been
        index = np.searchsorted(times, within * (1 + 1e-12), side="right")
        ahead = np.append(times, times[0] + period)[index]
        following: Array = ahead - within
        return following


def mean_of_trace_s(times: Sequence[float]) -> float:
    """Mean time between failures of a trace that repeats."""
    return times[-1] / len(times)


@dataclass
class Spares:
    """Nodes that wait to replace failed ones; those in repair come back as spares.

    ``ready_s[run, slot]`` is when each spare can be used. With no slots at all a run waits for the
    repair of what it lost.
    """

    ready_s: Array
    repair_s: float

    @staticmethod
    def of(runs: int, spares: int, repair_s: float) -> Spares:
        """All spares ready at the start."""
        return Spares(np.zeros((runs, spares)), repair_s)

    def wait_s(self, rows: Ints, now: Array, lost: Ints) -> Array:
        """Seconds until each of ``rows`` has replaced its ``lost`` nodes; sends those to repair."""
        slots = self.ready_s.shape[1]
        wait = np.where(lost > slots, self.repair_s, 0.0)
        if not slots:
            return wait
        ready = np.sort(self.ready_s[rows], axis=1)
        taken = np.minimum(lost, slots)
        last = np.take_along_axis(ready, np.maximum(taken - 1, 0)[:, None], axis=1)[:, 0]
        wait = np.maximum(wait, np.where(taken > 0, np.maximum(last - now, 0.0), 0.0))
        in_use = np.arange(slots)[None, :] < taken[:, None]
        self.ready_s[rows] = np.where(in_use, (now + self.repair_s)[:, None], ready)
        return wait
