"""What a stage does in one microbatch: its layers, kind by kind, its ends, its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from layoutopt.costmodel import sharding, terms
from layoutopt.costmodel.activations import activation_kib
from layoutopt.costmodel.axes import NONE, Array, Axes, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.offload import offloaded
from layoutopt.costmodel.stages import Stages


def exposed(wire: Array, window: Array, share: float) -> Array:
    """Seconds of communication that compute does not hide.

    At most ``share`` of it can hide, and no more than the window (A4):
    max((1 - share) w, w - window).
    """
    left: Array = np.maximum((1 - share) * wire, wire - window)
    return left


@dataclass(frozen=True)
class LayerKind:
    """Layers that are run alike: one of them and one microbatch, and the ZeRO-2/3 traffic that its
    passes do not hide."""

    terms: terms.LayerTerms
    repeated: Array

    @property
    def total(self) -> Array:
        """Seconds of one layer and microbatch."""
        total: Array = self.terms.total + self.repeated
        return total


def layer_kind(job: Job, axes: Axes, recompute: Ints) -> LayerKind:
    """One average layer of each layout that recomputes by the code ``recompute``."""
    layer = terms.layer_terms(
        job,
        axes.tp,
        axes.cp,
        axes.ep,
        axes.micro_batch,
        recompute,
        etp=axes.etp,
        sp=axes.sequence_parallel,
        cp_kind=axes.cp_kind,
    )
    if np.any(axes.offload_activations):
        saved = activation_kib(
            job,
            axes.tp,
            axes.cp,
            axes.ep,
            axes.micro_batch,
            recompute,
            etp=axes.etp,
            sp=axes.sequence_parallel,
        )
        layer = offloaded(job, layer, saved, axes.offload_activations)
    return LayerKind(layer, _repeated_sharding(job, axes, layer))


@dataclass(frozen=True)
class Mixed:
    """How many layers of each listed stage are of which kind."""

    kinds: tuple[LayerKind, ...]
    counts: tuple[Ints, ...]
    """One for each kind, shape (layouts, stages)."""
    totals: tuple[Ints | int, ...]
    """The same over all stages."""
    predicting: Ints
    """Multi-token-prediction blocks, where the loss head stands: layers of the first kind. Shape
    (layouts, stages)."""
    blocks: int
    """The same over all stages."""

    def stage(self, seconds: Callable[[LayerKind], Array]) -> Array:
        """Sum over the layers of each stage, shape (layouts, stages)."""
        return sum_of(count * np.asarray(seconds(kind))[..., None] for kind, count in self.priced())

    def all_stages(self, seconds: Callable[[LayerKind], Array]) -> Array:
        """Sum over all layers."""
        found = sum_of(
            total * seconds(kind) for kind, total in zip(self.kinds, self.totals, strict=True)
        )
        return found + self.blocks * seconds(self.kinds[0]) if self.blocks else found

    def priced(self) -> list[tuple[LayerKind, Ints]]:
        """Kinds with their layers on each stage, prediction blocks among them."""
        pairs = list(zip(self.kinds, self.counts, strict=True))
        return [*pairs, (self.kinds[0], self.predicting)] if self.blocks else pairs


def sum_of(values: Iterable[Array]) -> Array:
    """Their sum, from left to right."""
    return reduce(np.add, values)


def mixed_layers(job: Job, axes: Axes, stages: Stages) -> Mixed:
    """All layers alike, or the first of each stage recomputing and the rest keeping everything."""
    told = layer_kind(job, axes, axes.recompute)
    blocks = job.model.mtp_layers
    predicting = blocks * stages.last.astype(np.int64)
    if stages.recomputed is None:
        return Mixed((told,), (stages.layers,), (job.model.layers,), predicting, blocks)
    kept = layer_kind(job, axes, np.full_like(axes.recompute, NONE))
    again = np.sum(stages.recomputed, axis=-1)
    counts = (stages.recomputed, stages.layers - stages.recomputed)
    totals = (again, job.model.layers - again)
    return Mixed((told, kept), counts, totals, predicting, blocks)


@dataclass(frozen=True)
class Ends:
    """Seconds of one microbatch beside the layers: on the first stage and where the head stands."""

    parts: tuple[terms.EndTerms, terms.EndTerms]
    """Embedding and head."""

    @property
    def embedding(self) -> Array:
        """Kernels and traffic of the embedding."""
        return self.parts[0].total

    @property
    def head(self) -> Array:
        """Kernels and traffic of the loss head."""
        return self.parts[1].total

    @property
    def forward(self) -> Array:
        """The forward passes of both."""
        return sum_of(end.compute.forward + end.tp_comm.forward for end in self.parts)

    @property
    def weight(self) -> Array:
        """Weight gradients: of the head's two products in its backward pass one (none where it is
        frozen), the cross-entropy's traffic being half and half."""
        work = self.parts[1].compute
        return work.backward - work.forward


def end_seconds(job: Job, axes: Axes) -> Ends:
    """Embedding and loss head of each layout."""
    where = (job, axes.tp, axes.cp, axes.micro_batch)
    return Ends((terms.embedding_seconds(*where), terms.head_seconds(*where)))


def stage_seconds(mixed: Mixed, stages: Stages, ends: Ends) -> Array:
    """One microbatch on each listed stage, shape (layouts, stages): its layers and its ends."""
    seconds: Array = (
        mixed.stage(lambda kind: kind.total)
        + np.where(stages.first, ends.embedding[..., None], 0.0)
        + np.where(stages.last, ends.head[..., None], 0.0)
    )
    return seconds


def message_seconds(job: Job, axes: Axes) -> Array:
    """Exposed messages of a microbatch on one stage boundary, over all chunks."""
    message = terms.message_seconds(
        job, axes.tp, axes.cp, axes.pp, axes.micro_batch, sp=axes.sequence_parallel
    )
    return axes.chunks * message


def sharding_wire(job: Job, axes: Axes) -> sharding.Gathers:
    """ZeRO-2/3 traffic of one layer and microbatch, seconds on the wire."""
    return sharding.gather_seconds(
        job,
        axes.tp,
        axes.pp,
        axes.zero_stage,
        shard=axes.shard_degree,
        reshard=axes.reshard,
        ep=axes.ep,
        etp=axes.etp,
        cp=axes.cp,
    )


def _repeated_sharding(job: Job, axes: Axes, layer: terms.LayerTerms) -> Array:
    """What of it one layer's own passes do not hide."""
    wire, share = sharding_wire(job, axes), job.software.overlap_fsdp
    return exposed(wire.forward, layer.forward, share) + exposed(
        wire.backward, layer.backward, share
    )
