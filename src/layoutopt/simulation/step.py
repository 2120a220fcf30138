"""One optimizer step, event by event: how long, where it waits, what is held when."""

from __future__ import annotations

from dataclasses import dataclass

from layoutopt.costmodel import step as closed
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.placement import ordered
from layoutopt.costmodel.results import BREAKDOWN
from layoutopt.simulation.build import ROWS, Done, Step, build_step
from layoutopt.simulation.disturbance import Disturbance
from layoutopt.simulation.engine import Timeline
from layoutopt.simulation.held import Held, held_over_time


@dataclass(frozen=True)
class StageSeconds:
    """Where one stage's time goes; the parts add up to the step."""

    stage: int
    parts: dict[str, float]
    """Seconds by part; dp_comm: what the stage waits for, pipeline_bubble: all other waiting."""
    held: Held

    @property
    def exposed_comm_s(self) -> float:
        """Communication that no compute of this stage hides."""
        return sum(seconds for part, seconds in self.parts.items() if part.endswith("_comm"))


@dataclass(frozen=True)
class StepSimulation:
    """What the events of one step add up to."""

    layout: Layout
    step: Step
    timeline: Timeline
    step_s: float
    stages: tuple[StageSeconds, ...]
    allowance: float
    """Relative time that stragglers and jitter are allowed on everything (A8)."""

    @property
    def busiest(self) -> StageSeconds:
        """The stage that waits least."""
        return min(self.stages, key=lambda stage: stage.parts["pipeline_bubble"])

    @property
    def events(self) -> int:
        """Tasks that were simulated."""
        return len(self.timeline.start)


def allowance(job: Job) -> float:
    """The cost model's share for stragglers and jitter on so many GPUs (A8)."""
    return closed.jitter(job)


def simulate_step(
    job: Job, layout: Layout, disturbance: Disturbance | None = None
) -> StepSimulation:
    """Simulates one step of ``layout``, which is taken as legal.

    ``disturbance``: None for the cost model's allowance for stragglers and jitter, which stretches
    every task alike and so compares with `estimate`.
    """
    job = ordered(job, layout.axis_order)
    calm = disturbance or Disturbance(allowance=allowance(job))
    step = build_step(job, layout, calm)
    timeline = step.graph.run()
    finish = timeline.finish
    held = held_over_time(job, layout, step, timeline)
    stages = tuple(
        StageSeconds(stage, parts, held[stage])
        for stage, parts in enumerate(_parts_by_stage(step, timeline, layout.pp, finish))
    )
    return StepSimulation(layout, step, timeline, finish, stages, calm.allowance)


def _parts_by_stage(
    step: Step, timeline: Timeline, stages: int, finish: float
) -> list[dict[str, float]]:
    """Seconds of each stage by part.

    A moment belongs to the part that computes or, where nothing does, to the traffic that runs;
    a moment in which the stage does neither is bubble. Traffic that travels while the receiver
    waits is part of that stage's bubble.
    """
    intervals: list[list[tuple[float, float, int, str]]] = [[] for _ in range(stages)]
    rank = {stream: n for n, stream in enumerate(ROWS)}
    for label, start, end in zip(step.graph.labels, timeline.start, timeline.end, strict=True):
        if end > start:
            order = rank[label.stream]
            intervals[label.stage].append((start, end, order, label.part))
    return [_sweep(rows, finish) for rows in intervals]


def _sweep(rows: list[tuple[float, float, int, str]], finish: float) -> dict[str, float]:
    """Splits [0, finish] over the first-ranked interval that covers each moment."""
    parts = dict.fromkeys(BREAKDOWN, 0.0)
    marks = sorted(
        [(start, 1, n) for n, (start, *_) in enumerate(rows)]
        + [(row[1], 0, n) for n, row in enumerate(rows)]
    )
    active: set[int] = set()
    before = 0.0
    for moment, opens, number in marks:
        if moment > before:
            if active:
                first = min(active, key=lambda n: rows[n][2])
                parts[rows[first][3]] += moment - before
            else:
                parts["pipeline_bubble"] += moment - before
            before = moment
        (active.add if opens else active.discard)(number)
    parts["pipeline_bubble"] += finish - before
    return parts


def unit_times(simulation: StepSimulation) -> list[tuple[Done, float, float]]:
    """Every unit with its start and end, in the order of the stages' work."""
    timeline = simulation.timeline
    return [
        (done, timeline.start[done.first], timeline.end[done.last])
        for done in simulation.step.units
    ]
