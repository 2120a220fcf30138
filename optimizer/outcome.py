"""How a search ended: a value with a bound, never an exception."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import Estimate
from layoutopt.optimizer.node_map import Placement


class Status(StrEnum):
    """The words of the contract."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Alternative:
    """A layout that lost, and why in one sentence with the seconds."""

    estimate: Estimate
    reason: str


@dataclass(frozen=True)
class Change:
    """A change of the question that would let something fit."""

    option: str
    value: str
    step_time_s: float | None


@dataclass(frozen=True)
class Miss:
    """The layout that came nearest to fitting, and by how much it missed."""

    limit: str
    """memory, deadline, budget or power."""
    stage: int | None
    over_bytes: int | None
    over_s: float | None
    over_usd: float | None
    layout: Layout
    changes: tuple[Change, ...] = ()
    over_w: float | None = None
    """Watts of the fewest GPUs beyond the limit."""


@dataclass(frozen=True)
class CountsReport:
    """What was done with a range of GPU counts."""

    least: int
    most: int
    multiple_of: int
    """Counts that are tried: multiples of a node's GPUs, and every count below one node."""
    legal: int
    """Counts that arithmetic and the framework's rules leave a layout."""
    searched: int
    """Counts that the solver searched; a floor excluded the others."""
    batches: tuple[int, ...] = ()
    """Global batches that were tried; none: the batch was given."""
    pareto_proved: bool | None = None
    """Every point of the front is proved, and no count is missing; None: no front was asked for."""


@dataclass(frozen=True)
class SearchReport:
    """What the solver did. ``bound`` is its own: no layout of the space has a lower objective."""

    objective: str
    bound: float | None
    gap: float | None
    wall_s: float
    candidates: int
    """Legal layouts in the space, memory ignored."""
    workers: int
    counts: CountsReport | None = None
    """None: GPU count and batch were given."""
    outer_choices: int = 0
    """Choices of all but split and recompute that were looked into, best bound first."""
    inner_problems: int = 0
    """Splits of layers over stages that the solver was asked for."""


@dataclass(frozen=True)
class Outcome:
    """The answer to a Question."""

    status: Status
    plan: Estimate | None
    search: SearchReport
    alternatives: tuple[Alternative, ...] = ()
    misses: tuple[Miss, ...] = ()
    explain: tuple[str, ...] = ()
    job: Job | None = None
    """The job with the GPU count and the batch that were chosen; None: they were given."""
    placement: Placement | None = None
    """Which nodes hold which ranks, on a scheduler's fragment."""
    pareto: tuple[Estimate, ...] = ()
    """The best run of each GPU count that no other count beats in both time and cost."""
