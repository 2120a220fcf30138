"""What comes once a step: gradient reduction, weight gather, the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import sharding
from layoutopt.costmodel.axes import ZERO_BUBBLE, ZERO_BUBBLE_2P, Array, Axes, Flags, Ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.pipeline import overlap_window
from layoutopt.costmodel.stage_work import LayerKind, Mixed, exposed, sum_of
from layoutopt.costmodel.stages import Stages


@dataclass(frozen=True)
class Once:
    """What the first stage does once a step, seconds: traffic on the wire, and the rest."""

    reduce: Array
    gather: Array
    tied: Array
    optimizer: Array
    layers_share: Array
    """Of reduction and gather: the layers; the rest is embedding and loss head."""

    def least(self, job: Job) -> Array:
        """What no window, however long, hides."""
        software = job.software
        traffic = (1 - software.overlap_grad_reduce) * self.reduce
        traffic = traffic + (1 - software.overlap_param_gather) * self.gather
        return traffic + self.tied + self.optimizer


def first_stage_once(
    job: Job, axes: Axes, layers: Ints, first: Flags | bool = True, last: Flags | bool = False
) -> Once:
    """A stage's share of what comes once a step, with ``layers`` layers on it: the first stage's,
    or what is ``first`` and ``last`` of the pipeline."""
    where = (job, axes.tp, axes.pp, axes.zero_stage, layers)
    shard, ep, etp, head = axes.shard_degree, axes.ep, axes.etp, axes.v_shape | last
    sync = sharding.sync_seconds(
        *where, shard=shard, group=axes.group, ep=ep, etp=etp, first=first, head=head, cp=axes.cp
    )
    return Once(
        sync.reduce,
        sync.gather,
        sharding.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp),
        sharding.optimizer_seconds(
            *where,
            shard=shard,
            ep=ep,
            etp=etp,
            first=first,
            head=head,
            offload=axes.offload_optimizer,
        ),
        sharding.layers_share(*where, shard=shard, ep=ep, etp=etp, first=first, head=head),
    )


def once_a_step(job: Job, axes: Axes, stages: Stages, mixed: Mixed) -> tuple[Array, Array]:
    """Exposed data-parallel traffic and the optimizer step, on the first stage.

    The reduction hides behind the stage's last backward passes, the gather behind its first
    forward passes: the first stage ends its backward last, with nothing to wait for (A3). With v
    chunks what is last, the first chunk's own share of it, hides behind that chunk's pass alone.
    """
    seconds, optimizer = held_once(job, axes, stages, mixed)
    return seconds + sharding.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp), optimizer


def held_once(job: Job, axes: Axes, stages: Stages, mixed: Mixed) -> tuple[Array, Array]:
    """The same without the sum of a shared table: what the first listed stage holds costs it."""
    once = first_stage_once(
        job, axes, stages.layers[..., 0], stages.first[..., 0], stages.last[..., 0]
    )
    software = job.software
    seconds = _left(
        axes, mixed, once, once.reduce, _gradient_pass(axes), software.overlap_grad_reduce
    )
    seconds = seconds + _left(
        axes,
        mixed,
        once,
        once.gather,
        lambda kind: kind.terms.forward,
        software.overlap_param_gather,
    )
    return seconds, longest_optimizer(job, axes, stages)


def longest_optimizer(job: Job, axes: Axes, stages: Stages) -> Array:
    """The optimizer step of the listed stage that holds most: all of them begin together, because
    the norm of the gradients is taken over the model."""

    offload: Flags = np.asarray(axes.offload_optimizer)
    seconds = sharding.optimizer_seconds(
        job,
        axes.tp[..., None],
        axes.pp[..., None],
        axes.zero_stage[..., None],
        stages.layers,
        shard=axes.shard_degree[..., None],
        ep=axes.ep[..., None],
        etp=axes.etp[..., None],
        first=stages.first,
        head=stages.last,
        offload=offload[..., None],
    )
    longest: Array = np.max(seconds, axis=-1)
    return longest


def _gradient_pass(axes: Axes) -> Callable[[LayerKind], Array]:
    """The pass that ends with a layer's gradients: where weight gradients are put off, theirs."""
    late = (axes.schedule == ZERO_BUBBLE) | (axes.schedule == ZERO_BUBBLE_2P)

    def seconds(kind: LayerKind) -> Array:
        return np.where(late & (axes.pp > 1), kind.terms.weight, kind.terms.backward)

    return seconds


def _left(
    axes: Axes,
    mixed: Mixed,
    once: Once,
    wire: Array,
    one_pass: Callable[[LayerKind], Array],
    hides: float,
) -> Array:
    """What the passes of the first listed stage do not hide of ``wire``: of all of it, and of the
    first chunk's own, its layers and the embedding."""
    layers = sum_of(
        count[..., 0] * one_pass(kind)
        for kind, count in zip(mixed.kinds, mixed.counts, strict=True)
    )
    chunks = np.where(axes.pp > 1, axes.interleaved, 1)
    share = 1 - once.layers_share * (1 - 1 / chunks)
    window = overlap_window(axes.pp, chunks) * layers
    left: Array = np.maximum(exposed(wire, window, hides), share * wire - layers / chunks)
    return left
