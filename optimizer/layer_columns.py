"""The columns of the layer table: what one layer takes and holds, on the grid of its axes.

A term of a layer depends on few of the table's axes. So the cost model gets arrays with a dimension
for each axis (one for tp and cp together) and length 1 along the others: what depends on
tp alone is computed once for each tp, and only what is summed last is as large as the grid.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from layoutopt.costmodel import activations, terms
from layoutopt.costmodel.axes import Array, Flags, Ints, ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.offload import device_kib, offloaded
from layoutopt.optimizer import choices
from layoutopt.optimizer.pricing import sequence_parallel
from layoutopt.optimizer.space import Space


class LayerGrid:
    """The legal rows over (tp, cp, experts, micro_batch, mode), and their columns."""

    def __init__(self, space: Space) -> None:
        self.space, self.job = space, space.job
        used = {(tp, cp) for tp, cp, _, _ in space.grids}
        every = ((tp, cp) for tp in space.values["tp"] for cp in space.values["cp"])
        pairs = ints([pair for pair in every if pair in used]).reshape(-1, 2)
        values = [ints(space.values[axis]) for axis in ("experts", "micro_batch", "mode")]
        self.tp, self.cp = (column.reshape(-1, 1, 1, 1) for column in pairs.T)
        self.sp = sequence_parallel(space, *pairs.T).reshape(-1, 1, 1, 1)
        experts, self.micro_batch, mode = (
            column.reshape([-1 if number == place else 1 for number in range(4)])
            for place, column in enumerate(values, 1)
        )
        self.held, self.way = choices.experts(experts), choices.mode(mode)
        self._shape = (len(pairs), *map(len, values))
        legal = space.exchanges(self.tp, self.cp, mode) & self._cut()
        self._places = np.nonzero(np.broadcast_to(legal, self._shape))
        pair, *rest = self._places
        columns = [column[place] for column, place in zip(values, rest, strict=True)]
        self.rows: Ints = np.column_stack([pairs[pair], *columns])
        self.numbers = dict(
            zip(("experts", "micro_batch", "mode"), zip(values, rest, strict=True), strict=True)
        )
        for axis, column in zip(("tp", "cp"), pairs.T, strict=True):
            known = ints(space.values[axis])
            self.numbers[axis] = known, np.searchsorted(known, column)[pair]

    def _cut(self) -> Flags:
        """etp divides tp."""
        if not self.space.keeps("experts_stay_within_tensor_ranks"):
            return np.asarray(True)
        return np.asarray(self.tp % self.held.etp == 0)

    def listed(self, values: Array) -> Array:
        """Values on the grid, row by row."""
        return np.asarray(np.broadcast_to(values, self._shape)[self._places])

    @cached_property
    def seconds(self) -> dict[str, Array]:
        """One layer and microbatch: plain, and times M."""
        layer = terms.layer_terms(
            self.job,
            self.tp,
            self.cp,
            self.held.ep,
            self.micro_batch,
            self.way.recompute,
            etp=self.held.etp,
            sp=self.sp,
            cp_kind=self.way.cp_kind,
        )
        layer = offloaded(self.job, layer, self._saved_kib, self.way.offload == 1)
        forward, backward = self.listed(layer.forward), self.listed(layer.backward)
        plain = {"total": forward + backward, "forward": forward, "backward": backward}
        tp, cp, _, micro_batch, _ = self.rows.T
        rounds = rounds_of(self.space, tp, cp, micro_batch)
        return {**plain, **{f"m_{name}": rounds * value for name, value in plain.items()}}

    @cached_property
    def kib(self) -> dict[str, Ints]:
        """What one layer holds: saved for its backward pass, on the device or the host, and while
        it works."""
        offload = self.way.offload == 1
        working = activations.working_kib(*self._where, etp=self.held.etp, sp=self.sp)
        saved, parked = device_kib(self._saved_kib, offload)
        columns = {
            "saved": saved,
            "parked": parked,
            "saved_host": np.where(offload, self._saved_kib, 0),
            "working": working,
        }
        return {name: self.listed(column).astype(np.int64) for name, column in columns.items()}

    @property
    def _where(self) -> tuple[Job, Ints, Ints, Ints, Ints, Ints]:
        return self.job, self.tp, self.cp, self.held.ep, self.micro_batch, self.way.recompute

    @cached_property
    def _saved_kib(self) -> Ints:
        """What one layer saves, wherever it waits."""
        return activations.activation_kib(*self._where, etp=self.held.etp, sp=self.sp)


def rounds_of(space: Space, tp: Ints, cp: Ints, micro_batch: Ints) -> Array:
    """M: microbatches over pp."""
    batch = float(space.job.training.global_batch)
    rounds: Array = batch * tp * cp / (space.job.gpus * micro_batch)
    return rounds
