"""A simulated step as a trace that Perfetto and chrome://tracing open.

Format: Trace Event Format (Google, "Trace Event Format", complete, metadata and counter events).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layoutopt.costmodel.results import PART_NAMES
from layoutopt.simulation.build import ROWS
from layoutopt.simulation.engine import Label
from layoutopt.simulation.schedules import Place, places
from layoutopt.simulation.step import StepSimulation

_MICROSECONDS = 1e6
_WORDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


def write_trace(simulation: StepSimulation, path: str | Path) -> None:
    """Writes the trace to ``path``: a process for each stage, a thread for each of its streams.

    Raises OSError where the file cannot be written.
    """
    with Path(path).open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(_events(simulation)):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _events(simulation: StepSimulation) -> Iterator[dict[str, Any]]:
    graph, timeline = simulation.step.graph, simulation.timeline
    used = sorted({(label.stage, ROWS.index(label.stream)) for label in graph.labels})
    for stage in range(simulation.layout.pp):
        yield _meta("process_name", stage, 0, f"stage {stage}")
        yield {**_meta("process_sort_index", stage, 0, ""), "args": {"sort_index": stage}}
    for stage, row in used:
        yield _meta("thread_name", stage, row, ROWS[row])
    virtual = {place: n for n, place in enumerate(places(simulation.layout))}
    rows = zip(graph.labels, timeline.start, timeline.end, strict=True)
    for label, start, end in rows:
        if end > start:
            yield _slice(label, start, end, virtual)
    for one in simulation.stages:
        held = one.held
        for moment, size in zip(held.times_s, held.bytes, strict=True):
            yield {
                "name": "memory",
                "ph": "C",
                "ts": moment * _MICROSECONDS,
                "pid": one.stage,
                "args": {"allocated GiB": round(size / 2**30, 3)},
            }


def _meta(name: str, stage: int, row: int, text: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": stage, "tid": row, "args": {"name": text}}


def _slice(label: Label, start: float, end: float, virtual: dict[Place, int]) -> dict[str, Any]:
    args: dict[str, Any] = {"part": PART_NAMES[label.part]}
    name = _WORDS.get(label.kind, label.kind)
    if label.microbatch >= 0:
        args |= {"microbatch": label.microbatch, "chunk": label.chunk}
        args["model_chunk"] = virtual[Place(label.stage, label.chunk)]
        name = f"{name} {label.microbatch}"
    if label.layers:
        args["piece"] = label.layers
    return {
        "name": name,
        "cat": label.part,
        "ph": "X",
        "ts": round(start * _MICROSECONDS, 3),
        "dur": round((end - start) * _MICROSECONDS, 3),
        "pid": label.stage,
        "tid": ROWS.index(label.stream),
        "args": args,
    }
