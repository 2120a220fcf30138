"""Sweeps: measured runs that differ in the layout alone. Does the model rank them right?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from layoutopt.costmodel.layout import Layout
from layoutopt.validation.cases import Case
from layoutopt.validation.records import Record
from layoutopt.validation.score import Scored
from layoutopt.validation.statistics import spearman

SMALLEST = 4
"""Layouts that a sweep has at least: ranking three says little."""

SAME_PREDICTION = 1e-9
"""Relative difference below which two predictions count as equal."""


@dataclass(frozen=True)
class Sweep:
    """Layouts of one question that were all measured.

    ``regret`` is the measured time of the layout that the model ranks first, over the best
    measured time, minus 1. Of layouts with equal predictions the slowest counts.
    """

    name: str
    n: int
    regret: float
    spearman: float | None
    rank_of_best: int
    """Place of the layout measured fastest in the model's own order; 1: it would be chosen."""
    source_file: str
    framework: str
    gpu: str
    software: str

    def to_dict(self) -> dict[str, Any]:
        """The sweep's entry in layoutopt.validation/1."""
        return {
            "name": self.name,
            "n": self.n,
            "regret": self.regret,
            "spearman": self.spearman,
            "rank_of_best": self.rank_of_best,
        }


@dataclass(frozen=True)
class _Point:
    """A layout that was measured, with its prediction. Seconds."""

    record: Record
    case: Case
    predicted_s: float
    measured_s: float


def sweeps(scored: Iterable[Scored]) -> list[Sweep]:
    """All sweeps among ``scored``, in order of their first record.

    A sweep has one source file, framework, model shape, GPU, cluster, GPU count, sequence length,
    batch, kernel and precision, and at least SMALLEST different layouts with a step time.
    """
    groups: dict[tuple[object, ...], list[_Point]] = {}
    for entry in scored:
        point = _point(entry)
        if point is not None:
            groups.setdefault(_question(point), []).append(point)
    return [
        _sweep(group[0], pairs)
        for group in groups.values()
        if len(pairs := _by_layout(group)) >= SMALLEST
    ]


def _point(entry: Scored) -> _Point | None:
    measured, predicted = entry.measured_s, entry.predicted_s
    if entry.case is None or measured is None or predicted is None or not entry.counts("time"):
        return None
    return _Point(entry.record, entry.case, predicted, measured)


def _question(point: _Point) -> tuple[object, ...]:
    """Everything that must be equal within a sweep."""
    record, job = point.record, point.case.job
    return (
        record.source_file,
        record.framework,
        record.training.get("task"),
        record.training.get("kernel"),
        job.model.model_dump_json(exclude={"name", "source"}),
        job.cluster.gpu.name,
        job.cluster.levels,
        job.gpus,
        job.training,
    )


def _by_layout(group: Sequence[_Point]) -> list[tuple[float, float]]:
    """(predicted, measured) seconds per layout; runs of equal layouts are averaged."""
    runs: dict[Layout, list[_Point]] = {}
    for point in group:
        runs.setdefault(point.case.layout, []).append(point)
    return [
        (points[0].predicted_s, sum(point.measured_s for point in points) / len(points))
        for points in runs.values()
    ]


def _sweep(point: _Point, pairs: Sequence[tuple[float, float]]) -> Sweep:
    return Sweep(
        name=_name(point),
        n=len(pairs),
        regret=regret(pairs),
        spearman=spearman([p for p, _ in pairs], [m for _, m in pairs]),
        rank_of_best=rank_of_best(pairs),
        source_file=point.record.source_file,
        framework=point.record.framework,
        gpu=point.case.job.cluster.gpu.name,
        software=point.case.job.software.name,
    )


def regret(points: Sequence[tuple[float, float]]) -> float:
    """Measured time of the layout predicted fastest, over the best measured time, minus 1.

    ``points`` are (predicted, measured) seconds. Hand-worked: predicted 1 and 2, measured 3 and
    2.5: the first is chosen, and 3 / 2.5 - 1 = 0.2.
    """
    fastest = min(predicted for predicted, _ in points)
    chosen = max(
        measured for predicted, measured in points if predicted <= fastest * (1 + SAME_PREDICTION)
    )
    return chosen / min(measured for _, measured in points) - 1


def rank_of_best(points: Sequence[tuple[float, float]]) -> int:
    """Place, from 1, that the predictions give to the layout measured fastest.

    ``points`` are (predicted, measured) seconds. Hand-worked: predicted 1, 2 and 3, measured 5, 4
    and 6: the best measured one is second.
    """
    best = min(points, key=lambda point: point[1])[0]
    return 1 + sum(predicted < best * (1 - SAME_PREDICTION) for predicted, _ in points)


def _name(point: _Point) -> str:
    record, job = point.record, point.case.job
    kernel = record.training.get("kernel")
    parts = [
        record.source_file.removesuffix(".jsonl"),
        job.model.name,
        f"{job.gpus} x {job.cluster.gpu.name}",
        f"seq {job.training.seq_len}",
        f"batch {job.training.global_batch}",
        job.training.precision,
    ]
    return ", ".join([*parts, str(kernel)] if kernel else parts)
