"""Rich tables as text: 100 columns, the reader's own words never read as markup."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WIDTH = 100


def render(items: Iterable[RenderableType], *, color: bool = False, width: int = WIDTH) -> str:
    """``items`` below each other as text, no trailing blanks; escape codes only with ``color``."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    for item in items:
        console.print(item)
    lines = (line.rstrip() for line in buffer.getvalue().split("\n"))
    return "\n".join(lines).rstrip("\n") + "\n"


def heading(text: str) -> RenderableType:
    """A line that starts a part of the report."""
    from rich.text import Text

    return Text("\n" + text, style="bold")


def table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), right: Sequence[int] = ()
) -> Table:
    """Plain columns, two blanks apart; the columns of ``right`` hold numbers."""
    from rich.table import Table
    from rich.text import Text

    rows = [tuple(row) for row in rows]
    grid = Table(box=None, show_header=bool(header), pad_edge=False, padding=(0, 2, 0, 0))
    columns = len(header) or max((len(row) for row in rows), default=0)
    for index in range(columns):
        grid.add_column(
            Text(header[index]) if header else "",
            justify="right" if index in right else "left",
            no_wrap=index in right,
            overflow="fold",
            header_style="underline",
        )
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def wrapped(text: str, width: int = 86) -> str:
    """``text`` broken after commas into lines of at most ``width`` where that can be."""
    lines = [""]
    for part in text.split(","):
        if lines[-1] and len(lines[-1]) + len(part) + 1 > width:
            lines.append("")
        lines[-1] += f"{part},"
    return "\n".join(lines).removesuffix(",")


def bar(share: float, width: int = 24) -> str:
    """``share`` of 1 as a bar of blocks."""
    return "█" * max(0, min(width, round(share * width)))
