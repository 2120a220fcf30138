"""Terms of the cost model as tables of integers: the only place where seconds become integers.

One table per set of axes, one row per combination of their values, one column per term. With
M = microbatches / pp = global_batch * tp * cp / (gpus * micro_batch), which pp does not change,
``m * layers_of_a_stage * t`` is ``(M t) * (pp * layers_of_a_stage)``: a column times a small
integer that pp alone decides. Columns come plain (t) and times M (M t).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from layoutopt.costmodel import activations, terms
from layoutopt.costmodel.axes import Array, Flags, Ints, ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.pipeline import layers_in_flight, overlap_window
from layoutopt.costmodel.spreading import pipeline_fits
from layoutopt.costmodel.stages import even_classes
from layoutopt.optimizer import choices
from layoutopt.optimizer.dominance import dominated
from layoutopt.optimizer.layer_columns import LayerGrid, rounds_of
from layoutopt.optimizer.paths import STAGES, late_hops, paths_of, priced_layers, stage_shapes
from layoutopt.optimizer.pricing import sequence_parallel
from layoutopt.optimizer.shard_columns import shard_kib, shard_seconds
from layoutopt.optimizer.space import Space

SHARE_OF_STEP = 2.5e-7
"""Largest rounding error of a step that we aim at, as a share of the fastest conceivable step: a
quarter of the millionth to which answers are exact."""
_LARGEST = 2**60
"""No product of a column and its multipliers may pass this: CP-SAT refuses 2^61 and more."""

_FINEST = 10_000
"""Denominators of a window in passes: a chunk count, which is far smaller."""

LAYER = ("tp", "cp", "experts", "micro_batch", "mode")
ENDS = ("tp", "cp", "micro_batch")
SHARD = ("tp", "pp", "sharding", "experts")
"""The axes that each table's terms depend on."""


