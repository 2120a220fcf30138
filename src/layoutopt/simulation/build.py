"""One optimizer step as tasks on lanes: every stage has a lane of compute and lanes of traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.software import Software
from layoutopt.simulation.disturbance import CALM, Disturbance, lognormal
from layoutopt.simulation.engine import Graph, Key, Label
from layoutopt.simulation.host import HostCopies
from layoutopt.simulation.once import Once, once_a_step, tied_s
from layoutopt.simulation.pieces import Chunk, Parts, Piece, message_s, model_pieces, sum_parts
from layoutopt.simulation.schedules import (
    Order,
    Place,
    Unit,
    chunks_of,
    orders,
    places,
    splits_backward,
)

STREAMS = {
    "compute": "compute",
    "recompute": "compute",
    "optimizer": "compute",
    "other": "compute",
    "tp_comm": "tp",
    "cp_comm": "cp",
    "ep_comm": "ep",
    "pp_comm": "pp",
    "dp_comm": "dp",
    "offload": "out",
}
"""The lane that each part of a step runs on."""
ROWS = ("compute", "tp", "cp", "ep", "pp", "dp", "dp sum", "out", "in")
"""Lanes of a stage in the order in which they are shown; dp sum: of shards across groups, which
has a stream of its own beside ZeRO-2/3's scatters (PyTorch FSDP2, FSDPCommContext); out and in: to
the host and back."""
_SLOWED = ("compute", "recompute", "optimizer")


@dataclass(frozen=True)
class Done:
    """A unit with the tasks that it begins and ends with."""

    stage: int
    unit: Unit
    first: int
    last: int


@dataclass
class Step:
    """The tasks of a step, the units they belong to, and what stands where."""

    graph: Graph
    units: list[Done]
    model: list[list[Chunk]]


def build_step(job: Job, layout: Layout, disturbance: Disturbance = CALM) -> Step:
    """All tasks of one step of ``layout``."""
    model = model_pieces(job, layout)
    once = once_a_step(job, layout, model)
    spots = places(layout)
    step = Step(Graph(), [], model)
    wire = message_s(job, layout)
    shared = _Shared(
        job.software, layout, spots, {spot: n for n, spot in enumerate(spots)}, wire, disturbance
    )
    for stage, order in enumerate(orders(layout)):
        _Stage(step, shared, stage, model[stage], once[stage]).work(order)
    _end(step, layout, once, tied_s(job, layout), job.software.step_overhead_s, disturbance)
    return step


@dataclass(frozen=True)
class _Shared:
    """What every stage knows."""

    software: Software
    layout: Layout
    spots: list[Place]
    virtual: dict[Place, int]
    message_s: float
    disturbance: Disturbance


class _Stage:
    """Puts one stage's tasks on its lanes. ``chain``: the task that its next one waits for."""

    def __init__(
        self, step: Step, shared: _Shared, stage: int, chunks: Sequence[Chunk], once: Once
    ) -> None:
        self.step, self.shared, self.stage, self.once = step, shared, stage, once
        self.chunks = chunks
        self.known: dict[tuple[str, int, int], Parts] = {}
        self.chain: int | None = None
        self.began: int | None = None
        """The first task of the unit on the chain."""
        self.scatter: float = 0.0
        """Hidden part of the last piece's gradient scatter, which waits for the next gather."""
        self.gathers: Iterator[tuple[Unit, Piece]] = iter(())
        """Pieces whose weights ZeRO-3 gathers, in the order in which they are needed."""
        self.fetched: int | None = None
        """The gather of the next of them, begun when the piece before began."""
        self.host: HostCopies = HostCopies((), self._copy)
        self.random = Random(f"{shared.disturbance.seed}/{stage}")
        units = 2 * chunks_of(shared.layout)
        self.host_s = shared.software.microbatch_overhead_s / units
        hidden = shared.software.overlap_grad_reduce
        self.may_hide_s = hidden * once.reduce_s
        """Reduction that may still run beside compute; what is left comes after the last pass."""
        self.last_reduce_s = (1 - hidden) * once.reduce_s
        across = shared.layout.zero_stage >= 2 and not once.ends_only
        self.reduces_on = "dp sum" if across else "dp"
        self.last_kind = "W" if splits_backward(shared.layout) else "B"

    def work(self, order: Order) -> None:
        """The whole step, up to the reduced gradients."""
        self._gather_first(order)
        self.gathers = self._passes(order, _gather_s)
        self._fetch_next()
        self.host = HostCopies(self._passes(order, _returns), self._copy)
        self.host.begin()
        for unit in order:
            self._unit(unit)
        needs = (*self._flush_scatter(self._so_far()), *self._so_far())
        label = Label(self.stage, self.reduces_on, "dp_comm", "reduce")
        self.chain = self._add(self.reduces_on, self.last_reduce_s, label, needs)
        self._name(("reduced", self.stage))

    def _gather_first(self, order: Order) -> None:
        """Weights that ZeRO-1 left scattered, in the order in which they are needed: what cannot
        hide comes before the first pass."""
        total = self.once.gather_s
        if not total:
            return
        left = (1 - self.shared.software.overlap_param_gather) * total
        self._on_chain("dp_comm", left, "gather")
        for chunk in dict.fromkeys(unit.chunk for unit in order if unit.kind == "F"):
            for number, piece in enumerate(self.chunks[chunk].pieces):
                seconds = self.once.gather_of(piece)
                done = min(seconds, left)
                left, seconds = left - done, seconds - done
                label = Label(self.stage, "dp", "dp_comm", "gather", 0, chunk, piece.name)
                name = ("gathered", self.stage, chunk, number)
                self._add("dp", seconds, label, (), name)

    def _unit(self, unit: Unit) -> None:
        self.began = None
        virtual = self.shared.virtual[Place(self.stage, unit.chunk)]
        arrived = self._arrival(unit, virtual)
        factor = self._unevenness()
        if unit.kind != "W" and self.host_s:
            self._on_chain("other", self.host_s, unit, needs=arrived)
            arrived = ()
        for number, pieces in self._groups(unit):
            arrived = self._pieces(unit, number, pieces, factor, arrived)
        if self.began is None or self.chain is None:
            began = ended = self._on_chain("compute", 0.0, unit, needs=arrived)
        else:
            began, ended = self.began, self.chain
        self.step.units.append(Done(self.stage, unit, began, ended))
        if unit.kind != "W":
            self._send(unit, virtual)

    def _arrival(self, unit: Unit, virtual: int) -> tuple[Key, ...]:
        """What a unit waits for from the chunk before or after its own."""
        last = len(self.shared.spots) - 1
        if unit.kind == "F":
            return (("F", unit.microbatch, virtual - 1),) if virtual else ()
        if unit.kind == "W" or virtual == last:
            return ()
        return (("B", unit.microbatch, virtual + 1),)

    def _groups(self, unit: Unit) -> Iterable[tuple[int, Sequence[Piece]]]:
        """The pieces of a unit: each by itself where traffic runs beside it, else all as one."""
        pieces = self.chunks[unit.chunk].pieces
        numbers = range(len(pieces)) if unit.kind == "F" else reversed(range(len(pieces)))
        apart = any(p.gather_s or p.scatter_s or p.offload_s for p in pieces)
        if apart or self._is_first(unit) or self._is_last(unit):
            return [(number, [pieces[number]]) for number in numbers]
        return [(-1, pieces)] if pieces else []

    def _is_first(self, unit: Unit) -> bool:
        return unit.kind == "F" and unit.microbatch == 0 and self.once.gather_s > 0

    def _is_last(self, unit: Unit) -> bool:
        last = self.shared.layout.microbatches - 1
        return unit.kind == self.last_kind and unit.microbatch == last and self.once.reduce_s > 0

    def _pieces(
        self,
        unit: Unit,
        number: int,
        pieces: Sequence[Piece],
        factor: float,
        arrived: tuple[Key, ...],
    ) -> tuple[Key, ...]:
        """One group of pieces; what the unit waits for is waited for once."""
        if self._is_first(unit):
            arrived = (*arrived, ("gathered", self.stage, unit.chunk, number))
        if number >= 0:
            arrived = (*arrived, *self._fetch(unit, pieces[0]), *self._on_device(unit, pieces[0]))
        for part, seconds in self._seconds(unit, number, pieces):
            slowed = factor if part in _SLOWED else 1.0
            name = pieces[0].name if number >= 0 else ""
            self._on_chain(part, slowed * seconds, unit, needs=arrived, layers=name)
            arrived = ()
        if number >= 0:
            self._hand_back(unit, pieces[0])
            if unit.kind == "F":
                self.host.after_forward(unit, pieces[0], self._so_far())
        return arrived

    def _seconds(self, unit: Unit, number: int, pieces: Sequence[Piece]) -> Parts:
        """Seconds of a group by part; the same in every microbatch."""
        key = (unit.kind, unit.chunk, number)
        if key not in self.known:
            self.known[key] = sum_parts(piece.in_unit(unit.kind) for piece in pieces)
        return self.known[key]

    def _passes(
        self, order: Order, seconds: Callable[[Unit, Piece], float]
    ) -> Iterator[tuple[Unit, Piece]]:
        """Passes over pieces that cost something, in the order in which the stage comes to them."""
        for unit in order:
            for piece in self.chunks[unit.chunk].of(unit.kind):
                if seconds(unit, piece):
                    yield unit, piece

    def _fetch_next(self) -> None:
        """The next gather, as far as compute hides it, from here on: one piece ahead."""
        self.fetched = None
        for unit, piece in islice(self.gathers, 1):
            label = self._label("dp_comm", "gather", unit, piece.name)
            seconds = self.shared.software.overlap_fsdp * _gather_s(unit, piece)
            self.fetched = self._add("dp", seconds, label, self._so_far())

    def _fetch(self, unit: Unit, piece: Piece) -> tuple[Key, ...]:
        """Waits for a piece's weights under ZeRO-3, and begins to fetch those of the piece after
        it: ahead of the gradients of the piece before, because compute waits for weights."""
        seconds, fetched, needs = _gather_s(unit, piece), self.fetched, self._so_far()
        if not seconds or fetched is None:
            self._flush_scatter(needs)
            return ()
        blocking = (1 - self.shared.software.overlap_fsdp) * seconds
        self._on_chain("dp_comm", blocking, unit, needs=(fetched,), kind="gather")
        self._fetch_next()
        self._flush_scatter(needs)
        return (fetched,)

    def _copy(self, way: str, unit: Unit, piece: Piece, needs: tuple[Key, ...]) -> int:
        label = Label(self.stage, way, "offload", way, unit.microbatch, unit.chunk, piece.name)
        return self._add(way, piece.offload_s, label, needs)

    def _on_device(self, unit: Unit, piece: Piece) -> tuple[Key, ...]:
        if unit.kind == "F":
            return self.host.before_forward()
        return self.host.before_backward(self._so_far()) if _returns(unit, piece) else ()

    def _hand_back(self, unit: Unit, piece: Piece) -> None:
        """Gradients of a finished piece: ZeRO-2/3's scatter, and the reduction once a step."""
        if unit.kind == self.last_kind and piece.scatter_s:
            hidden = self.shared.software.overlap_fsdp
            blocking = (1 - hidden) * piece.scatter_s
            self._on_chain("dp_comm", blocking, unit, kind="scatter")
            self.scatter = hidden * piece.scatter_s
        if self._is_last(unit):
            seconds = min(self.once.reduce_of(piece), self.may_hide_s)
            self.may_hide_s -= seconds
            if seconds:
                if self.reduces_on == "dp":
                    self._flush_scatter(self._so_far())
                label = self._label("dp_comm", "reduce", unit, piece.name)
                label = label._replace(stream=self.reduces_on)
                self._add(self.reduces_on, seconds, label, self._so_far())

    def _flush_scatter(self, needs: tuple[Key, ...]) -> tuple[Key, ...]:
        """Puts what is left of a scatter on its lane; the task, if there is one."""
        if not self.scatter:
            return ()
        label = Label(self.stage, "dp", "dp_comm", "scatter")
        task = self._add("dp", self.scatter, label, needs)
        self.scatter = 0.0
        return (task,)

    def _send(self, unit: Unit, virtual: int) -> None:
        """To the stage that needs it: what does not hide holds the sender up; the rest travels."""
        kind = "F" if unit.kind == "F" else "B"
        there = virtual + (1 if kind == "F" else -1)
        key = (kind, unit.microbatch, virtual)
        outside = not 0 <= there < len(self.shared.spots)
        if outside or self.shared.spots[there].stage == self.stage or not self.shared.message_s:
            self._name(key)
            return
        hidden = self.shared.software.overlap_pp
        message = self.shared.message_s
        self._on_chain("pp_comm", (1 - hidden) * message, unit, kind=f"send {kind}")
        if hidden:
            label = self._label("pp_comm", f"send {kind}", unit, "")
            self._add("pp", hidden * message, label, self._so_far(), key)
        else:
            self._name(key)

    def _unevenness(self) -> float:
        """Factor of this unit's compute: the stage's own, and this unit's luck."""
        disturbance = self.shared.disturbance
        factor = disturbance.slow.get(self.stage, 1.0)
        if disturbance.jitter:
            factor *= lognormal(self.random, disturbance.jitter)
        return factor

    def _on_chain(
        self,
        part: str,
        seconds: float,
        unit: Unit | str,
        *,
        needs: tuple[Key, ...] = (),
        layers: str = "",
        kind: str = "",
    ) -> int:
        """A task that holds the stage up; its number."""
        label = self._label(
            part, kind or (unit if isinstance(unit, str) else unit.kind), unit, layers
        )
        self.chain = self._add(STREAMS[part], seconds, label, (*needs, *self._so_far()))
        if self.began is None:
            self.began = self.chain
        return self.chain

    def _label(self, part: str, kind: str, unit: Unit | str, layers: str) -> Label:
        if isinstance(unit, str):
            return Label(self.stage, STREAMS[part], part, kind)
        return Label(self.stage, STREAMS[part], part, kind, unit.microbatch, unit.chunk, layers)

    def _so_far(self) -> tuple[Key, ...]:
        return () if self.chain is None else (self.chain,)

    def _name(self, key: Key) -> None:
        if self.chain is not None:
            self.step.graph.name(self.chain, key)

    def _add(
        self, stream: str, seconds: float, label: Label, needs: tuple[Key, ...], name: Key = None
    ) -> int:
        scale = 1 + self.shared.disturbance.allowance
        return self.step.graph.add((self.stage, stream), seconds * scale, label, needs, name)


