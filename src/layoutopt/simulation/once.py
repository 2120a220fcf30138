"""What happens once a step on each stage: gradient reduction, weight gather, optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import gradient_sync
from layoutopt.costmodel.axes import Axes, axes_of, ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.simulation.pieces import Chunk, Piece
from layoutopt.simulation.schedules import is_v


@dataclass(frozen=True)
class Once:
    """Seconds of one stage on the wire, and of its optimizer."""

    reduce_s: float
    gather_s: float
    optimizer_s: float
    parameters: float
    """What the traffic is divided by: those of the pieces that take part."""
    ends_only: bool
    """ZeRO-2/3 reduced its layers in every microbatch: embedding and head are left. Not where
    shards are summed across groups as well (HSDP): that takes all pieces."""

    def reduce_of(self, piece: Piece) -> float:
        """The reduction of one piece's gradients."""
        return self._share(piece) * self.reduce_s

    def gather_of(self, piece: Piece) -> float:
        """The gather of one piece's weights."""
        return self._share(piece) * self.gather_s

    def _share(self, piece: Piece) -> float:
        if self.ends_only and piece.name == "layer":
            return 0.0
        return piece.parameters / self.parameters if self.parameters else 0.0


def once_a_step(job: Job, layout: Layout, model: list[list[Chunk]]) -> list[Once]:
    """Every stage's. The terms price a stage that holds the embedding; the others' traffic and
    optimizer are as much of it as they hold parameters."""
    axes = axes_of([layout])
    first = _held(model[0])
    return [_stage(job, axes, chunks, first) for chunks in model]


def _held(chunks: list[Chunk]) -> dict[str, float]:
    """Parameters of a stage by the names of its pieces."""
    held = {"layer": 0.0, "embedding": 0.0, "head": 0.0}
    for chunk in chunks:
        for piece in chunk.pieces:
            held[piece.name] += piece.parameters
    return held


def _stage(job: Job, axes: Axes, chunks: list[Chunk], first: dict[str, float]) -> Once:
    layers = sum(piece.name == "layer" for chunk in chunks for piece in chunk.pieces)
    if int(axes.pp[0]) == 1:
        layers -= job.model.mtp_layers  # the terms know what stands beside the only stage's head
    mine = _held(chunks)
    priced = {**mine, "embedding": first["embedding"], "head": first["head"]}
    whole = bool(axes.shard_degree[0] == axes.group[0])
    ends_only = int(axes.zero_stage[0]) >= 2 and whole
    sync = gradient_sync.sync_seconds(
        job,
        axes.tp,
        axes.pp,
        axes.zero_stage,
        ints(layers),
        shard=axes.shard_degree,
        group=axes.group,
        ep=axes.ep,
        etp=axes.etp,
        cp=axes.cp,
    )
    optimizer = gradient_sync.optimizer_seconds(
        job,
        axes.tp,
        axes.pp,
        axes.zero_stage,
        ints(layers),
        shard=axes.shard_degree,
        ep=axes.ep,
        etp=axes.etp,
        offload=axes.offload_optimizer,
    )
    taking_part = _total(mine, ends_only)
    scale = _ratio(taking_part, _total(priced, ends_only))
    return Once(
        reduce_s=_one(sync.reduce) * scale,
        gather_s=_one(sync.gather) * scale,
        optimizer_s=_one(optimizer) * _ratio(_total(mine, False), _total(priced, False)),
        parameters=taking_part,
        ends_only=ends_only,
    )


def tied_s(job: Job, layout: Layout) -> float:
    """The sum of a shared table's gradient between the two stages that hold it."""
    axes = axes_of([layout])
    seconds = gradient_sync.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp)
    return 0.0 if is_v(layout) else _one(seconds)


def _total(held: dict[str, float], ends_only: bool) -> float:
    return held["embedding"] + held["head"] + (0.0 if ends_only else held["layer"])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _one(values: object) -> float:
    return float(np.asarray(values).reshape(-1)[0])
