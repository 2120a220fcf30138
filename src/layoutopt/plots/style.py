"""Colours that colour-blind people tell apart, axes of GPU counts, and files."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from layoutopt.errors import InputError, ToolError

COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#7F7F7F",
)
"""Okabe and Ito 2008 (Color Universal Design), without yellow, which is too pale for a line."""
PARTS = (
    "#0072B2",
    "#56B4E9",
    "#E69F00",
    "#F0E442",
    "#009E73",
    "#A6761D",
    "#D55E00",
    "#CC79A7",
    "#999999",
    "#333333",
)
"""For areas: told apart by lightness too."""
MARKERS = "osD^v<>PX*"
FORMATS = (".svg", ".png", ".pdf")
_DOTS_PER_INCH = 150
_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    # Text stays text: searchable, and a smaller file.
    "svg.fonttype": "none",
    # No random ids inside: the same rows give the same file.
    "svg.hashsalt": "layoutopt",
}


def need_matplotlib() -> None:
    """Raises ToolError where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise ToolError("plots need matplotlib: pip install 'layoutopt[plot]'") from None
    matplotlib.use("Agg")


def settings() -> AbstractContextManager[None]:
    """matplotlib's settings while a picture is drawn and saved."""
    import matplotlib

    context: AbstractContextManager[None] = matplotlib.rc_context(_SETTINGS)
    return context


def panels(
    number: int,
    *,
    wide: float = 7.2,
    high: float = 4.5,
    same_across: bool = True,
    same_up: bool = True,
) -> tuple[Any, list[Any]]:
    """A figure with that many panels, at most three in a row.

    They have the same scale across, and up, unless ``same_across`` or ``same_up`` is False.
    """
    from matplotlib import pyplot

    across = min(number, 3)
    down = -(-number // across)
    size = (wide if across == 1 else 4.4 * across, high if down == 1 else 0.8 * high * down)
    figure, axes = pyplot.subplots(
        down,
        across,
        figsize=size,
        layout="constrained",
        sharex=same_across,
        sharey=same_up,
        squeeze=False,
    )
    every = list(axes.flat)
    for axis in every[number:]:
        axis.set_visible(False)
    return figure, every[:number]


def gpu_axis(axis: Any, counts: Iterable[int]) -> None:
    """A logarithmic axis whose ticks are GPU counts that occur, no more than fit."""
    ordered = sorted(set(counts))
    step = -(-len(ordered) // 9)
    ticks = ordered[::step]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axis.tick_params(axis="x", labelrotation=30 if len(ticks) > 5 else 0)
    axis.minorticks_off()
    axis.set_xlabel("GPUs")


def label_up(axis: Any, text: str) -> None:
    """The label of the axis up, at the panels of the first column alone."""
    if axis.get_subplotspec().is_first_col():
        axis.set_ylabel(text)


def plain_numbers(axis: Any) -> None:
    """1, 2, 5, 10 on a logarithmic axis, not powers; more of them where it spans little."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_data_interval()
    close = low > 0 and high / low < 12
    axis.set_major_locator(
        LogLocator(base=10, subs=(1, 1.5, 2, 3, 4, 5, 7) if close else (1, 2, 5))
    )
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def format_of(path: str | Path) -> str:
    """``svg``, ``png`` or ``pdf`` by the ending; raises InputError for another."""
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise InputError(
            f"{path} ends in {ending or 'nothing'}; pictures are written as {', '.join(FORMATS)}",
            field="out",
            value=str(path),
            nearest=FORMATS,
        )
    return ending[1:]


def picture(figure: Any, kind: str) -> bytes:
    """The figure as a file's content, and its end."""
    from matplotlib import pyplot

    buffer = io.BytesIO()
    # No date or version inside.
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    dated = {"CreationDate": None, "Producer": None, "Creator": None}
    figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata.get(kind, dated))
    pyplot.close(figure)
    return buffer.getvalue()
