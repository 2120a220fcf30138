"""One picture by the name of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layoutopt.plots.bars import breakdown, memory
from layoutopt.plots.heatmap import heatmap
from layoutopt.plots.lines import mfu, scaling
from layoutopt.plots.pareto import pareto
from layoutopt.plots.series import Sweep
from layoutopt.plots.style import need_matplotlib, picture, settings

KINDS: dict[str, Callable[[Sweep], Any]] = {
    "scaling": scaling,
    "mfu": mfu,
    "pareto": pareto,
    "memory": memory,
    "breakdown": breakdown,
    "heatmap": heatmap,
}


def draw(sweep: Sweep, kind: str, file_format: str) -> bytes:
    """The picture of ``kind`` as the content of an svg, png or pdf file.

    Raises InputError where the sweep has nothing of this kind to show, ToolError without
    matplotlib.
    """
    need_matplotlib()
    with settings():
        return picture(KINDS[kind](sweep), file_format)
