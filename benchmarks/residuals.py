"""Where the cost model is off, axis by axis: ``python -m benchmarks.residuals [FILE ...]``.

For each axis (tp, micro-batch, framework, ...) and each of its values: how many records, the mean
error, and the median of predicted / measured - 1 once the record's own group (source file,
framework, model, GPU, precision, kernel) has been centred. The first column says how wrong, the
last one what the axis itself contributes: a value far from 0 there is a mechanism that is missing.
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


def centred(points: Sequence[tuple[Case, float]]) -> list[tuple[Case, float, float]]:
    """(case, ratio, ratio over its group's median); the last is 1 in a group of one."""
    groups: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for case, ratio in points:
        groups[group_of(case)].append(ratio)
    middles = {key: median(values) or 1.0 for key, values in groups.items()}
    return [(case, ratio, ratio / middles[group_of(case)]) for case, ratio in points]


def rows(points: Sequence[tuple[Case, float]], axis: str) -> list[str]:
    """Lines of one axis, largest groups first."""
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for case, ratio, within in centred(points):
        values[str(AXES[axis](case))].append((ratio, within))
    lines = []
    for value, pairs in sorted(values.items(), key=lambda item: -len(item[1])):
        if len(pairs) >= FEWEST:
            lines.append(_row(value, pairs))
    return lines


def _row(value: str, pairs: Sequence[tuple[float, float]]) -> str:
    error = mean([abs(ratio - 1) for ratio, _ in pairs]) or 0.0
    bias = (median([ratio for ratio, _ in pairs]) or 1.0) - 1
    within = (median([inner for _, inner in pairs]) or 1.0) - 1
    return f"  {value:<62}{len(pairs):>6}{error:>9.1%}{bias:>+9.1%}{within:>+9.1%}"


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
