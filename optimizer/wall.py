"""Between the solver's quanta, the step time and the run's wall time.

For a given save (what a checkpoint takes to write and to stall) the best wall time never falls
when the step time rises (reliability.wall_time), so a limit on wall time is a limit on the step.
"""

from __future__ import annotations

import math

import numpy as np

from layoutopt.costmodel.axes import Array
from layoutopt.costmodel.checkpoint import checkpoint_bytes, checkpoint_cost, run_wall_s
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.step import jitter
from layoutopt.optimizer import choices
from layoutopt.optimizer.program import Save
from layoutopt.optimizer.tables import Tables

_NO_TIME_S = 1e-12
_HALVINGS = 60
_STEPS = 8
_ROUNDING = 1e-12


class Clock:
    """Converts quanta, step seconds and wall seconds of one job."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job, self.quantum_s = job, tables.quantum_s
        self.scale = 1 + jitter(job)
        self.size = checkpoint_bytes(job)

    def step_s(self, quanta: int) -> float:
        """Seconds of a step whose variable part is ``quanta``."""
        return self.scale * (quanta * self.quantum_s + self.job.software.step_overhead_s)

    def quanta(self, step_s: float) -> int:
        """The most quanta whose step is no longer than ``step_s``."""
        return math.floor(
            (step_s / self.scale - self.job.software.step_overhead_s) / self.quantum_s
        )

    def wall_s(self, step_s: float, save: Save) -> float:
        """Wall time of the run. A bound that is no time at all counts as the least there is."""
        step_s = max(step_s, _NO_TIME_S)
        return float(run_wall_s(self.job, step_s, save[0], save[1], self.size))

    def save_of(self, chosen: dict[str, int]) -> Save:
        """What a checkpoint costs under a layout."""
        zero_stage = choices.sharding(chosen["sharding"]).zero_stage
        _, write, stall = checkpoint_cost(self.job, chosen["tp"], chosen["pp"], zero_stage)
        return float(write[0]), float(stall[0])

    def longest_steps_s(self, wall_s: float, saves: tuple[Save, ...]) -> list[float]:
        """For each save the longest step whose run takes at most ``wall_s``.

        Rounded outwards: a cut-off must never remove what it is meant to keep.
        """
        write, stall = np.array(saves).T
        near = self._near_s(wall_s, write, stall)
        if near is not None:
            return near
        low = np.zeros(len(saves))
        high = np.full(len(saves), wall_s / self.job.training.steps)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = run_wall_s(self.job, middle, write, stall, self.size) <= wall_s
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        longest: list[float] = high.tolist()
        return longest

    def _near_s(self, wall_s: float, write: Array, stall: Array) -> list[float] | None:
        """The same in a few steps: a run is nearly proportional to its step. None where it is not.

        Bracketed to ROUNDING on either side, or left to halving.
        """
        most = wall_s / self.job.training.steps
        step = np.full(len(write), most)
        for _ in range(_STEPS):
            closer = step * wall_s / run_wall_s(self.job, step, write, stall, self.size)
            if np.array_equal(closer, step):
                break
            step = closer
        above, below = np.minimum(step * (1 + _ROUNDING), most), step * (1 - _ROUNDING)
        over = run_wall_s(self.job, above, write, stall, self.size) > wall_s
        fits = run_wall_s(self.job, below, write, stall, self.size) <= wall_s
        if not np.all(fits & (over | (above == most))):
            return None
        longest: list[float] = above.tolist()
        return longest
