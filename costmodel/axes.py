"""One layout, or arrays of layouts: the same code prices both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layoutopt.costmodel.layout import CP_KINDS, RECOMPUTE, Layout

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NONE, SELECTIVE, FULL = range(len(RECOMPUTE))
"""Integer codes of recompute in arrays."""

RING, ALL_GATHER, ULYSSES, HIERARCHICAL = range(len(CP_KINDS))
"""Integer codes of cp_kind in arrays."""

ONE_F_ONE_B, GPIPE, ZERO_BUBBLE, V_SHAPE, ZERO_BUBBLE_2P = range(5)
"""Integer codes of the schedule in arrays; interleaving is vpp > 1."""

SCHEDULES = {
    "1f1b": ONE_F_ONE_B,
    "interleaved": ONE_F_ONE_B,
    "gpipe": GPIPE,
    "zb-h1": ZERO_BUBBLE,
    "zb-2p": ZERO_BUBBLE_2P,
    "zbv": V_SHAPE,
}
"""Words of Layout.schedule as codes."""


def ints(values: object) -> Ints:
    """``values`` as an int64 array of at least one dimension."""
    return np.atleast_1d(np.asarray(values, dtype=np.int64))


@dataclass(frozen=True)
class Axes:
    """Parallel arrays, one entry per layout (entries of length 1 broadcast)."""

    tp: Ints
    cp: Ints
    pp: Ints
    dp: Ints
    ep: Ints
    etp: Ints
    vpp: Ints
    micro_batch: Ints
    microbatches: Ints
    zero_stage: Ints
    recompute: Ints
    sequence_parallel: Flags
    schedule: Ints
    shard_degree: Ints
    reshard: Flags
    cp_kind: Ints | int = RING
    offload_optimizer: Flags | bool = False
    offload_activations: Flags | bool = False

    @cached_property
    def v_shape(self) -> Flags:
        """Whether the second chunk runs back through the stages, so that the loss head stands on
        the first one."""
        flags: Flags = (self.schedule == V_SHAPE) & (self.pp > 1)
        return flags

    @cached_property
    def interleaved(self) -> Ints:
        """Chunks that take turns on a stage: vpp, but one in a V, whose chunks run back to back."""
        return np.where(self.v_shape, 1, self.vpp)

    @cached_property
    def chunks(self) -> Ints:
        """Model chunks on each stage: vpp, two in a V."""
        return np.where(self.pp > 1, np.where(self.v_shape, 2, self.vpp), 1)

    @cached_property
    def group(self) -> Ints:
        """Ranks that hold the same dense weights: dp * cp."""
        return self.dp * self.cp


def axes_of(layouts: Sequence[Layout]) -> Axes:
    """Arrays of the layouts' fields."""

    def column(name: str) -> Ints:
        return ints([getattr(layout, name) for layout in layouts])

    return Axes(
        tp=column("tp"),
        cp=column("cp"),
        pp=column("pp"),
        dp=column("dp"),
        ep=column("ep"),
        etp=column("etp"),
        vpp=column("vpp"),
        micro_batch=column("micro_batch"),
        microbatches=column("microbatches"),
        zero_stage=column("zero_stage"),
        recompute=ints([RECOMPUTE.index(layout.recompute) for layout in layouts]),
        sequence_parallel=np.array([layout.sequence_parallel for layout in layouts]),
        schedule=ints([SCHEDULES[layout.schedule] for layout in layouts]),
        shard_degree=ints([layout.shard_degree or layout.dp * layout.cp for layout in layouts]),
        reshard=np.array([layout.reshard for layout in layouts]),
        offload_optimizer=np.array([layout.offload_optimizer for layout in layouts]),
        offload_activations=np.array([layout.offload_activations for layout in layouts]),
        cp_kind=ints([CP_KINDS.index(layout.cp_kind) for layout in layouts]),
    )


def take(axes: Axes, places: Flags | Ints) -> Axes:
    """Some entries of arrays of layouts."""
    size = len(axes.tp)
    taken: dict[str, Any] = {}
    for item in fields(axes):
        values = getattr(axes, item.name)
        if isinstance(values, np.ndarray) and values.shape == (size,):
            taken[item.name] = values[places]
    return replace(axes, **taken)
