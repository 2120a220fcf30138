"""What comes once a step: gradient reduction, weight gather, the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel import gradient_sync
from layoutopt.costmodel.axes import ZERO_BUBBLE, ZERO_BUBBLE_2P, Array, Axes, Flags, Ints, take
from layoutopt.costmodel.gradient_sync import Replicas
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.pipeline import overlap_window
from layoutopt.costmodel.stage_work import (
    LayerKind,
    Mixed,
    end_seconds,
    exposed,
    mixed_layers,
    stage_seconds,
    sum_of,
)
from layoutopt.costmodel.stages import Stages, even_split, recompute_alike


@dataclass(frozen=True)
class Once:
    """Traffic of a stage once a step, seconds on the wire."""

    reduce: Array
    gather: Array
    layers_share: Array
    """Of both: the layers; the rest is embedding and loss head."""

    def blocked(self, job: Job) -> Array:
        """Traffic that no window, however long, hides."""
        software = job.software
        reduce = (1 - software.overlap_grad_reduce) * self.reduce
        return reduce + (1 - software.overlap_param_gather) * self.gather


def replicas(job: Job, axes: Axes) -> Replicas:
    """Who takes part in that traffic, whatever a stage holds."""
    return gradient_sync.replicas_of(
        job,
        axes.tp,
        axes.pp,
        shard=axes.shard_degree,
        group=axes.group,
        ep=axes.ep,
        etp=axes.etp,
        cp=axes.cp,
    )


def first_stage_once(
    job: Job,
    axes: Axes,
    layers: Ints,
    first: Flags | bool = True,
    last: Flags | bool = False,
    among: Replicas | None = None,
) -> Once:
    """A stage's share of what comes once a step, with ``layers`` layers on it: the first stage's,
    or what is ``first`` and ``last`` of the pipeline. ``among``: `replicas`, where known."""
    among = among or replicas(job, axes)
    held = gradient_sync.held_by(
        job,
        axes.tp,
        axes.pp,
        layers,
        ep=axes.ep,
        etp=axes.etp,
        first=first,
        head=axes.v_shape | last,
    )
    sync = gradient_sync.sync_of(job, among, axes.zero_stage, held)
    share = gradient_sync.layers_share(among, axes.zero_stage, held)
    return Once(sync.reduce, sync.gather, share)


def optimizer_seconds(job: Job, axes: Axes, layers: Ints, *, first: bool = True) -> Array:
    """The optimizer step of a stage with ``layers`` layers on it: the first one, or one between
    first and last."""
    return gradient_sync.optimizer_seconds(
        job,
        axes.tp,
        axes.pp,
        axes.zero_stage,
        layers,
        shard=axes.shard_degree,
        ep=axes.ep,
        etp=axes.etp,
        first=first,
        head=axes.v_shape,
        offload=axes.offload_optimizer,
    )


def once_a_step(job: Job, axes: Axes, stages: Stages, mixed: Mixed) -> tuple[Array, Array]:
    """Exposed data-parallel traffic and the optimizer step, on the first stage.

    The reduction hides behind the stage's last backward passes, the gather behind its first
    forward passes: the first stage ends its backward last, with nothing to wait for (A3). With v
    chunks what is last, the first chunk's own share of it, hides behind that chunk's pass alone.
    """
    seconds, optimizer = held_once(job, axes, stages, mixed)
    return seconds + gradient_sync.tied_embedding_seconds(job, axes.tp, axes.pp, axes.cp), optimizer


def held_once(job: Job, axes: Axes, stages: Stages, mixed: Mixed) -> tuple[Array, Array]:
    """The same without the sum of a shared table: what the first listed stage holds costs it.

    Of an even split that is the longest. Of another one a later stage may hold more: it has been
    ready for as long as the stages before it took for one pass of a chunk, and what is left of its
    traffic then is what the step waits for.
    """
    whole = stages.recomputed is None or bool(np.all(stages.recomputed == stages.layers))
    seconds = _exposed(job, axes, stages, mixed, whole=whole)
    if stages.ahead is None and stages.layers.shape[-1] > 1 and not splits_alike(job, stages):
        seconds = np.maximum(seconds, _latest(job, axes, stages, whole=whole))
    return seconds, longest_optimizer(job, axes, stages)


def splits_alike(job: Job, stages: Stages) -> bool:
    """The even split, of which every stage recomputes as much."""
    layers = tuple(stages.layers[0].tolist())
    again = None if stages.recomputed is None else tuple(stages.recomputed[0].tolist())
    return layers == even_split(job.model.layers, len(layers)) and recompute_alike(layers, again)


def waits_for_later(axes: Axes) -> Flags:
    """Whether later stages count at all: in a V both ends stand on the first one."""
    flags: Flags = ~np.asarray(axes.v_shape)
    return flags


def head_start(axes: Axes) -> Array:
    """Of the time of one microbatch on the stages before: how much earlier a stage is done. None
    where weight gradients fill the wait."""
    late = (axes.schedule == ZERO_BUBBLE) | (axes.schedule == ZERO_BUBBLE_2P)
    share: Array = np.where(late, 0.0, 1.0 / axes.chunks)
    return share


def left_alone(job: Job, axes: Axes, rows: Stages, mixed: Mixed | None = None) -> Array:
    """What each stage has left of its traffic, one for each row, where they are one layout's.
    ``mixed``: the rows' layers, where they are known."""
    whole = rows.recomputed is None
    mixed = mixed_layers(job, axes, rows) if mixed is None else mixed
    left: Array = np.broadcast_to(
        _exposed(job, axes, rows, mixed, whole=whole), rows.layers.shape[:1]
    )
    return left


