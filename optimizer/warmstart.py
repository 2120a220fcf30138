"""A good layout to start from: local search with the vectorised cost model.

It gives the solver a hint and a cut-off; it decides nothing. A few hundred spread layouts are
priced, then the neighbours of the best few, until nothing improves.
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel.axes import Array, Ints, ints
from layoutopt.optimizer.pricing import complete, price, row
from layoutopt.optimizer.space import Space

FREE = ("tp", "cp", "pp", "ep", "vpp", "micro_batch", "zero_stage", "recompute")
"""The axes that are free once the GPUs and the batch are used up."""
_CENTRES = 3
_ROUNDS = 12
_OVER_WEIGHT = 1e-6
"""Seconds that a KiB beyond memory counts for, on top of a factor that puts misfits last."""


def start_from(space: Space) -> dict[str, int] | None:
    """The best layout that local search finds; None where it finds none that fits."""
    columns = complete(space, _spread(space))
    if not len(columns["tp"]):
        columns = complete(space, _spread(space, every_batch=True))
    best: dict[tuple[int, ...], float] = {}
    for _ in range(_ROUNDS):
        before = min(best.values(), default=np.inf)
        _keep(space, columns, best)
        if not best or min(best.values()) >= before:
            break
        columns = complete(space, _around(space, list(best)))
    return _fitting(space, best)


def _keep(space: Space, columns: dict[str, Ints], best: dict[tuple[int, ...], float]) -> None:
    """Prices ``columns`` and leaves the few best in ``best``."""
    if not len(columns["tp"]):
        return
    score = _score(space, columns)
    for place in np.argsort(score, kind="stable")[:_CENTRES].tolist():
        found = row(columns, place)
        best[tuple(found[axis] for axis in FREE)] = float(score[place])
    for losing in sorted(best, key=lambda key: (best[key], key))[_CENTRES:]:
        del best[losing]


def _score(space: Space, columns: dict[str, Ints]) -> Array:
    """Step time; misfits behind all that fits, those that miss by less in front."""
    seconds, over = price(space, columns)
    return np.where(over > 0, 1e9 + over * _OVER_WEIGHT, 0.0) + seconds


def _fitting(space: Space, best: dict[tuple[int, ...], float]) -> dict[str, int] | None:
    fits = {key: score for key, score in best.items() if score < 1e9}
    if not fits:
        return None
    key = min(fits, key=lambda found: (fits[found], found))
    free = {axis: ints([value]) for axis, value in zip(FREE, key, strict=True)}
    return row(complete(space, free), 0)


def _spread(space: Space, *, every_batch: bool = False) -> dict[str, Ints]:
    """A coarse lattice: every tp and pp, the ends of the other axes."""
    values = space.values
    picked = {
        "tp": values["tp"],
        "pp": values["pp"],
        "cp": values["cp"] if every_batch else values["cp"][:2],
        "ep": _ends(values["ep"]),
        "vpp": values["vpp"][:1] if 1 in values["vpp"] else values["vpp"],
        "micro_batch": values["micro_batch"] if every_batch else values["micro_batch"][:2],
        "zero_stage": values["zero_stage"],
        "recompute": _ends(values["recompute"]),
    }
    return _mesh([picked[axis] for axis in FREE])


def _ends(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((values[0], values[-1]))) if values else ()


def _mesh(values: list[tuple[int, ...]]) -> dict[str, Ints]:
    grids = np.meshgrid(*(ints(list(v)) for v in values), indexing="ij")
    return {axis: grid.ravel() for axis, grid in zip(FREE, grids, strict=True)}


def _around(space: Space, centres: list[tuple[int, ...]]) -> dict[str, Ints]:
    """Neighbours on the lattice of axis values: the shape moves a step, or the rest does."""
    found = [
        _mesh([_near(space, axis, value, reach) for axis, value in zip(FREE, centre, strict=True)])
        for centre in centres
        for reach in (
            {"tp": 1, "cp": 1, "pp": 1, "ep": 1, "micro_batch": 1},
            {"pp": 1, "vpp": 3, "micro_batch": 1, "zero_stage": 3, "recompute": 2},
        )
    ]
    return {axis: np.concatenate([one[axis] for one in found]) for axis in FREE}


def _near(space: Space, axis: str, value: int, reach: dict[str, int]) -> tuple[int, ...]:
    domain = space.values[axis]
    place, steps = domain.index(value), reach.get(axis, 0)
    return domain[max(0, place - steps) : place + steps + 1]
