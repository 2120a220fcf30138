"""What makes the stages of a step uneven in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log1p, sqrt
from random import Random


@dataclass(frozen=True)
class Disturbance:
    """What makes stages uneven in time. Factors are of compute alone."""

    allowance: float = 0.0
    """Relative time on everything: stragglers and jitter as the cost model allows for them (A8)."""
    slow: dict[int, float] = field(default_factory=dict)
    """Factor of a stage's compute by stage: a straggler."""
    jitter: float = 0.0
    """Relative standard deviation of a unit's compute, log-normal around its mean."""
    seed: int = 0


CALM = Disturbance()


def lognormal(random: Random, deviation: float) -> float:
    """A factor around 1 with that relative standard deviation."""
    sigma = sqrt(log1p(deviation**2))
    return random.lognormvariate(-(sigma**2) / 2, sigma)
