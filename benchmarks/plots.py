"""Pictures of the ledger: predicted against measured, and residuals by GPU count.

Needs matplotlib (the ``plot`` extra); imported late, so that the tables work without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.headline import by_source
from layoutopt.validation import Scored

DOTS_PER_INCH = 100
INCHES = (7.2, 5.4)
MARKERS = "osD^v<>PX*phd"


def draw(entries: Sequence[Scored], folder: Path) -> list[Path]:
    """Both pictures as PNG files in ``folder``; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    paths = [folder / "accuracy-times.png", folder / "accuracy-residuals.png"]
    _times(entries, paths[0])
    _residuals(entries, paths[1])
    return paths


def points(entries: Sequence[Scored]) -> dict[str, list[tuple[float, float, int]]]:
    """(measured seconds, predicted seconds, GPUs) by source file, for the times that count."""
    found = {}
    for file, group in by_source(entries).items():
        mine = [
            (entry.measured_s, entry.predicted_s, entry.case.job.gpus)
            for entry in group
            if entry.counts("time") and entry.case and entry.measured_s and entry.predicted_s
        ]
        if mine:
            found[file.removesuffix(".jsonl")] = mine
    return found


def _axes(title: str, across: str, up: str) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=INCHES, layout="constrained")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_xscale("log")
    axes.grid(alpha=0.3, linewidth=0.5)
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> None:
    from matplotlib import pyplot

    axes.legend(fontsize=7, ncols=2, markerscale=1.5, framealpha=0.8)
    # No date or version inside: the same figures give the same file.
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def _times(entries: Sequence[Scored], path: Path) -> None:
    figure, axes = _axes("Step times", "measured, seconds", "predicted, seconds")
    axes.set_yscale("log")
    groups = points(entries)
    for (name, mine), marker in zip(groups.items(), MARKERS * 4, strict=False):
        measured, predicted, _ = zip(*mine, strict=True)
        axes.scatter(measured, predicted, s=9, alpha=0.6, marker=marker, linewidths=0, label=name)
    every = [seconds for mine in groups.values() for row in mine for seconds in row[:2]]
    ends = [min(every) * 0.8, max(every) * 1.25]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for share in (0.8, 1.2):
        axes.plot(ends, [end * share for end in ends], color="grey", linewidth=0.6, linestyle=":")
    _save(figure, axes, path)


def _residuals(entries: Sequence[Scored], path: Path) -> None:
    figure, axes = _axes(
        "Residuals by size of the run", "GPUs", "predicted / measured - 1, per cent"
    )
    for (name, mine), marker in zip(points(entries).items(), MARKERS * 4, strict=False):
        gpus = [row[2] for row in mine]
        off = [100 * (predicted / measured - 1) for measured, predicted, _ in mine]
        axes.scatter(gpus, off, s=9, alpha=0.6, marker=marker, linewidths=0, label=name)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylim(-80, 100)
    _save(figure, axes, path)
