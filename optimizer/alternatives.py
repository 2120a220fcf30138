"""The next best layouts, each with the reason why it loses."""

from __future__ import annotations

from collections.abc import Sequence

from layoutopt.costmodel.results import BREAKDOWN, PART_NAMES, Estimate
from layoutopt.optimizer.outcome import Alternative
from layoutopt.optimizer.space import chosen_of
from layoutopt.optimizer.survey import TIE, Seen
from layoutopt.units import format_seconds

_LISTED = 4
"""Parts of the step to name, the largest differences first."""
_SMALL = 0.02
"""Parts that differ by less than this share of the largest difference are not named."""


def alternatives(others: Sequence[Estimate], plan: Estimate) -> tuple[Alternative, ...]:
    """Layouts that lost, best first, each with the reason."""
    return tuple(Alternative(other, why_it_loses(other, plan)) for other in others)


def seen_of(plan: Estimate) -> Seen:
    """A plan in the search's own words."""
    return Seen(chosen_of(plan.layout), plan.run.wall_time_s, 0)


def why_it_loses(other: Estimate, plan: Estimate) -> str:
    """By how much, and which parts of the step it is that take longer (+) or shorter (-)."""
    more = other.run.wall_time_s / plan.run.wall_time_s - 1
    gap = other.step.time_s - plan.step.time_s
    if more <= TIE:
        return "A tie: the run takes exactly as long; the first in the order of axes is taken."
    if gap <= TIE * plan.step.time_s:
        saves = format_seconds(other.checkpoint.stall_s)
        mine = format_seconds(plan.checkpoint.stall_s)
        return f"{_share(more)} longer run: its checkpoints take {saves} each, not {mine}."
    text = f"{_share(more)} slower, {format_seconds(gap)} a step: {by_part(other, plan)}"
    slower = other.checkpoint.write_s - plan.checkpoint.write_s
    if slower > 0.1 * plan.checkpoint.write_s:
        text += f"; checkpoints take {format_seconds(slower)} longer to write"
    return f"{text}."


def by_part(other: Estimate, plan: Estimate) -> str:
    """``+220 ms pipeline bubble, -30 ms compute``: a step of ``other`` against one of ``plan``."""
    parts = {name: other.step.breakdown_s[name] - plan.step.breakdown_s[name] for name in BREAKDOWN}
    largest = max(abs(seconds) for seconds in parts.values())
    named = sorted(
        (name for name, seconds in parts.items() if abs(seconds) > _SMALL * largest),
        key=lambda name: (-abs(parts[name]), name),
    )
    return ", ".join(
        f"{'+' if parts[name] > 0 else '-'}{format_seconds(abs(parts[name]))} "
        f"{PART_NAMES[name].removeprefix('the ')}"
        for name in named[:_LISTED]
    )


def _share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{share:.3%}"
