"""How far a predicted step time is from measured ones, for the answer."""

from __future__ import annotations

from typing import Any

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.uncertainty import band


def uncertainty(job: Job) -> dict[str, Any]:
    """The JSON ``uncertainty``; step_time_rel is null where no residuals have been recorded."""
    return band(job).to_dict()
