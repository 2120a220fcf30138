"""What stands on each stage, piece by piece: layers, embedding and loss head with their seconds.

Seconds are durations of single operations, from the cost model's terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel import offload, sharding, terms
from layoutopt.costmodel.activations import activation_kib, logits_kib, working_kib
from layoutopt.costmodel.axes import NONE, Array, Axes, Ints, axes_of, ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS, RECOMPUTE, Layout
from layoutopt.costmodel.stage_work import sharding_wire
from layoutopt.costmodel.stages import even_split
from layoutopt.simulation.schedules import chunks_of, is_v, places
from layoutopt.units import KIB

Parts = tuple[tuple[str, float], ...]
"""Seconds by part (results.BREAKDOWN), one after the other."""


@dataclass(frozen=True)
class Piece:
    """A layer, the embedding or the loss head."""

    name: str
    forward: Parts
    backward: Parts
    """Input gradient, recompute included; weight gradients are apart."""
    weight_s: float
    """The part of the backward pass that only weights need."""
    saved_kib: int
    """Activations kept from the forward for the backward pass of one microbatch."""
    working_kib: int
    """What its backward pass holds beside them."""
    parameters: float
    """On one GPU: what its share of once-a-step traffic goes by."""
    gather_s: float = 0.0
    """ZeRO-3's gather of its weights, on the wire; before the forward pass."""
    gather_again_s: float = 0.0
    scatter_s: float = 0.0
    offload_s: float = 0.0
    """Copy of what it saves to the host, or back."""
    parked_kib: int = 0
    """What stays on the device of such a copy under way."""

    def in_unit(self, kind: str) -> Parts:
        """Seconds of this piece in a unit of that kind."""
        weight = (("compute", self.weight_s),) if self.weight_s else ()
        return {
            "F": self.forward,
            "I": self.backward,
            "W": weight,
            "B": (*self.backward, *weight),
        }[kind]


@dataclass(frozen=True)
class Chunk:
    """Consecutive pieces on one stage."""

    pieces: tuple[Piece, ...]

    def of(self, kind: str) -> Sequence[Piece]:
        """Its pieces in the order in which a forward pass (F), or any other, takes them."""
        return self.pieces if kind == "F" else self.pieces[::-1]


def sum_parts(many: Iterable[Parts]) -> Parts:
    """Parts added up by name, in the order in which they first come."""
    total: dict[str, float] = {}
    for parts in many:
        for part, seconds in parts:
            total[part] = total.get(part, 0.0) + seconds
    return tuple(total.items())


def split_of(job: Job, layout: Layout) -> tuple[int, ...]:
    """Layers of each stage."""
    return layout.layers_per_stage or even_split(job.model.layers, layout.pp)


def chunk_layers(layers: int, chunks: int, stage: int, *, v_shape: bool = False) -> list[int]:
    """Layers of each chunk of a stage. The first stage's spare layers go to its later chunks,
    because the embedding stands on its first; the other stages' to their earlier ones, because
    the loss head stands on the last. In a V both ends stand on the first stage: a spare layer goes
    to the first chunk."""
    base, spare = divmod(layers, chunks)
    longer = range(chunks - spare, chunks) if stage == 0 and not v_shape else range(spare)
    return [base + (chunk in longer) for chunk in range(chunks)]


def model_pieces(job: Job, layout: Layout) -> list[list[Chunk]]:
    """Chunks by stage: result[stage][chunk]."""
    v, spots = chunks_of(layout), places(layout)
    v_shape = is_v(layout)
    layers = _Layers.of(job, layout)
    found: list[list[Chunk]] = []
    for stage, held in enumerate(split_of(job, layout)):
        sizes = chunk_layers(held, v, stage, v_shape=v_shape)
        again = _again(recomputed_layers(layout, stage, held), sizes, v_shape)
        row = []
        for chunk, size in enumerate(sizes):
            pieces = [layers.layer(number < again[chunk]) for number in range(size)]
            if (stage, chunk) == spots[0]:
                pieces.insert(0, _embedding(job, layout))
            if (stage, chunk) == spots[-1]:
                pieces += [layers.prediction] * job.model.mtp_layers
                pieces.append(_head(job, layout))
            row.append(Chunk(tuple(pieces)))
        found.append(row)
    return found


def recomputed_layers(layout: Layout, stage: int, layers: int) -> int:
    """Layers of a stage that do what ``recompute`` says: all, or the first so many."""
    told = layout.recompute_layers
    if told is None or layout.recompute == "none":
        return layers
    return min(layers, told if isinstance(told, int) else told[stage])


def _again(again: int, sizes: list[int], v_shape: bool) -> list[int]:
    """Of those layers, how many stand on each chunk: the first ones in a V; when interleaved
    chunks share them evenly, as Megatron-LM does (recompute-num-layers counts within a chunk)."""
    if v_shape:
        return [min(again, sizes[0]), max(0, again - sizes[0])]
    left, shares = again, [0] * len(sizes)
    while left:
        for chunk, size in enumerate(sizes):
            if left and shares[chunk] < size:
                shares[chunk], left = shares[chunk] + 1, left - 1
    return shares


