"""Rows of a table looked up by some of its axes: the least of a column over those that agree."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints, ints
from layoutopt.optimizer.tables import Table

HUGE = 2**61
"""More than any entry."""


class Keyed:
    """A table's rows by the values of ``axes``, numbered once, beside rows that ask for them."""

    def __init__(self, table: Table, axes: Sequence[str], wanted: Table | Sequence[Ints]) -> None:
        """``wanted``: a column for each of ``axes``, or the table that has them."""
        self.table = table
        rows = len(table)
        self.of_rows, self._size = np.zeros(rows, dtype=np.int64), 1
        asked = [_column(wanted, place, axis) for place, axis in enumerate(axes)]
        known, of_wanted = np.asarray(True), np.zeros(len(asked[0][1]), dtype=np.int64)
        for axis, (values, codes) in zip(axes, asked, strict=True):
            domain, mine = table.numbered(axis)
            place = np.minimum(np.searchsorted(domain, values), max(len(domain) - 1, 0))
            found = domain[place] == values if len(domain) else np.zeros(len(values), dtype=bool)
            known = known & found[codes]
            self.of_rows = self.of_rows * len(domain) + mine
            of_wanted = of_wanted * len(domain) + place[codes]
            self._size *= len(domain)
        self.of_wanted: Ints = np.where(known, of_wanted, self._size)

    def least(self, values: Ints, keep: Flags | None = None) -> Ints:
        """For each wanted row the least of ``values``, one a row of the table, over the rows that
        go with it (and that ``keep`` says); HUGE where there is none."""
        return self.by_number(values, keep)[self.of_wanted]

    def least_alike(self, values: Ints) -> Ints:
        """For each row of the table the least among the rows that share its axes."""
        return self.by_number(values)[self.of_rows]

    def least_each(self, values: Ints, axis: str, among: Sequence[int]) -> Ints:
        """`least` of the rows with each value of ``axis``: a row for each of ``among``."""
        domain, codes = self.table.numbered(axis)
        least = np.full((len(domain) + 1, self._size + 1), HUGE)
        np.minimum.at(least.reshape(-1), codes * (self._size + 1) + self.of_rows, values)
        place = np.minimum(np.searchsorted(domain, ints(list(among))), max(len(domain) - 1, 0))
        there = domain[place] == among if len(domain) else np.zeros(len(among), dtype=bool)
        return least[np.where(there, place, len(domain))[:, None], self.of_wanted]

    def asking(self, places: Flags | Ints) -> Keyed:
        """The same for some of the rows that ask."""
        some = copy(self)
        some.of_wanted = self.of_wanted[places]
        return some

    def by_number(self, values: Ints, keep: Flags | None = None) -> Ints:
        """The least for each number; the last is of what no row has."""
        least = np.full(self._size + 1, HUGE)
        if keep is None:
            np.minimum.at(least, self.of_rows, values)
        else:
            np.minimum.at(least, self.of_rows[keep], values[keep])
        return least


def _column(wanted: Table | Sequence[Ints], place: int, axis: str) -> tuple[Ints, Ints]:
    """Values, and where each row has its own among them."""
    if isinstance(wanted, Table):
        return wanted.numbered(axis)
    values = wanted[place]
    return values, np.arange(len(values))
