"""A good layout to start from: local search with the vectorised cost model.

It gives the solver a hint and a cut-off; it decides nothing. A few hundred spread layouts are
priced, then the neighbours of the best few, until nothing improves.
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel.axes import Array, Ints, ints
from layoutopt.optimizer import choices
from layoutopt.optimizer.completions import REST, completions, may_fit
from layoutopt.optimizer.floors import Floors
from layoutopt.optimizer.pricing import complete, price, row, stack
from layoutopt.optimizer.space import Space

FREE = ("tp", "cp", "pp", "experts", "vpp", "micro_batch", "sharding", "mode")
"""The axes that are free once the GPUs and the batch are used up."""
_CENTRES = 3
_ROUNDS = 12
_ROWS = 20_000
"""Layouts of promising shapes that are listed, of which the legal ones are priced."""
_ANY = 1_000
"""More places than an axis has."""
_OVER_WEIGHT = 1e-6
"""Seconds that a KiB beyond memory counts for, on top of a factor that puts misfits last."""


def start_from(
    space: Space, floors: Floors | None = None, *, near: bool = False
) -> dict[str, int] | None:
    """What local search finds, or where floors are given the shapes with the lowest, if better.

    ``near``: a limit is known that is nearly as low as the floors, and does what a good start does:
    no local search. None where nothing is found that fits.
    """
    lowest = None if floors is None else _promising(space, floors)
    if near and floors is not None:
        return lowest
    found = [one for one in (_searched(space), lowest) if one is not None]
    if not found:
        return None
    seconds, _ = price(space, stack(found))
    return found[int(np.argmin(seconds))]


def _promising(space: Space, floors: Floors) -> dict[str, int] | None:
    """The fastest layout of the shapes with the lowest floors that fits."""
    order = np.argsort(floors.shape.columns["tight"], kind="stable")
    order = order[may_fit(floors)[order]]
    each = max(1, int(np.prod([len(space.values[axis]) for axis in REST])))
    columns = completions(space, floors, order[: max(1, _ROWS // each)], only_fitting=True)
    if not len(columns["tp"]):
        return None
    seconds, over = price(space, columns)
    place = int(np.argmin(np.where(over > 0, np.inf, seconds)))
    return row(columns, place) if over[place] == 0 else None


def _searched(space: Space) -> dict[str, int] | None:
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
        "experts": _ends(values["experts"]),
        "vpp": values["vpp"][:1] if 1 in values["vpp"] else values["vpp"],
        "micro_batch": values["micro_batch"] if every_batch else values["micro_batch"][:2],
        "sharding": _plain_shardings(values["sharding"]),
        "mode": _plain_modes(values["mode"]),
    }
    return _mesh([picked[axis] for axis in FREE])


def _ends(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((values[0], values[-1]))) if values else ()


def _plain_shardings(values: tuple[int, ...]) -> tuple[int, ...]:
    """Of each ZeRO stage the first, which is over all replicas where that is allowed."""
    first: dict[int, int] = {}
    for value in values:
        first.setdefault(choices.sharding(value).zero_stage, value)
    return tuple(first.values())


def _plain_modes(values: tuple[int, ...]) -> tuple[int, ...]:
    """Least and most recompute, each with the first kind of context parallelism."""
    first: dict[int, int] = {}
    for value in values:
        first.setdefault(choices.mode(value).recompute, value)
    return _ends(tuple(first.values()))


def _mesh(values: list[tuple[int, ...]]) -> dict[str, Ints]:
    grids = np.meshgrid(*(ints(list(v)) for v in values), indexing="ij")
    return {axis: grid.ravel() for axis, grid in zip(FREE, grids, strict=True)}


def _around(space: Space, centres: list[tuple[int, ...]]) -> dict[str, Ints]:
    """Neighbours on the lattice of axis values: the shape moves a step, or the rest does."""
    found = [
        _mesh([_near(space, axis, value, reach) for axis, value in zip(FREE, centre, strict=True)])
        for centre in centres
        for reach in (
            {"tp": 1, "cp": 1, "pp": 1, "experts": 1, "micro_batch": 1},
            {"pp": 1, "vpp": 3, "micro_batch": 1, "sharding": _ANY, "mode": _ANY},
        )
    ]
    return {axis: np.concatenate([one[axis] for one in found]) for axis in FREE}


def _near(space: Space, axis: str, value: int, reach: dict[str, int]) -> tuple[int, ...]:
    domain = space.values[axis]
    place, steps = domain.index(value), reach.get(axis, 0)
    return domain[max(0, place - steps) : place + steps + 1]
