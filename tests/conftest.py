"""Settings of every test: how many random examples, and from which seed.

``LAYOUTOPT_TESTS=full`` (scripts/check --full) asks for the full counts; otherwise the random
tests run a derandomised sample, the same on every machine.
"""

from __future__ import annotations

import os

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
