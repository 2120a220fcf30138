"""The few statistics of the accuracy tables, for short lists of floats."""

from __future__ import annotations

from collections.abc import Sequence


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean; None for an empty list."""
    return sum(values) / len(values) if values else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """Value below which ``share`` of the list lies, linear between neighbours; None if empty."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float | None:
    """Middle value; None for an empty list."""
    return quantile(values, 0.5)


def ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value from 1; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    result = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            result[place] = (start + end) / 2 + 1
        start = end + 1
    return result


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Rank correlation, -1 to 1; None where one side is constant or there are under two pairs.

    Pearson's correlation of the ranks (Spearman 1904), which allows for ties.
    """
    x, y = ranks(left), ranks(right)
    if len(x) < 2:
        return None
    centre = (len(x) + 1) / 2
    covariance = sum((a - centre) * (b - centre) for a, b in zip(x, y, strict=True))
    spread_x = sum((a - centre) ** 2 for a in x)
    spread_y = sum((b - centre) ** 2 for b in y)
    if spread_x == 0 or spread_y == 0:
        return None
    return float(covariance / (spread_x * spread_y) ** 0.5)