@dataclass(frozen=True)
class Table:
    """Rows over ``axes``; ``columns`` hold one integer per row."""

    name: str
    axes: tuple[str, ...]
    rows: Ints
    """Shape (rows, axes)."""
    columns: dict[str, Ints] = field(default_factory=dict)
    numbers: dict[str, tuple[Ints, Ints]] = field(default_factory=dict, repr=False, compare=False)
    """What is known of `numbered`."""

    def __len__(self) -> int:
        return len(self.rows)

    def axis(self, name: str) -> Ints:
        """The values of one axis, row by row."""
        values: Ints = self.rows[:, self.axes.index(name)]
        return values

    def numbered(self, name: str) -> tuple[Ints, Ints]:
        """Values of one axis in rising order, all that it has and perhaps more, and the place of
        each row's own among them."""
        if name not in self.numbers:
            values = self.axis(name)
            known = np.unique(values)
            self.numbers[name] = known, np.searchsorted(known, values)
        return self.numbers[name]

    def keep(self, mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Table:
        """The rows where ``mask`` is true."""
        places = np.flatnonzero(mask)
        kept = {name: column[places] for name, column in self.columns.items()}
        numbered = {name: (known, of[places]) for name, (known, of) in self.numbers.items()}
        return Table(self.name, self.axes, self.rows[places], kept, numbered)


@dataclass(frozen=True)
class Tables:
    """All tables of a space, in one quantum of seconds."""

    layer: Table
    """LAYER: one layer's time, saved and working memory."""
    ends: Table
    """ENDS: embedding, loss head, messages, logits, M."""
    shard: Table
    """SHARD: data-parallel traffic, optimizer step, model state."""
    quantum_s: float
    fine: int
    """Sharding traffic that M multiplies is kept in quanta / fine."""
    delta: int
    """Quanta by which a step's sum may be off, either way."""
    rounds: tuple[Fraction, ...]
    """Distinct values of M, by the code in column ``rounds`` of ``ends``."""
    links: tuple[tuple[int, ...], ...]
    """pp values that share a stage boundary's link; one pair of message columns each."""

    def resolution(self, rounds: Fraction) -> tuple[str, int]:
        """Prefix of the traffic columns to multiply with M = ``rounds``, and their quanta's parts.

        Up to M = 1 plain quanta are exact enough, and the fine ones would pass 64 bits.
        """
        return ("fine_", self.fine) if rounds > 1 else ("", 1)

    def seconds(self, quanta: float) -> float:
        """Quanta as seconds, before jitter and the step's fixed cost."""
        return quanta * self.quantum_s


def held_layers(job: Job, pp: int, vpp: int, microbatches: Ints) -> Ints:
    """Layer-microbatches in flight, shape (microbatches, STAGES), as the cost model counts them."""
    wide = np.full_like(microbatches, pp)
    stages = even_classes(job.model.layers, wide)
    zeros = np.zeros_like(wide)
    return layers_in_flight(stages, wide, np.full_like(wide, vpp), microbatches, zeros)


def hiding_passes(job: Job, pp: int, vpp: int) -> Fraction:
    """Passes of one layer that the once-a-step collectives can hide behind, on the first stage."""
    return stage_shapes(job, pp)[0].layers * _window(pp, vpp)


def first_chunk(job: Job, pp: int) -> int:
    """Layers of the first stage: with v chunks the first chunk's last pass is a v-th of theirs."""
    return stage_shapes(job, pp)[0].layers


@lru_cache(maxsize=4096)
def _window(pp: int, vpp: int) -> Fraction:
    """Passes of a stage, as an exact fraction: a whole number over vpp."""
    return Fraction(float(overlap_window(ints(pp), ints(vpp))[0])).limit_denominator(_FINEST)


def tables_of(space: Space) -> Tables:
    """Prices every term of ``space`` once per combination of the axes that it depends on."""
    return _Builder(space).tables()


def mesh(space: Space, axes: tuple[str, ...]) -> Ints:
    """Every combination of the axes' values, one row each."""
    grids = np.meshgrid(*(ints(space.values[axis]) for axis in axes), indexing="ij")
    return np.stack([grid.ravel() for grid in grids], axis=-1).astype(np.int64)


class _Builder:
    """Floats of every column first; the quantum that suits them all; then integers."""

    def __init__(self, space: Space) -> None:
        self.space, self.job = space, space.job
        self.layer = LayerGrid(space)
        self.layer_rows = self.layer.rows
        self.ends_rows = self._possible(mesh(space, ENDS))
        self.shard_rows = self._legal_shards(self._possible(mesh(space, SHARD), place=2))

    def _legal_shards(self, rows: Ints) -> Ints:
        """Only rows that the rules which look at the table's own axes let through."""
        tp, pp, sharding, experts = rows.T
        legal = self.space.groups_shards(tp, pp, experts, sharding)
        if self.space.keeps("experts_stay_within_tensor_ranks"):
            legal &= tp % choices.experts(experts).etp == 0
        kept: Ints = rows[legal]
        return kept

    def _possible(self, rows: Ints, place: int = 1) -> Ints:
        """Rows whose first two axes, tp and cp (pp at ``place`` 2), some use of all GPUs has."""
        code = self.job.gpus + 1
        pairs = ints(sorted({grid[0] * code + grid[place] for grid in self.space.grids}))
        kept: Ints = rows[np.isin(rows[:, 0] * code + rows[:, 1], pairs)]
        return kept

    def _sp(self, tp: Ints, cp: Ints) -> Flags:
        return sequence_parallel(self.space, tp, cp)

    @property
    def layer_s(self) -> dict[str, Array]:
        """One layer and microbatch, seconds."""
        return self.layer.seconds

    @cached_property
    def ends_s(self) -> dict[str, Array]:
        """Embedding, head, host and messages of one microbatch, seconds."""
        tp, cp, micro_batch = self.ends_rows.T
        plain = {
            "embedding": terms.embedding_seconds(self.job, tp, cp, micro_batch).total,
            "head": terms.head_seconds(self.job, tp, cp, micro_batch).total,
        }
        for code, pps in enumerate(self.links):
            plain[f"message{code}"] = self._message(pps[0])
        rounds = rounds_of(self.space, tp, cp, micro_batch)
        times_m = {f"m_{name}": rounds * value for name, value in plain.items()}
        times_m["m_host"] = rounds * self.job.software.microbatch_overhead_s
        for code, pps in enumerate(self.links):
            plain[f"travel{code}"] = self._travel(pps[0])
        return _filled({**plain, **times_m}, len(tp))

    def _message(self, pp: int) -> Array:
        tp, cp, micro_batch = self.ends_rows.T
        return terms.message_seconds(
            self.job, tp, cp, np.full_like(tp, pp), micro_batch, sp=self._sp(tp, cp)
        )

    def _travel(self, pp: int) -> Array:
        tp, cp, micro_batch = self.ends_rows.T
        return terms.travel_seconds(
            self.job, tp, cp, np.full_like(tp, pp), micro_batch, sp=self._sp(tp, cp)
        )

    @cached_property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """pp values grouped by equal messages: pp only decides which link a boundary crosses."""
        groups: dict[bytes, list[int]] = {}
        for pp in self.space.values["pp"]:
            groups.setdefault(np.asarray(self._message(pp)).tobytes(), []).append(pp)
        return tuple(tuple(pps) for pps in groups.values())

    @cached_property
    def shard_s(self) -> dict[str, Array]:
        """Traffic and optimizer of the first stage once a step; ZeRO-2/3 traffic of a layer."""
        return _filled(shard_seconds(self.space, self.shard_rows), len(self.shard_rows))

    @cached_property
    def multiplier(self) -> int:
        """Sum of the factors that entries are multiplied with in one step: each may be half a
        quantum off."""
        largest = 0
        for pp, vpp in self.space.chunks:
            always = vpp * pp + pp + late_hops(pp, vpp)
            once = 2 * (int(hiding_passes(self.job, pp, vpp)) + 2) + 1
            for path in paths_of(self.job, pp, vpp):
                work = path.size // vpp + 1 + vpp * abs(path.fixed)
                largest = max(largest, work + always + once + 1)
        return largest

    @cached_property
    def reach(self) -> float:
        """Seconds that the largest expression of the model can come to, multiplied out."""
        layers, most = priced_layers(self.job), 0.0
        layer = 3 * max(float(np.max(column)) for column in self.layer_s.values())
        ends = 5 * max(float(np.max(column)) for column in self.ends_s.values())
        shard = max(float(np.max(column)) for column in self.shard_s.values())
        shard *= max(1.0, float(np.max(rounds_of(self.space, *self.ends_rows.T))))
        for pp, vpp in self.space.chunks:
            for path in paths_of(self.job, pp, vpp):
                work = path.many * (layer + shard)
                work += path.m_forward * float(np.max(self.layer_s["m_forward"]))
                most = max(most, work + vpp * (vpp + 1) * pp * ends)
        return most + 2 * layers * (layer + shard)

    def quantum_s(self) -> float:
        """Fine enough for SHARE_OF_STEP, coarse enough for 64 bits."""
        least = self.job.model.layers * float(np.min(self.layer_s["m_total"]))
        return max(2 * SHARE_OF_STEP * least / self.multiplier, self.reach / _LARGEST)

    def tables(self) -> Tables:
        """Everything as integers."""
        quantum = self.quantum_s()
        tp, cp, micro_batch = self.ends_rows.T
        exact = self._exact_rounds()
        rounds = tuple(sorted(set(exact)))
        code = {value: index for index, value in enumerate(rounds)}
        fine = self._fine(quantum, rounds)
        ends = {name: _quanta(column, quantum) for name, column in self.ends_s.items()}
        ends["rounds"] = ints([code[value] for value in exact])
        ends["logits"] = _wide(activations.logits_kib(self.job, tp, cp, micro_batch), len(tp))
        layer = {name: _quanta(column, quantum) for name, column in self.layer_s.items()}
        layer |= self.layer.kib
        layer["dominated"] = self._dominated(layer)
        shard = {name: _quanta(column, quantum) for name, column in self.shard_s.items()}
        for name in ("forward_wire", "backward_wire"):
            for column in (name, f"{name}_least"):
                shard[f"fine_{column}"] = _quanta(self.shard_s[column], quantum / fine)
        shard |= shard_kib(self.space, self.shard_rows, STAGES)
        return Tables(
            layer=Table("layer", LAYER, self.layer_rows, layer, self.layer.numbers),
            ends=Table("ends", ENDS, self.ends_rows, ends),
            shard=Table("shard", SHARD, self.shard_rows, shard),
            quantum_s=quantum,
            fine=fine,
            delta=self.multiplier // 2 + 2,
            rounds=rounds,
            links=self.links,
        )

    def _exact_rounds(self) -> list[Fraction]:
        batch, gpus = self.job.training.global_batch, self.job.gpus
        return [Fraction(batch * tp * cp, gpus * b) for tp, cp, b in self.ends_rows.tolist()]

    def _fine(self, quantum: float, rounds: tuple[Fraction, ...]) -> int:
        """Enough for M times an entry to be half a quantum off at most, within 64 bits."""
        most = max(max((r.numerator for r in rounds), default=1), 1)
        wanted = max((int(np.ceil(float(r))) for r in rounds), default=1)
        largest = max(
            float(np.max(self.shard_s[name], initial=0.0))
            for name in ("forward_wire", "backward_wire")
        )
        room = _LARGEST / (most * max(largest / quantum, 1.0))
        return max(1, min(wanted, int(room)))

    def _dominated(self, layer: dict[str, Ints]) -> Ints:
        """1 where another mode is better in all (dominance.py), by the exact seconds.

        Nowhere with ZeRO-2 or 3: of the last microbatch's passes both its own traffic and what
        comes once a step hide behind the same seconds, so that a longer pass may hide more than it
        takes.
        """
        if np.any(choices.sharding(ints(self.space.values["sharding"])).zero_stage >= 2):
            return np.zeros(len(self.layer_rows), dtype=np.int64)
        seconds = [self.layer_s["forward"], self.layer_s["backward"]]
        held = [layer[name] for name in ("saved", "parked", "saved_host", "working")]
        rows = self.layer_rows
        if not pipeline_fits(self.job, 2):
            # What goes to the host is not legal wherever the other is: neither dominates the other.
            rows = np.insert(rows, -1, choices.mode(rows[:, -1]).offload, axis=1)
        return dominated(rows, seconds, held).astype(np.int64)


def _quanta(seconds: Array, quantum: float) -> Ints:
    quanta: Ints = np.rint(seconds / quantum).astype(np.int64)
    return quanta


def _wide(values: Ints, rows: int) -> Ints:
    return np.broadcast_to(values, (rows,)).astype(np.int64)


def _filled(columns: dict[str, Array], rows: int) -> dict[str, Array]:
    return {
        name: np.broadcast_to(np.asarray(column, dtype=float), (rows,))
        for name, column in columns.items()
    }