def _gather_s(unit: Unit, piece: Piece) -> float:
    """ZeRO-3's gather before a pass over a piece: seconds on the wire."""
    return piece.gather_s if unit.kind == "F" else _in_backward(unit, piece.gather_again_s)


def _returns(unit: Unit, piece: Piece) -> float:
    """Seconds in which what a piece saved comes back from the host for its backward pass."""
    return 0.0 if unit.kind == "F" else _in_backward(unit, piece.offload_s)


def _in_backward(unit: Unit, seconds: float) -> float:
    """Nothing where a unit has the weight gradients alone."""
    return 0.0 if unit.kind == "W" else seconds


def _end(
    step: Step,
    layout: Layout,
    once: list[Once],
    tied: float,
    overhead_s: float,
    disturbance: Disturbance,
) -> None:
    """Every stage waits for all gradients (their norm is taken over the model), then steps."""
    scale, graph = 1 + disturbance.allowance, step.graph
    reduced: list[Key] = [("reduced", stage) for stage in range(layout.pp)]
    if tied:
        label = Label(0, "dp", "dp_comm", "tied embedding")
        ends = (reduced[0], reduced[-1])
        reduced.append(graph.add((0, "dp"), tied * scale, label, ends))
    for stage, one in enumerate(once):
        slow = disturbance.slow.get(stage, 1.0) * scale
        label = Label(stage, "compute", "optimizer", "optimizer")
        done = graph.add((stage, "compute"), one.optimizer_s * slow, label, reduced)
        if overhead_s:
            label = Label(stage, "compute", "other", "step overhead")
            graph.add((stage, "compute"), overhead_s * scale, label, (done,))
