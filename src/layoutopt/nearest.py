"""The names nearest to one that is not known: every message that refuses a name ends with them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_names(name: str, known: Iterable[str], n: int = 3) -> tuple[str, ...]:
    """Up to ``n`` of ``known`` that look most like ``name``, the best first.

    Case is ignored; names that hold what was written come after close matches.
    """
    wanted = name.strip().lower()[:64]
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(wanted, by_lower, n=n, cutoff=0.5)
    holding = [one for one in by_lower if wanted and wanted in one and one not in close]
    return tuple(by_lower[one] for one in [*close, *holding][:n])


def did_you_mean(nearest: tuple[str, ...]) -> str:
    """``"; nearest: a, b"``, or nothing where nothing is near."""
    return f"; nearest: {', '.join(nearest)}" if nearest else ""
