"""What each stage holds in memory, moment by moment."""

from __future__ import annotations

from dataclasses import dataclass

from layoutopt.costmodel.estimate import memory_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.simulation.build import Step
from layoutopt.simulation.engine import Timeline
from layoutopt.simulation.pieces import Chunk
from layoutopt.simulation.schedules import splits_backward
from layoutopt.units import KIB


@dataclass(frozen=True)
class Held:
    """Memory of one stage over time, per GPU."""

    state_bytes: int
    """Weights, gradients, optimizer and sharding buffers: there all the time."""
    times_s: tuple[float, ...]
    bytes: tuple[int, ...]
    """Allocated from each of ``times_s`` on, state included."""
    peak_bytes: int
    peak_s: float
    most_units: int
    """Microbatches times chunks whose activations were held at once."""
    most_layers: int
    """The same in layers."""


def held_over_time(job: Job, layout: Layout, step: Step, timeline: Timeline) -> list[Held]:
    """Memory of every stage, from the units' starts and ends.

    Where activations go to the host, two layers of them stay on the device.

    Activations are held from the start of a forward pass to the end of the backward pass that
    needs them last: of the weight gradients, where those are apart.
    """
    frees = "W" if splits_backward(layout) else "B"
    changes: list[list[tuple[float, int, int, int, int]]] = [[] for _ in range(layout.pp)]
    for done in step.units:
        chunk, rows = step.model[done.stage][done.unit.chunk], changes[done.stage]
        start, end = timeline.start[done.first], timeline.end[done.last]
        saved, layers = _saved(chunk)
        if done.unit.kind == "F":
            rows.append((start, 1, saved, 1, layers))
            continue
        working = max((piece.working_kib for piece in chunk.pieces), default=0)
        gone = done.unit.kind == frees
        rows.append((start, 1, working, 0, 0))
        rows.append((end, 0, -working - (saved if gone else 0), -gone, -layers if gone else 0))
    for stage, rows in enumerate(changes):
        parked = max((p.parked_kib for chunk in step.model[stage] for p in chunk.pieces), default=0)
        if parked and rows:
            rows.append((min(rows)[0], 1, parked, 0, 0))
            rows.append((max(rows)[0], 0, -parked, 0, 0))
    state = _state_kib(job, layout)
    return [_walk(rows, state[stage]) for stage, rows in enumerate(changes)]


def _saved(chunk: Chunk) -> tuple[int, int]:
    layers = sum(piece.name == "layer" for piece in chunk.pieces)
    return sum(piece.saved_kib for piece in chunk.pieces), layers


def _walk(changes: list[tuple[float, int, int, int, int]], state: int) -> Held:
    """Adds the changes up in time; what is freed at a moment is free at that moment."""
    now = peak = units = layers = most_units = most_layers = 0
    peak_s, times, sizes = 0.0, [0.0], [state]
    for moment, _, kib, unit, layer in sorted(changes):
        now, units, layers = now + kib, units + unit, layers + layer
        most_units, most_layers = max(most_units, units), max(most_layers, layers)
        if now > peak:
            peak, peak_s = now, moment
        if moment > times[-1]:
            times.append(moment)
            sizes.append(state + now)
        else:
            sizes[-1] = state + now
    return Held(
        state_bytes=state * KIB,
        times_s=tuple(times),
        bytes=tuple(size * KIB for size in sizes),
        peak_bytes=(state + peak) * KIB,
        peak_s=peak_s,
        most_units=most_units,
        most_layers=most_layers,
    )


def _state_kib(job: Job, layout: Layout) -> list[int]:
    """What a stage holds all the time."""
    return [
        (stage.weights + stage.gradients + stage.optimizer + stage.buffers) // KIB
        for stage in memory_of(job, layout).stages
    ]
