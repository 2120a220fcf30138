"""A layout: how one training step is cut over the GPUs. Owns the words for the axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-2p", "zbv"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
"""In the order of the integer codes that arrays of layouts use: 0, 1, 2."""
CpKind = Literal["ring", "all_gather", "ulysses", "hierarchical"]
CP_KINDS: tuple[CpKind, ...] = ("ring", "all_gather", "ulysses", "hierarchical")
"""How context parallelism exchanges keys and values, in the order of the integer codes.

``hierarchical``: all-to-all of heads inside the scale-up domain, a ring across (Megatron Core's
a2a+p2p)."""

PIPELINE_LAST, PIPELINE_INSIDE = "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"
"""Orders of the axes, innermost first: stages apart, or the stages of a pipeline together."""


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and the knobs that go with them; plain values, unchecked.

    ``layers_per_stage`` is None for "as even as they go" (see stages.even_split).
    ``shard_degree`` is the number of ranks that ZeRO shards over (None: all dp*cp ranks).
    ``recompute_layers``: with recompute "full", only the first so many layers of a stage, one
    number for all stages or one for each (None: all).
    ``schedule`` "zbv" puts two chunks on a stage in a V, whatever vpp says: the second chunk runs
    back from the last stage to the first, which holds embedding and loss head.
    ``pools_per_stage``: on a cluster of several pools, the pool that each stage stands on.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    micro_batch: int = 1
    microbatches: int = 1
    zero_stage: int = 1
    shard_degree: int | None = None
    reshard: bool = True
    offload_optimizer: bool = False
    recompute: Recompute = "none"
    recompute_layers: int | tuple[int, ...] | None = None
    sequence_parallel: bool = True
    offload_activations: bool = False
    cp_kind: CpKind = "ring"
    schedule: Schedule = "1f1b"
    layers_per_stage: tuple[int, ...] | None = None
    axis_order: str = PIPELINE_LAST
    pools_per_stage: tuple[str, ...] | None = None

    @property
    def gpus(self) -> int:
        """GPUs that the layout uses."""
        return self.tp * self.cp * self.pp * self.dp
