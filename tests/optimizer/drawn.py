"""How random questions are drawn: the same ones in every run, and never shrunk."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def drawn(examples: int) -> settings:
    """So many questions; a failing one is told as it is."""
    return settings(
        derandomize=True,
        database=None,
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
