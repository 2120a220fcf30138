"""Stops that are announced: maintenance windows, upgrades. Nothing is lost, only time.

A stop takes a full save before it, the time that the machine is away, a restart and the load; no
failure has to be noticed. A site that says nothing has the default share: so many stops to a
failure (reliability.py).
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel.axes import Array
from layoutopt.hardware_profiles.schema import PlannedStops

LEAST_WORK_SHARE = 1e-4
"""Of the time between two stops that is taken to be left for work, where saves and restarts would
take all of it: the run then never finishes (reliability.NEVER_FACTOR), and its time is finite."""


def expected_stops(stops: PlannedStops, wall_s: float | Array, each_s: float | Array) -> Array:
    """How many stops a run has that takes ``wall_s`` without them; ``each_s``: what one takes.

    So many as were said; or, one every X on the calendar, whose work between two of them is X less
    each_s: wall / (X - each) in the mean over the days on which the run may begin.
    """
    wall, each = np.broadcast_arrays(np.asarray(wall_s, dtype=float), each_s)
    if stops.every_s is None:
        return np.full(wall.shape, float(stops.count))
    left = np.maximum(stops.every_s - each, LEAST_WORK_SHARE * stops.every_s)
    found: Array = wall / left
    return found


def stop_s(stops: PlannedStops, write_s: float | Array, anew_s: float) -> Array:
    """What one stop takes: a full save, the time that it lasts, restart and load (``anew_s``)."""
    each: Array = np.asarray(write_s, dtype=float) + stops.lasts_s + anew_s
    return each
