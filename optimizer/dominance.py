"""Rows of the layer table that no answer needs: another way to run the layer is better in all.

With every other axis the same, a way to run a layer (mode) that takes no longer in the forward and
in the backward pass, less in one of them, and holds no more memory, makes no step longer: a step
rises with both passes, though they are also what traffic hides behind, because what a shorter pass
leaves exposed is never more than what the pass itself became shorter. (With ZeRO-2 and 3 it may be
more, and nothing is left out: see tables.py.) So what is dominated loses,
or, where traffic sets the pace alone, ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layoutopt.costmodel.axes import Array, Flags, Ints


def dominated(rows: Ints, seconds: Sequence[Array], kib: Sequence[Ints]) -> Flags:
    """Rows of the layer table (its last axis is the mode) that another mode dominates.

    ``seconds`` are of the forward and of the backward pass, ``kib`` all that is held.
    """
    modes, place = np.unique(rows[:, -1], return_inverse=True)
    group = _groups(rows[:, :-1])
    shape = (len(modes), int(group.max(initial=-1)) + 1)

    def spread(values: Array | Ints) -> Array:
        """One row a mode, one column a group; infinite where the mode is not legal."""
        wide = np.full(shape, np.inf)
        wide[place, group] = values
        return wide

    times, held = [spread(one) for one in seconds], [spread(one) for one in kib]
    lost = np.zeros(shape, dtype=bool)
    for one in range(len(modes)):
        for other in range(len(modes)):
            faster = _any_less(times, one, other)
            # Most pairs of modes end here: a slower one dominates nothing.
            if one != other and faster.any():
                lost[other] |= faster & _none_more([*times, *held], one, other)
    found: Flags = lost[place, group]
    return found


def _any_less(columns: Sequence[Array], one: int, other: int) -> Flags:
    found: Flags = columns[0][one] < columns[0][other]
    for column in columns[1:]:
        found = found | (column[one] < column[other])
    return found


def _none_more(columns: Sequence[Array], one: int, other: int) -> Flags:
    found: Flags = columns[0][one] <= columns[0][other]
    for column in columns[1:]:
        found &= column[one] <= column[other]
    return found


def _groups(keys: Ints) -> Ints:
    """A number for each distinct row of ``keys``."""
    code = np.zeros(len(keys), dtype=np.int64)
    for column in keys.T:
        values, place = np.unique(column, return_inverse=True)
        code = code * len(values) + place
    found: Ints = np.unique(code, return_inverse=True)[1]
    return found
