"""A simulated step as papers draw schedules: one row for each stage, one box for each unit."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from layoutopt.simulation.schedules import Unit
from layoutopt.simulation.step import StepSimulation, unit_times
from layoutopt.units import format_seconds

WIDTH, ROW, LEFT, TOP = 1600, 26, 70, 54
COLORS = {
    "F": ("#9ecae1", "#4a90c2", "forward"),
    "B": ("#a1d99b", "#4aa564", "backward"),
    "I": ("#a1d99b", "#4aa564", "input gradient"),
    "W": ("#fdd0a2", "#e08a3c", "weight gradient"),
    "dp": ("#c7b5dd", "#c7b5dd", "data-parallel traffic"),
    "optimizer": ("#bdbdbd", "#bdbdbd", "optimizer"),
}
"""Fill of the first chunk, fill of the last one, and the word for it."""
_NARROWEST_TEXT = 13.0


def write_picture(simulation: StepSimulation, path: str | Path, title: str) -> None:
    """Writes the schedule as an SVG drawing. Raises OSError where the file cannot be written."""
    Path(path).write_text("\n".join(_drawing(simulation, title)) + "\n", encoding="utf-8")


def _drawing(simulation: StepSimulation, title: str) -> Iterator[str]:
    stages = simulation.layout.pp
    height = TOP + stages * ROW + 34
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11">'
    )
    yield f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    yield f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>'
    yield from _legend(simulation)
    scale = (WIDTH - LEFT - 12) / simulation.step_s if simulation.step_s else 0.0
    for stage in range(stages):
        yield f'<text x="8" y="{TOP + stage * ROW + 17}">stage {stage}</text>'
    yield from _traffic(simulation, scale)
    for done, start, end in unit_times(simulation):
        yield from _box(done.stage, done.unit, start * scale, end * scale, _chunks(simulation))
    yield from _axis(simulation.step_s, scale, TOP + stages * ROW)
    yield "</svg>"


def _chunks(simulation: StepSimulation) -> int:
    return len(simulation.step.model[0])


def _legend(simulation: StepSimulation) -> Iterator[str]:
    kinds = {done.unit.kind for done in simulation.step.units} | {"dp", "optimizer"}
    x = LEFT
    for kind in (kind for kind in COLORS if kind in kinds):
        light, dark, word = COLORS[kind]
        yield f'<rect x="{x}" y="28" width="12" height="12" fill="{light}"/>'
        x += 16
        if light != dark and _chunks(simulation) > 1:
            yield f'<rect x="{x - 4}" y="28" width="12" height="12" fill="{dark}"/>'
            word, x = f"{word}, first to last chunk", x + 12
        yield f'<text x="{x}" y="38">{word}</text>'
        x += 7 * len(word) + 18


def _box(stage: int, unit: Unit, left: float, right: float, chunks: int) -> Iterator[str]:
    light, dark, _ = COLORS[unit.kind]
    fill = light if chunks == 1 else _mix(light, dark, unit.chunk / (chunks - 1))
    x, y, width = LEFT + left, TOP + stage * ROW + 2, right - left
    yield (
        f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.05):.2f}" height="{ROW - 4}" '
        f'fill="{fill}" stroke="#555" stroke-width="{0.4 if width > 2 else 0}"/>'
    )
    if width >= _NARROWEST_TEXT:
        yield (
            f'<text x="{x + width / 2:.2f}" y="{y + 15}" text-anchor="middle">'
            f"{unit.microbatch + 1}</text>"
        )


def _traffic(simulation: StepSimulation, scale: float) -> Iterator[str]:
    """Data-parallel traffic as a line below the boxes, the optimizer as a box."""
    graph, timeline = simulation.step.graph, simulation.timeline
    for label, start, end in zip(graph.labels, timeline.start, timeline.end, strict=True):
        if end <= start or label.part not in ("dp_comm", "optimizer"):
            continue
        thin = label.part == "dp_comm"
        y = TOP + label.stage * ROW + (ROW - 3 if thin else 2)
        color = COLORS["dp" if thin else "optimizer"][0]
        yield (
            f'<rect x="{LEFT + start * scale:.2f}" y="{y}" width="{(end - start) * scale:.2f}" '
            f'height="{3 if thin else ROW - 4}" fill="{color}"/>'
        )


def _axis(step_s: float, scale: float, y: int) -> Iterator[str]:
    yield f'<line x1="{LEFT}" y1="{y + 4}" x2="{WIDTH - 12}" y2="{y + 4}" stroke="#555"/>'
    for tenth in range(0, 11, 2):
        x, text = LEFT + tenth / 10 * step_s * scale, format_seconds(tenth / 10 * step_s)
        yield f'<line x1="{x:.1f}" y1="{y + 4}" x2="{x:.1f}" y2="{y + 9}" stroke="#555"/>'
        anchor = "end" if tenth == 10 else "middle"
        yield f'<text x="{x:.1f}" y="{y + 22}" text-anchor="{anchor}">{text}</text>'


def _mix(light: str, dark: str, share: float) -> str:
    """A color between two."""
    pairs = [(int(light[n : n + 2], 16), int(dark[n : n + 2], 16)) for n in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)
