"""Settings of every test: how many random examples, and from which seed.

``LAYOUTOPT_TESTS=full`` (scripts/check --full) asks for the full counts; otherwise the random
tests run a derandomised sample, the same on every machine.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

FULL = os.environ.get("LAYOUTOPT_TESTS") == "full"

_SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much)
settings.register_profile(
    "sample", derandomize=True, max_examples=60, deadline=None, suppress_health_check=_SLOW
)
settings.register_profile(
    "full", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=_SLOW
)
settings.load_profile("full" if FULL else "sample")

LONGEST = (
    "frameworks/test_accepted.py",
    "optimizer/test_mutations.py",
    "optimizer/test_random_questions.py",
    "optimizer/test_misses.py",
    "optimizer/test_rejected.py",
    "optimizer/test_fragments.py",
    "test_docs.py",
    "optimizer/test_search.py",
    "optimizer/test_pools.py",
    "optimizer/test_counts.py",
    "optimizer/test_alternatives.py",
)
"""Files of half a minute and more: first, so that no core waits for one of them at the end."""


def pytest_configure(config: pytest.Config) -> None:
    """Files are handed to workers in the order below, not by how many tests they have."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; within a file, and among the others, as they were."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.removeprefix("tests/").split("::")[0], 99))
