"""``planned_stops``: stops that are announced, in words: ``4h every 30d``, ``3 x 4h``, ``none``."""

from __future__ import annotations

import re

from layoutopt import units
from layoutopt.hardware_profiles.schema import PlannedStops

FORM = "'4h every 30d', '3 x 4h' or 'none'"
"""How they are written."""
MOST_STOPS = 10_000
_EVERY = re.compile(r"(.+?)\s+every\s+(.+)")
_COUNT = re.compile(r"([0-9]{1,9})\s*x\s*(.+)")


def read_stops(text: str) -> PlannedStops:
    """Stops as they are written. Raises ValueError, in words for a person, for anything else."""
    told = " ".join(text.strip().lower().split())
    if told == "none":
        return PlannedStops(count=0, lasts_s=0.0)
    if match := _COUNT.fullmatch(told):
        count = int(match[1])
        if not 1 <= count <= MOST_STOPS:
            raise ValueError(f"{count:,} stops are not between 1 and {MOST_STOPS:,}")
        return PlannedStops(count=count, lasts_s=_lasting(match[2]))
    if match := _EVERY.fullmatch(told):
        lasts, every = _lasting(match[1]), units.parse_seconds(match[2])
        if every <= lasts:
            raise ValueError(f"stops of {match[1]} every {match[2]} leave no time between them")
        return PlannedStops(every_s=every, lasts_s=lasts)
    raise ValueError(f"{text.strip()[:40]!r} does not say how long stops last, and how often")


def _lasting(text: str) -> float:
    seconds = units.parse_seconds(text)
    if not seconds > 0:
        raise ValueError(f"a stop of {text} is none: write 'none'")
    return seconds
