"""The columns of the shard table: what each row's way to shard takes and holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import gradient_sync, memory, sharding
from layoutopt.costmodel.axes import Array, Flags, Ints
from layoutopt.costmodel.stages import even_classes
from layoutopt.optimizer import choices
from layoutopt.optimizer.pricing import reshard
from layoutopt.optimizer.space import Space


@dataclass(frozen=True)
class _Read:
    """Rows of the shard table in the words of the cost model, one entry a row."""

    tp: Ints
    pp: Ints
    zero_stage: Ints
    shard: Ints
    """Ranks that shards are spread over."""
    reshard: Flags
    offload: Flags
    ep: Ints
    etp: Ints


def _read(space: Space, rows: Ints) -> _Read:
    tp, pp, code, experts = rows.T
    chosen, held = choices.sharding(code), choices.experts(experts)
    return _Read(
        tp=tp,
        pp=pp,
        zero_stage=chosen.zero_stage,
        shard=np.where(chosen.degree == 0, space.job.gpus // (tp * pp), chosen.degree),
        reshard=reshard(space, pp, code),
        offload=np.asarray(chosen.offload == 1),
        ep=held.ep,
        etp=held.etp,
    )


def shard_seconds(space: Space, rows: Ints) -> dict[str, Array]:
    """Traffic and optimizer of the first stage once a step; ZeRO-2/3 traffic of a layer."""
    job, software, read = space.job, space.job.software, _read(space, rows)
    classes = even_classes(job.model.layers, read.pp)
    layers = classes.layers[..., 0]
    tp, pp, z, shard, ep, etp = read.tp, read.pp, read.zero_stage, read.shard, read.ep, read.etp
    replicas = gradient_sync.replicas_of(job, tp, pp, shard=shard, ep=ep, etp=etp)
    held = gradient_sync.held_by(job, tp, pp, layers, ep=ep, etp=etp)
    sync = gradient_sync.sync_of(job, replicas, z, held)
    wire = sharding.gather_seconds(
        job, tp, pp, z, shard=shard, reshard=read.reshard, ep=ep, etp=etp
    )
    optimizer = gradient_sync.optimizer_seconds(
        job,
        tp[:, None],
        pp[:, None],
        z[:, None],
        classes.layers,
        shard=shard[:, None],
        ep=ep[:, None],
        etp=etp[:, None],
        first=classes.first,
        head=classes.last,
        offload=read.offload[:, None],
    )
    longest = np.max(optimizer, axis=-1)
    share = gradient_sync.layers_share(replicas, z, held)
    return {
        "reduce": sync.reduce,
        "reduce_layers": share * sync.reduce,
        "reduce_least": (1 - software.overlap_grad_reduce) * sync.reduce,
        "gather": sync.gather,
        "gather_layers": share * sync.gather,
        "gather_least": (1 - software.overlap_param_gather) * sync.gather,
        "once": longest + gradient_sync.tied_embedding_seconds(job, tp, pp),
        "forward_wire": wire.forward,
        "forward_wire_least": (1 - software.overlap_fsdp) * wire.forward,
        "backward_wire": wire.backward,
        "backward_wire_least": (1 - software.overlap_fsdp) * wire.backward,
    }


def shard_kib(space: Space, rows: Ints, stages: Sequence[str]) -> dict[str, Ints]:
    """Model state of three stages: held always, with the optimizer step's own, on the host."""
    read = _read(space, rows)
    classes = even_classes(space.job.model.layers, read.pp)
    state = memory.state_kib(
        space.job,
        read.tp[:, None],
        read.pp[:, None],
        read.zero_stage[:, None],
        classes.layers,
        classes.first,
        classes.last,
        shard=read.shard[:, None],
        reshard=read.reshard[:, None],
        ep=read.ep[:, None],
        etp=read.etp[:, None],
        offload=read.offload[:, None],
    )
    columns = {"state": state.total, "step": state.total + state.step, "host": state.host}
    return {
        f"{part}_{name}": np.broadcast_to(column, classes.layers.shape)[:, index]
        for part, column in columns.items()
        for index, name in enumerate(stages)
    }
