"""The order of work on each stage, as frameworks run it: what a pipeline schedule is.

A unit is one pass of one microbatch through one chunk. ``F`` forward, ``B`` backward; where a
schedule takes the backward pass apart, ``I`` is the input's gradient and ``W`` the weights'.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from layoutopt.costmodel.layout import Layout


class Unit(NamedTuple):
    """One entry of a stage's order of work."""

    kind: str
    microbatch: int
    chunk: int


Order = list[Unit]


class Place(NamedTuple):
    """Where a chunk of the model stands."""

    stage: int
    chunk: int


def is_v(layout: Layout) -> bool:
    """Whether the chunks run down the stages and back up; a single stage has one chunk."""
    return layout.schedule == "zbv" and layout.pp > 1


def chunks_of(layout: Layout) -> int:
    """Chunks on each stage: two in a V, ``vpp`` when interleaved, one on a single stage."""
    if is_v(layout):
        return 2
    return layout.vpp if layout.pp > 1 else 1


def splits_backward(layout: Layout) -> bool:
    """Whether weight gradients are units of their own."""
    return layout.schedule in ("zb-h1", "zb-2p", "zbv")


def places(layout: Layout) -> list[Place]:
    """Where the model's chunks stand, in the order of a forward pass.

    Interleaved: round the stages, chunk by chunk. V: down the stages and back up (Qi et al. 2023,
    arXiv 2401.10241, section 6), so that the first stage also holds the loss head.
    """
    p, v = layout.pp, chunks_of(layout)
    if is_v(layout):
        return [Place(s, 0) for s in range(p)] + [Place(s, 1) for s in reversed(range(p))]
    return [Place(stage, chunk) for chunk in range(v) for stage in range(p)]


def orders(layout: Layout) -> list[Order]:
    """The order of work of every stage."""
    p, m = layout.pp, layout.microbatches
    if is_v(layout):
        return [_zbv(p, m, stage) for stage in range(p)]
    if layout.schedule == "gpipe":
        return [_gpipe(m, chunks_of(layout), p) for _ in range(p)]
    if layout.schedule == "zb-2p":
        return [_zb_2p(p, m, stage) for stage in range(p)]
    if splits_backward(layout):
        return [_zb_h1(p, m, stage) for stage in range(p)]
    if chunks_of(layout) > 1:
        return [_interleaved(p, m, layout.vpp, stage) for stage in range(p)]
    return [_one_f_one_b(p, m, stage) for stage in range(p)]


def _alternate(forward: Order, backward: Order, warm: int) -> Order:
    """``warm`` forwards, then a forward and a backward in turn, then the backwards left."""
    steady = [unit for pair in zip(forward[warm:], backward, strict=False) for unit in pair]
    return forward[:warm] + steady + backward[len(forward) - warm :]


def _one_f_one_b(p: int, m: int, stage: int) -> Order:
    """PipeDream-flush: p - s - 1 forwards first (Narayanan et al. 2021, section 2.2)."""
    forward = [Unit("F", i, 0) for i in range(m)]
    backward = [Unit("B", i, 0) for i in range(m)]
    return _alternate(forward, backward, min(p - stage - 1, m))


def _gpipe(m: int, v: int, p: int) -> Order:
    """All forwards, then all backwards; with chunks, in Megatron-LM's groups of p."""
    forward, backward = _grouped(p, m, v)
    return forward + backward


def _interleaved(p: int, m: int, v: int, stage: int) -> Order:
    """Megatron Core's interleaved order (schedules.py, get_pp_rank_microbatches and
    get_schedule_table): groups of p microbatches, chunk by chunk; 2 (p - s - 1) + (v - 1) p
    forwards first."""
    forward, backward = _grouped(p, m, v)
    return _alternate(forward, backward, min(2 * (p - stage - 1) + (v - 1) * p, len(forward)))


def _grouped(p: int, m: int, v: int) -> tuple[Order, Order]:
    """Forward and backward units in groups of p microbatches, chunk by chunk."""
    groups = [range(start, min(start + p, m)) for start in range(0, m, p)]
    forward = [Unit("F", i, c) for group in groups for c in range(v) for i in group]
    backward = [Unit("B", i, c) for group in groups for c in reversed(range(v)) for i in group]
    return forward, backward


def _zb_h1(p: int, m: int, stage: int) -> Order:
    """Zero bubble H1: 1F1B's forwards and input gradients; stage s puts each weight gradient off
    until s more input gradients are done, and does what is left at the end.

    Source: Qi et al. 2023 (arXiv 2401.10241), section 2.1 and figure 2: every stage keeps the
    number of microbatches in flight that the first one has under 1F1B.
    """
    warm = min(p - stage - 1, m)
    found: Order = [Unit("F", i, 0) for i in range(warm)]
    for i in range(m):
        if warm + i < m:
            found.append(Unit("F", warm + i, 0))
        found.append(Unit("I", i, 0))
        if i >= stage:
            found.append(Unit("W", i - stage, 0))
    return found + [Unit("W", i, 0) for i in range(max(0, m - stage), m)]


def _zb_2p(p: int, m: int, stage: int) -> Order:
    """Zero bubble H2: enough forwards first to fill the time until the first gradient comes back,
    and weight gradients put off by 2s on stage s, so that the last input gradients hurry.

    Source: Qi et al. 2023, section 2.2 and figure 3: every stage holds up to 2p - 1 microbatches,
    and the stages end as far apart as they started.
    """
    warm, late = min(2 * (p - stage) - 1, m), 2 * stage
    found: Order = [Unit("F", i, 0) for i in range(warm)]
    for i in range(m):
        found.append(Unit("I", i, 0))
        if i >= late:
            found.append(Unit("W", i - late, 0))
        if warm + i < m:
            found.append(Unit("F", warm + i, 0))
    return found + [Unit("W", i, 0) for i in range(max(0, m - late), m)]


def _zbv(p: int, m: int, stage: int) -> Order:
    """Zero bubble V, as PyTorch runs it (torch.distributed.pipelining.ScheduleZBVZeroBubble).

    Written for at least 2p - 1 microbatches; with fewer, the units of those that do not exist are
    left out, as PyTorch does.
    """
    most = max(2 * p - 1, m)
    return [unit for unit in _zbv_units(p, most, stage) if unit.microbatch < m]


def _zbv_units(p: int, m: int, stage: int) -> Iterator[Unit]:
    done = {(kind, chunk): 0 for kind in "FIW" for chunk in (0, 1)}

    def take(*names: tuple[str, int]) -> Iterator[Unit]:
        for kind, chunk in names:
            yield Unit(kind, done[kind, chunk], chunk)
            done[kind, chunk] += 1

    def backward(chunk: int) -> Iterator[Unit]:
        return take(("I", chunk), ("W", chunk))

    for _ in range(2 * (p - stage) - 1):
        yield from take(("F", 0))
    for _ in range(stage):
        yield from take(("F", 1), ("F", 0))
    for _ in range(p - stage):
        yield from take(("F", 1))
        yield from backward(1)
    while done["F", 1] < done["F", 0] or done["F", 0] < m:
        if done["F", 0] < m:
            yield from take(("F", 0))
        yield from backward(0)
        yield from take(("F", 1))
        yield from backward(1)
    for _ in range(stage):
        yield from take(("I", 0), ("I", 1))
    for _ in range(p - stage):
        yield from backward(0)
    while done["W", 1] < done["I", 1]:
        yield from take(("W", 1))
    while done["W", 0] < done["I", 0]:
        yield from take(("W", 0))
