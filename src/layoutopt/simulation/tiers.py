"""Checkpoints on several tiers: when training stands still for them, and when they are durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

import numpy as np

from layoutopt.costmodel.axes import Array, Ints
from layoutopt.errors import InputError

SURVIVES = {
    "host": ("process",),
    "disk": ("process",),
    "peer": ("process", "node"),
    "shared": ("process", "node", "switch"),
}
"""Which failures (failures.KINDS) a copy outlives: one in the host's memory or on its disk is gone
with the node, one in a peer's memory with the switch above both."""
MOST_INTERVALS = 1_000_000


@dataclass(frozen=True)
class Tier:
    """One place that checkpoints are saved to."""

    kind: str
    """A key of SURVIVES."""
    every_steps: int
    write_s: float
    """From the start of a save to its being durable."""
    stall_s: float
    """How long training stands still for it; ``write_s`` when synchronous."""
    load_s: float
    """To read it back after a failure."""
    fails: float = 0.0
    """Share of writes that never become durable."""
    late: float = 0.0
    """Share of writes that take ``late_factor`` times as long."""
    late_factor: float = 1.0

    @property
    def mean_write_s(self) -> float:
        """A write's time in the mean, late ones included."""
        return self.write_s * (1 + self.late * (self.late_factor - 1))

    @property
    def mean_stall_s(self) -> float:
        """A save's stall in the mean: a synchronous save that is late holds training up."""
        late = self.late * (self.late_factor - 1) if self.stall_s >= self.write_s else 0.0
        return self.stall_s * (1 + late)


@dataclass(frozen=True)
class Calendar:
    """Time of training by step, saves included, failures left out.

    Saves stand at multiples of each tier's interval. All positions count intervals of the shortest
    tier; the pattern repeats every ``len(ends)`` of them.
    """

    tiers: tuple[Tier, ...]
    steps: int
    """Of one interval."""
    starts: Array
    """Within the pattern: when the saves at the end of each interval begin."""
    ends: Array
    """When they no longer hold training up: cumulative, so the last one is the pattern's length."""
    saves: tuple[Ints, ...]
    """For each tier, 1 where an interval of the pattern ends with a save on it, counted up."""

    @staticmethod
    def of(tiers: Sequence[Tier], step_s: float) -> Calendar:
        """Raises InputError for intervals that are no multiples of one another."""
        for shorter, longer in pairwise(sorted(tier.every_steps for tier in tiers)):
            if longer % shorter:
                raise InputError(
                    f"tier: an interval of {longer} steps is no multiple of {shorter}",
                    field="tier",
                    value=longer,
                    nearest=(longer // shorter * shorter, -(-longer // shorter) * shorter),
                )
        steps = min(tier.every_steps for tier in tiers)
        length = lcm(*(tier.every_steps // steps for tier in tiers))
        if length > MOST_INTERVALS:
            raise InputError(
                f"tier: {length:,} saves of the shortest interval to one of the longest; "
                f"at most {MOST_INTERVALS:,}",
                field="tier",
                value=length,
            )
        number = np.arange(1, length + 1)
        due = [number % (tier.every_steps // steps) == 0 for tier in tiers]
        work = _with_waits(tiers, due, steps * step_s, length)
        ends = np.cumsum(work)
        stall = _stalls(tiers, due, length)
        return Calendar(tuple(tiers), steps, ends - stall, ends, tuple(map(np.cumsum, due)))

    @property
    def length_s(self) -> float:
        """Seconds of the whole pattern."""
        return float(self.ends[-1])

    def at(self, position: Ints) -> Array:
        """Seconds of training from position 0 to ``position``, its saves included."""
        whole, within = np.divmod(position, len(self.ends))
        return whole * self.length_s + np.where(within > 0, self.ends[within - 1], 0.0)

    def saved(self, tier: int, elapsed: Array, late: Array | None = None) -> Ints:
        """The last position whose save on ``tier`` is durable ``elapsed`` after position 0.

        ``late``: extra seconds of each run's last write.
        """
        write = self.tiers[tier].write_s + (0.0 if late is None else late)
        every = self.tiers[tier].every_steps // self.steps
        moment = elapsed - write
        whole = np.floor(moment / self.length_s).astype(np.int64)
        within = moment - whole * self.length_s
        begun = np.searchsorted(self.starts, within, side="right")
        count = whole * len(self.ends) + begun
        found: Ints = np.maximum(count // every * every, 0)
        return found


def _stalls(tiers: Sequence[Tier], due: Sequence[Array], length: int) -> Array:
    """Stall at the end of each interval: one copy serves all tiers that are due."""
    stall = np.zeros(length)
    for tier, here in zip(tiers, due, strict=True):
        stall = np.maximum(stall, np.where(here, tier.mean_stall_s, 0.0))
    return stall


def _with_waits(tiers: Sequence[Tier], due: Sequence[Array], work_s: float, length: int) -> Array:
    """Length of each interval, its save included; a save waits for the one before it on its tier,
    in the intervals that it lies behind, so that no write overlaps the next."""
    each = work_s + _stalls(tiers, due, length)
    for tier in tiers:
        span = length // int(sum(due[tiers.index(tier)]))
        total = each.reshape(-1, span).sum(axis=1)
        short = np.maximum(tier.mean_write_s - total, 0.0)
        each[span - 1 :: span] += short
    return each
