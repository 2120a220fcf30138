"""A rule that a layout breaks, and the numbers to name beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Broken:
    """A rule that a layout breaks: a sentence with the numbers, and what to change it to."""

    rule: str
    field: str
    value: object
    message: str
    nearest: tuple[object, ...] = ()


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of ``number`` >= 1, in rising order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(small + [number // d for d in reversed(small) if d * d != number])


def nearest_of(values: tuple[int, ...] | list[int], wanted: int, n: int = 3) -> tuple[int, ...]:
    """The ``n`` of ``values`` nearest to ``wanted``, in rising order."""
    return tuple(sorted(sorted(values, key=lambda v: (abs(v - wanted), v))[:n]))
