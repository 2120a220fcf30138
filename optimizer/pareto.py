"""The front of wall time against cost: counts that no other count beats in both.

At one count the shortest run is the cheapest, so a count has one point. It is off the front where
a smaller count is as fast, or a larger one uses no more GPU-seconds; both are limits on its wall
time, so that a count off the front is often excluded without being searched.
"""

from __future__ import annotations

import time

from layoutopt.costmodel.results import Estimate
from layoutopt.optimizer.counts import Case, Counts, Key
from layoutopt.optimizer.rounds import TIE

Points = dict[Key, Estimate]
"""GPU count and batch to their best run."""


def front(counts: Counts) -> tuple[tuple[Estimate, ...], bool]:
    """The points of the front by rising GPU count, and whether all of it is proved.

    Points keep to the question's limits; ``counts`` has been searched for the best one before.
    """
    points = {key: one.best for key, one in counts.searched.items() if one.exact and one.best}
    whole = True
    for case in sorted(counts.cases, key=lambda one: (-one.candidates, *one.key)):
        longest = min(case.limit_s, _undominated_s(points, case) * (1 - TIE))
        if case.key in points or _least_s(counts, case) > longest:
            continue
        if time.monotonic() >= counts.ends_at:
            whole = False
            break
        found = counts.look(case, longest)
        whole &= found.ended.proved
        if found.exact and found.best:
            points[case.key] = found.best
    return tuple(_undominated(points)), whole


def _least_s(counts: Counts, case: Case) -> float:
    """The highest floor under a count's runs that is known."""
    found = counts.searched.get(case.key)
    return max(case.closer_wall_s, (found.ended.bound_s or 0.0) if found else 0.0)


def _undominated_s(points: Points, case: Case) -> float:
    """A run this long, or longer, at this count is beaten by one of ``points``."""
    walls = [(key[0], plan.run.wall_time_s) for key, plan in points.items() if key != case.key]
    return min(
        (wall if gpus <= case.gpus else wall * gpus / case.gpus for gpus, wall in walls),
        default=float("inf"),
    )


def _undominated(points: Points) -> list[Estimate]:
    kept = []
    for key in sorted(points):
        plan, gpus = points[key], key[0]
        for its_key, beside in points.items():
            other = its_key[0]
            wall, its = plan.run.wall_time_s, beside.run.wall_time_s
            as_fast = its <= wall * (1 + TIE)
            as_cheap = its * other <= wall * gpus * (1 + TIE)
            better = its * other < wall * gpus * (1 - TIE) or its < wall * (1 - TIE)
            if its_key != key and as_fast and as_cheap and (better or its_key < key):
                break
        else:
            kept.append(plan)
    return kept