@dataclass(frozen=True)
class _Layers:
    """One average layer that recomputes as the layout says, and one that keeps everything."""

    told: Piece
    kept: Piece

    @staticmethod
    def of(job: Job, layout: Layout) -> _Layers:
        code = RECOMPUTE.index(layout.recompute)
        told = _layer(job, layout, code)
        return _Layers(told, told if code == NONE else _layer(job, layout, NONE))

    def layer(self, again: bool) -> Piece:
        return self.told if again else self.kept

    @property
    def prediction(self) -> Piece:
        """The layer of a multi-token-prediction block; what it holds is counted with its loss."""
        return replace(self.told, saved_kib=0, working_kib=0)


def _layer(job: Job, layout: Layout, recompute: int) -> Piece:
    axes, code = axes_of([layout]), ints(recompute)
    flags = axes.sequence_parallel
    cost = terms.layer_terms(
        job,
        axes.tp,
        axes.cp,
        axes.ep,
        axes.micro_batch,
        code,
        etp=axes.etp,
        sp=flags,
        cp_kind=CP_KINDS.index(layout.cp_kind),
    )
    weight = _one(cost.weight)
    parts = ("tp_comm", "cp_comm", "ep_comm")
    comm = {part: getattr(cost, part) for part in parts}
    wires = _sharding(job, axes)
    memory, etp, sp = (axes.tp, axes.cp, axes.ep, axes.micro_batch, code), axes.etp, flags
    saved = activation_kib(job, *memory, etp=etp, sp=sp)
    held, parked = offload.device_kib(saved, axes.offload_activations)
    moved = (
        (saved - held) * float(KIB) / offload.link_bytes_per_s(job)
        if layout.offload_activations
        else 0.0
    )
    return Piece(
        name="layer",
        forward=_kept(
            ("compute", _one(cost.compute.forward)),
            *((part, _one(comm[part].forward)) for part in parts),
        ),
        backward=_kept(
            ("recompute", _one(cost.recompute)),
            ("compute", _one(cost.compute.backward) - weight),
            *((part, _one(comm[part].backward)) for part in parts),
        ),
        weight_s=weight,
        saved_kib=int(held[0]),
        working_kib=int(working_kib(job, *memory, etp=etp, sp=sp)[0]),
        parameters=_layer_parameters(job, axes),
        gather_s=wires[0],
        gather_again_s=wires[1],
        scatter_s=wires[2],
        offload_s=_one(moved) if layout.offload_activations else 0.0,
        parked_kib=int(parked[0]),
    )


def _sharding(job: Job, axes: Axes) -> tuple[float, float, float]:
    """ZeRO-2/3 traffic of a layer and microbatch: gather, gather again, scatter; on the wire."""
    wire = sharding_wire(job, axes)
    gather, backward = _one(wire.forward), _one(wire.backward)
    again = gather if bool(axes.reshard[0]) else 0.0
    return gather, again, max(0.0, backward - again)


def _layer_parameters(job: Job, axes: Axes) -> float:
    no = np.asarray(False)
    held = sharding.trained_parameters(job, axes.tp, 1.0, no, no)
    if job.model.moe is not None:
        held = held + sharding.trained_experts(job, 1.0, axes.ep, axes.etp)
    return _one(held)


def _embedding(job: Job, layout: Layout) -> Piece:
    axes, yes, no = axes_of([layout]), np.asarray(True), np.asarray(False)
    cost = terms.embedding_seconds(job, axes.tp, axes.cp, axes.micro_batch)
    return Piece(
        name="embedding",
        forward=_end_parts(cost.compute.forward, cost.tp_comm.forward),
        backward=_end_parts(cost.compute.backward, cost.tp_comm.backward),
        weight_s=0.0,
        saved_kib=0,
        working_kib=0,
        parameters=_one(sharding.trained_parameters(job, axes.tp, 0.0, yes, no)),
    )


def _head(job: Job, layout: Layout) -> Piece:
    axes, yes, no = axes_of([layout]), np.asarray(True), np.asarray(False)
    cost = terms.head_seconds(job, axes.tp, axes.cp, axes.micro_batch)
    logits: Ints = logits_kib(job, axes.tp, axes.cp, axes.micro_batch)
    first = np.asarray(layout.pp == 1 or is_v(layout))
    ends = sharding.trained_parameters(job, axes.tp, 0.0, first, yes)
    if first:
        ends = ends - sharding.trained_parameters(job, axes.tp, 0.0, yes, no)
    # One product forward, two backward (one where frozen); cross-entropy's traffic half and half.
    work = cost.compute
    weight = _one(work.backward) - _one(work.forward)
    return Piece(
        name="head",
        forward=_end_parts(work.forward, cost.tp_comm.forward),
        backward=_end_parts(work.backward - weight, cost.tp_comm.backward),
        weight_s=weight,
        saved_kib=0,
        working_kib=int(logits[0]),
        parameters=_one(ends),
    )


def _end_parts(work: Array, tp_comm: Array) -> Parts:
    return _kept(("compute", _one(work)), ("tp_comm", _one(tp_comm)))


def message_s(job: Job, layout: Layout) -> float:
    """One message between two stages, one direction, all of it on the wire."""
    bare = replace(job, software=job.software.model_copy(update={"overlap_pp": 0.0}))
    axes = axes_of([layout])
    both = terms.message_seconds(
        bare, axes.tp, axes.cp, axes.pp, axes.micro_batch, sp=axes.sequence_parallel
    )
    return _one(both) / 2


def _kept(*parts: tuple[str, float]) -> Parts:
    """Parts that take time."""
    return tuple((part, seconds) for part, seconds in parts if seconds > 0)


def _one(values: object) -> float:
    """The only value of an array of one layout."""
    return float(np.asarray(values).reshape(-1)[0])
