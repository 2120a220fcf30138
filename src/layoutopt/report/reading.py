"""Sentences about one estimate: what binds, where the seconds go, what failures cost."""

from __future__ import annotations

from layoutopt.costmodel.results import PART_NAMES, Estimate
from layoutopt.units import format_bytes, format_seconds

MEMORY_PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "buffers",
    "reserve",
)


def read_estimate(estimate: Estimate) -> list[str]:
    """What a reader should take from ``estimate``, with the numbers."""
    return [_memory_sentence(estimate), _time_sentence(estimate), _run_sentence(estimate)]


def _memory_sentence(estimate: Estimate) -> str:
    memory, worst = estimate.memory, estimate.memory.worst
    part = max(MEMORY_PARTS, key=lambda name: int(getattr(worst, name)))
    margin = memory.usable_bytes - worst.reserved
    verdict = f"{format_bytes(margin)} to spare" if memory.fits else f"{format_bytes(-margin)} over"
    return (
        f"Memory: stage {worst.stage} of {estimate.layout.pp} needs most, "
        f"{format_bytes(worst.reserved)} of {format_bytes(memory.usable_bytes)} usable "
        f"({verdict}), in the {worst.peak_moment}; its largest part is {part} with "
        f"{format_bytes(getattr(worst, part))}."
    )


def _time_sentence(estimate: Estimate) -> str:
    step = estimate.step
    losses = {part: s for part, s in step.breakdown_s.items() if part != "compute"}
    part = max(losses, key=lambda name: losses[name])
    return (
        f"Time: {step.breakdown_s['compute'] / step.time_s:.0%} of the "
        f"{format_seconds(step.time_s)} step is compute; the largest loss is {PART_NAMES[part]}, "
        f"{format_seconds(losses[part])} ({losses[part] / step.time_s:.1%})."
    )


def _run_sentence(estimate: Estimate) -> str:
    run = estimate.run
    causes = {cause: s for cause, s in run.overhead_s.items() if s > 0}
    if not causes:
        return "Run: no failures and no saves are counted; wall time is steps x step time."
    words = ", ".join(
        f"{cause.replace('_', ' ')} {format_seconds(s)}" for cause, s in causes.items()
    )
    return (
        f"Run: {run.expected_interruptions:,.1f} interruptions are expected; they and the "
        f"checkpoints take {run.overhead_share:.1%} of the wall time ({words})."
    )


def compare(other: Estimate, best: Estimate) -> str:
    """Why ``other`` is not ``best``: memory first, then the part of the step that costs most."""
    memory = other.memory
    if not memory.fits:
        over = format_bytes(memory.worst.reserved - memory.usable_bytes)
        return f"It does not fit: stage {memory.worst.stage} is {over} over what is usable."
    gap = other.step.time_s - best.step.time_s
    mine, its = other.step.breakdown_s, best.step.breakdown_s
    by_size = sorted(mine, key=lambda part: its[part] - mine[part], reverse=gap < 0)
    part = by_size[0]
    share = abs(gap) / best.step.time_s
    word = "slower" if gap >= 0 else "faster"
    change = mine[part] - its[part]
    return (
        f"Its step takes {format_seconds(other.step.time_s)}, {share:.1%} {word} than the best; "
        f"the largest difference is {PART_NAMES[part]}, "
        f"{'+' if change >= 0 else '-'}{format_seconds(abs(change))}."
    )
