"""What the solver is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Schedule

AXES = (
    "tp",
    "cp",
    "pp",
    "dp",
    "experts",
    "vpp",
    "micro_batch",
    "microbatches",
    "sharding",
    "mode",
)
"""The axes that are searched, in the order in which ties are broken (smaller first). The values of
experts, sharding and mode are codes of several keys each (choices.py)."""

KEYS = (
    "tp",
    "cp",
    "pp",
    "dp",
    "ep",
    "etp",
    "vpp",
    "micro_batch",
    "microbatches",
    "zero_stage",
    "shard_degree",
    "reshard",
    "offload_optimizer",
    "recompute",
    "cp_kind",
    "offload_activations",
    "sequence_parallel",
)
"""The keys of a layout that the axes decide, and that can be fixed or limited."""


Objective = Literal["time", "cost", "energy", "gpus"]
PhaseLayouts = Literal["auto", "one", "each"]
PHASE_LAYOUTS: tuple[PhaseLayouts, ...] = ("auto", "one", "each")
"""Which layouts a run in phases may have (phases.py): the best of all, one, or each phase's own."""


@dataclass(frozen=True)
class Limit:
    """``axis op bound``, as in ``tp<=8``."""

    axis: str
    """A key of KEYS that is a number."""
    op: Literal["<=", ">=", "<", ">", "==", "!="]
    bound: int


@dataclass(frozen=True)
class Pipeline:
    """Which pipelines are looked at: splits of the layers over stages, and schedules."""

    splits: Literal["any", "even"] = "any"
    """any: every number of layers on each stage that the framework takes, and, where it can,
    full recompute of a part of each stage."""
    schedules: tuple[Schedule, ...] | None = None
    """None: 1F1B, its interleaving, and what is searched of the framework's (pipelines.yaml)."""


USUAL = Pipeline("even", ("1f1b", "interleaved"))
"""Even stages on 1F1B and its interleaving alone."""


@dataclass(frozen=True)
class Question:
    """A job, what is fixed or limited, and what is to be least.

    ``fix`` maps a key of KEYS to its value (recompute and cp_kind by their names).
    ``deadline_s`` and ``budget_usd`` bound the answer's run, ``max_power_w`` the power of its GPUs
    (None: no bound).
    """

    job: Job
    fix: dict[str, int | str | bool] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    objective: Objective = "time"
    """``gpus``: the fewest with which something fits and meets the limits."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    max_power_w: float | None = None
    counts: tuple[int, int] | None = None
    """GPU counts from and to, of which the search chooses (optimizer.counts); ``job.gpus`` is then
    the largest. None: exactly ``job.gpus``."""
    batches: tuple[int, int] | None = None
    """Global batches from and to, of which the search chooses; ``job.training`` then holds the
    largest batch and the tokens that a small one needs. None: exactly the job's."""
    critical_tokens: float = math.inf
    """Critical batch in tokens: what a large batch costs (costmodel.critical)."""
    pareto: bool = False
    """Also the front of wall time against cost over the GPU counts."""
    sensitivity: bool = False
    """Also what a better machine would be worth (optimizer.sensitivity)."""
    top: int = 3
    """How many alternatives to return beside the plan."""
    pipeline: Pipeline = Pipeline()

    @property
    def range(self) -> tuple[int, int]:
        """GPU counts from and to; twice the same where the count is given."""
        return self.counts or (self.job.gpus, self.job.gpus)


@dataclass(frozen=True)
class Budget:
    """How long to look. ``workers`` and ``seed`` never change an ``optimal`` answer.

    One worker is the fastest here: what is left after the cuts is too small to share out.
    """

    seconds: float = 60.0
    workers: int = 1
    seed: int = 0
    effort: float = math.inf
    """Of one call of the solver, in its own deterministic seconds: the same on any machine."""
    use_hints: bool = True
    """False: no warm start, no cut-off, no safe cuts; for tests of the bare CP-SAT model."""
    brief: bool = False
    """The answer and its proof alone: no alternatives, no explanation, no ways out. The plan is
    held against the next best layouts all the same."""