def _latest(job: Job, axes: Axes, stages: Stages, *, whole: bool) -> Array:
    """The most that any stage has left when the pipeline is done, one value for each layout."""
    if len(axes.tp) > 1:
        alone = (take(axes, np.array([place])) for place in range(len(axes.tp)))
        return np.concatenate([_latest(job, one, stages, whole=whole) for one in alone])
    again = None if stages.recomputed is None else stages.recomputed.T
    rows = Stages(stages.index.T, stages.layers.T, stages.first.T, stages.last.T, again)
    mixed = mixed_layers(job, axes, rows)
    left = np.broadcast_to(_exposed(job, axes, rows, mixed, whole=whole), rows.layers.shape[:1])
    plain = mixed if whole else _kept(mixed)
    passes = stage_seconds(plain, rows, end_seconds(job, axes))[:, 0]
    return np.where(waits_for_later(axes), last_left(axes, left, passes), 0.0)


def last_left(axes: Axes, left: Array, passes: Array) -> Array:
    """The most that is left when the pipeline is done, of what each stage has left when it is done
    itself; ``passes``: one microbatch on each stage, messages aside. Both of one layout, shape
    (stages,)."""
    before = np.cumsum(passes) - passes
    latest: Array = np.max(left - head_start(axes) * before, keepdims=True)
    return latest


def _kept(mixed: Mixed) -> Mixed:
    """As if nothing recomputed: the slowest stage sets the pace, and what another one repeats does
    not lengthen it."""
    told, kept = mixed.counts
    return replace(mixed, counts=(np.zeros_like(told), told + kept))


def _exposed(job: Job, axes: Axes, stages: Stages, mixed: Mixed, *, whole: bool) -> Array:
    """What the first listed stage does not hide of its own traffic. ``whole``: all layers of the
    model recompute alike."""
    mixed = mixed if whole else _kept(mixed)
    once = first_stage_once(
        job, axes, stages.layers[..., 0], stages.first[..., 0], stages.last[..., 0]
    )
    software = job.software
    backward = _first_stage(mixed, gradient_pass(axes))
    seconds = _left(axes, backward, once, once.reduce, software.overlap_grad_reduce)
    forward = _first_stage(mixed, lambda kind: kind.terms.forward)
    return seconds + _left(axes, forward, once, once.gather, software.overlap_param_gather)


def _first_stage(mixed: Mixed, one_pass: Callable[[LayerKind], Array]) -> Array:
    """The passes of the first listed stage's layers."""
    return sum_of(
        count[..., 0] * one_pass(kind)
        for kind, count in zip(mixed.kinds, mixed.counts, strict=True)
    )


def least_left(
    job: Job,
    axes: Axes,
    layers: Ints,
    passes: tuple[Array, Array],
    among: Replicas,
    *,
    first: bool,
) -> Array:
    """What a stage of ``layers`` layers or more has left of its traffic, at least. ``passes``: the
    longest forward pass that a layer may have, and the longest that ends with its gradients;
    ``first``: the first stage of all, else one between first and last."""
    forward, gradient = passes
    software = job.software

    def left(held: Ints, once: Once) -> Array:
        seconds = _left(axes, held * gradient, once, once.reduce, software.overlap_grad_reduce)
        return seconds + _left(
            axes, held * forward, once, once.gather, software.overlap_param_gather
        )

    once = first_stage_once(job, axes, layers, first, among=among)
    told = left(layers, once)
    more = left(layers + 1, first_stage_once(job, axes, layers + 1, first, among=among))
    # Convex in the number of layers: where it falls, what no window hides is all that is sure.
    least: Array = np.where(more >= told, told, once.blocked(job))
    return least


def longest_optimizer(job: Job, axes: Axes, stages: Stages) -> Array:
    """The optimizer step of the listed stage that holds most: all of them begin together, because
    the norm of the gradients is taken over the model."""

    offload: Flags = np.asarray(axes.offload_optimizer)
    seconds = gradient_sync.optimizer_seconds(
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


def gradient_pass(axes: Axes) -> Callable[[LayerKind], Array]:
    """The pass that ends with a layer's gradients: where weight gradients are put off, theirs."""
    late = (axes.schedule == ZERO_BUBBLE) | (axes.schedule == ZERO_BUBBLE_2P)

    def seconds(kind: LayerKind) -> Array:
        return np.where(late & (axes.pp > 1), kind.terms.weight, kind.terms.backward)

    return seconds


def _left(axes: Axes, layers: Array, once: Once, wire: Array, hides: float) -> Array:
    """What the passes of a stage's ``layers`` do not hide of ``wire``: of all of it, and of the
    first chunk's own, its layers and the embedding."""
    chunks = np.where(axes.pp > 1, axes.interleaved, 1)
    share = 1 - once.layers_share * (1 - 1 / chunks)
    window = overlap_window(axes.pp, chunks) * layers
    left: Array = np.maximum(exposed(wire, window, hides), share * wire - layers / chunks)
    return left
