"""Where the cost model is off, axis by axis: ``python -m benchmarks.residuals [FILE ...]``.

For each axis (tp, micro-batch, framework, ...) and each of its values: how many records, the mean
error, the median of predicted / measured - 1 (bias), and the same within the record's own group
(source file, framework, model, GPU, precision, kernel), where the group varies along the axis. A
value far from 0 in the last column is a mechanism that is missing or wrong.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.accuracy import default_files
from layoutopt.validation import Case, Scored, validate
from layoutopt.validation.cases import Figure
from layoutopt.validation.statistics import mean, median

FEWEST = 4
"""Records that a row has at least."""


def _power_of_two(value: int) -> str:
    """The power of two at or below ``value``."""
    return f"{1 << (value.bit_length() - 1):,}+"


AXES: dict[str, Callable[[Case], object]] = {
    "source": lambda case: case.record.source_file.removesuffix(".jsonl"),
    "software": lambda case: case.job.software.name,
    "framework": lambda case: case.record.framework[:60],
    "gpu": lambda case: case.job.cluster.gpu.name,
    "precision": lambda case: case.job.training.precision,
    "kernel": lambda case: case.record.training.get("kernel"),
    "gpus": lambda case: _power_of_two(case.job.gpus),
    "hidden": lambda case: _power_of_two(case.job.model.hidden),
    "seq_len": lambda case: _power_of_two(case.job.training.seq_len),
    "experts": lambda case: case.job.model.moe is not None,
    "tp": lambda case: case.layout.tp,
    "cp": lambda case: case.layout.cp,
    "pp": lambda case: case.layout.pp,
    "dp": lambda case: _power_of_two(case.layout.dp),
    "ep": lambda case: case.layout.ep,
    "vpp": lambda case: case.layout.vpp,
    "micro_batch": lambda case: case.layout.micro_batch,
    "microbatches": lambda case: _power_of_two(case.layout.microbatches),
    "zero_stage": lambda case: case.layout.zero_stage,
    "recompute": lambda case: case.layout.recompute,
    "sequence_parallel": lambda case: case.layout.sequence_parallel,
    "filled recompute": lambda case: any("recompute" in word for word in case.filled),
    "filled vpp": lambda case: any("vpp" in word for word in case.filled),
    "filled micro_batch": lambda case: any("micro_batch" in word for word in case.filled),
}
"""What records are grouped by."""


def group_of(case: Case) -> tuple[object, ...]:
    """Records that differ in the layout and the size of the cluster alone."""
    record = case.record
    return (
        record.source_file,
        record.framework,
        case.job.model.name,
        case.job.cluster.gpu.name,
        case.job.training.precision,
        record.training.get("kernel"),
    )


def ratios(entries: Iterable[Scored], figure: Figure) -> list[tuple[Case, float]]:
    """(case, predicted / measured) of the records that count for ``figure``."""
    found = []
    for entry in entries:
        ratio = entry.time_ratio if figure == "time" else entry.memory_ratio
        if entry.case is not None and ratio is not None and entry.counts(figure):
            found.append((entry.case, ratio))
    return found


def centred(points: Sequence[tuple[Case, float]], axis: str) -> list[float | None]:
    """Each ratio over the median of its group; None where the group does not vary along ``axis``.

    Within such a group nothing but the layout differs, so what is left belongs to the axis (and to
    the axes that go with it).
    """
    groups: dict[tuple[object, ...], list[float]] = defaultdict(list)
    values: dict[tuple[object, ...], set[object]] = defaultdict(set)
    for case, ratio in points:
        groups[group_of(case)].append(ratio)
        values[group_of(case)].add(AXES[axis](case))
    middles = {key: median(ratios) for key, ratios in groups.items() if len(values[key]) > 1}
    return [
        ratio / middle if (middle := middles.get(group_of(case))) else None
        for case, ratio in points
    ]


def rows(points: Sequence[tuple[Case, float]], axis: str) -> list[str]:
    """Lines of one axis, largest groups first."""
    values: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for (case, ratio), within in zip(points, centred(points, axis), strict=True):
        values[str(AXES[axis](case))].append((ratio, within))
    return [
        _row(value, pairs)
        for value, pairs in sorted(values.items(), key=lambda item: -len(item[1]))
        if len(pairs) >= FEWEST
    ]


def _row(value: str, pairs: Sequence[tuple[float, float | None]]) -> str:
    error = mean([abs(ratio - 1) for ratio, _ in pairs]) or 0.0
    bias = (median([ratio for ratio, _ in pairs]) or 1.0) - 1
    middle = median([within for _, within in pairs if within is not None])
    inner = "-" if middle is None else f"{middle - 1:+.1%}"
    return f"  {value:<62}{len(pairs):>6}{error:>9.1%}{bias:>+9.1%}{inner:>9}"


def main(arguments: Sequence[str]) -> None:
    """Print the tables of step time and of memory."""
    validation = validate([Path(name) for name in arguments] or default_files())
    for figure in ("time", "memory"):
        points = ratios(validation.records, figure)
        for axis in AXES:
            heading = f"{figure} by {axis}"
            print(f"{heading:<64}{'n':>6}{'error':>9}{'bias':>9}{'within':>9}")
            print("\n".join(rows(points, axis)))


if __name__ == "__main__":
    main(sys.argv[1:])
