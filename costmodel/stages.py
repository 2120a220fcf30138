"""Which layers stand on which pipeline stage, and how many of them are run again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import Flags, Ints
from layoutopt.costmodel.layout import Layout


@dataclass(frozen=True)
class Stages:
    """Stages of each layout, shape (layouts, stages listed).

    For an even split only three stages are listed: the first, the first of the longest, the last.
    No other stage takes longer or holds more (see ``even_classes``), and of the longest the last
    one, ``run_end``, ends its work last.
    """

    index: Ints
    layers: Ints
    first: Flags
    last: Flags
    """Holds the loss head: the last stage, or the first one of a V."""
    recomputed: Ints | None = None
    """Layers that recompute as the layout says, the first of each stage; the others keep
    everything. None: all of them."""
    run_end: Ints | None = None
    """The last of the stages that follow this one and are like it. None: the stage itself."""
    ahead: Ints | None = None
    """Layers on the stages before ``run_end``. None: every stage is listed."""

    def keep(self, listed: Flags) -> Stages:
        """Some of the stages that one layout lists."""
        again = None if self.recomputed is None else self.recomputed[:, listed]
        return Stages(
            self.index[:, listed],
            self.layers[:, listed],
            self.first[:, listed],
            self.last[:, listed],
            again,
        )


def even_split(layers: int, pp: int) -> tuple[int, ...]:
    """Layers per stage, as even as they go.

    The spare layers go to the stages before the last one, nearest to it first, then to the first
    stage: the first stage also holds the embedding and the most microbatches in flight, the last
    one the loss head. 126 layers on 16 stages: 7, 14 times 8, 7 (Llama 3, section 3.3.2).
    """
    base, spare = divmod(layers, pp)
    split = [base] * pp
    for stage in range(pp - 2, pp - 2 - spare, -1):
        split[stage] += 1
    return tuple(split)


def recompute_alike(layers: tuple[int, ...], again: tuple[int, ...] | None) -> bool:
    """Whether one number says how many layers of every stage recompute: as many as it has, at
    most. ``again``: how many do; None: all."""
    if again is None:
        return True
    return all(k == min(max(again), n) for k, n in zip(again, layers, strict=True))


def even_classes(
    layers: int, pp: Ints, v_shape: Flags | None = None, microbatches: Ints | None = None
) -> Stages:
    """The three stages of an even split that can be the slowest or the fullest.

    Stages before the first long one hold no more layers than stage 0 and fewer microbatches;
    stages after it hold as many layers and fewer microbatches. Where stage 0 is long itself, the
    first long one is the next, which has no embedding. ``v_shape``: layouts whose loss
    head stands on the first stage. There stage s holds min(2p - s - 1, m) microbatches of its first
    chunk and min(s + 1, m) of its second, so of equally long stages the one nearest to
    s = 2p - 1 - m is the fullest.
    """
    base = layers // pp
    spare = layers - base * pp
    long_index = np.where(spare > 0, np.maximum(pp - 1 - spare, np.where(pp > 2, 1, 0)), 0)
    long_layers = base + (spare > 0)
    if v_shape is not None and microbatches is not None:
        last_long = np.where(spare > 0, np.maximum(pp - 2, 0), pp - 1)
        fullest = np.clip(2 * pp - 1 - microbatches, long_index, last_long)
        long_index = np.where(v_shape, fullest, long_index)
    first_layers = base + ((spare > 0) & (spare == pp - 1))
    last_index = pp - 1
    index = np.stack([np.zeros_like(pp), long_index, last_index], axis=-1)
    counts = np.stack([first_layers, long_layers, base], axis=-1)
    head = last_index if v_shape is None else np.where(v_shape, 0, last_index)
    ends = np.where(spare > 0, np.maximum(pp - 2, 0), 0)
    before = np.where(spare > 0, layers - base - long_layers, 0)
    return Stages(
        index,
        counts,
        index == 0,
        index == head[..., None],
        run_end=np.stack([np.zeros_like(pp), ends, last_index], axis=-1),
        ahead=np.stack([np.zeros_like(pp), before, layers - base], axis=-1),
    )


def given_stages(
    layers_per_stage: tuple[int, ...],
    recompute_layers: int | tuple[int, ...] | None = None,
    *,
    v_shape: bool = False,
) -> Stages:
    """Every stage of one layout, shape (1, pp)."""
    index = np.arange(len(layers_per_stage), dtype=np.int64)[None, :]
    counts = np.array([layers_per_stage], dtype=np.int64)
    head = 0 if v_shape else len(layers_per_stage) - 1
    again = None
    if recompute_layers is not None:
        again = np.minimum(np.asarray(recompute_layers, dtype=np.int64), counts)
    return Stages(index, counts, index == 0, index == head, again)


def stages_of(layout: Layout, layers: int) -> Stages:
    """Every stage of ``layout`` for a model of ``layers`` layers, shape (1, pp)."""
    return given_stages(
        layout.layers_per_stage or even_split(layers, layout.pp),
        layout.recompute_layers if layout.recompute != "none" else None,
        v_shape=layout.schedule == "zbv" and layout.pp > 1,
    )
