"""What an answer rests on, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import Estimate, StageMemory
from layoutopt.costmodel.rules import broken_rules
from layoutopt.optimizer.alternatives import PART_NAMES
from layoutopt.optimizer.outcome import Alternative
from layoutopt.units import format_bytes, format_seconds

_TIGHT = 0.05
"""Memory binds where less than this share of it is to spare."""
_SHOWN = 3
_MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")


def explain(job: Job, plan: Estimate, alternatives: tuple[Alternative, ...]) -> tuple[str, ...]:
    """What binds, where the step's seconds go, what the choice traded, what comes next."""
    return (
        _memory(plan),
        _seconds(plan),
        *_traded(job, plan),
        _run(plan),
        *_next(plan, alternatives),
    )


def _memory(plan: Estimate) -> str:
    memory, worst = plan.memory, plan.memory.worst
    spare = memory.usable_bytes - worst.reserved
    binds = "binds" if spare < _TIGHT * memory.usable_bytes else "does not bind"
    return (
        f"Memory {binds}: stage {worst.stage} of {plan.layout.pp} holds most, "
        f"{format_bytes(worst.reserved)} of {format_bytes(memory.usable_bytes)} usable, "
        f"{format_bytes(spare)} to spare, in {worst.peak_moment}; mostly {_largest(worst)}."
    )


def _largest(stage: StageMemory) -> str:
    sizes = sorted(((int(getattr(stage, name)), name) for name in _MEMORY_PARTS), reverse=True)
    return " and ".join(f"{format_bytes(size)} {name}" for size, name in sizes[:2])


def _seconds(plan: Estimate) -> str:
    """The step by part, the largest first."""
    parts = sorted(plan.step.breakdown_s.items(), key=lambda part: -part[1])
    shown = [
        f"{PART_NAMES[name]} {format_seconds(s)} ({s / plan.step.time_s:.1%})"
        for name, s in parts[: _SHOWN + 1]
        if s > 0
    ]
    losses = [name for name, _ in parts if name != "compute"]
    return (
        f"Of the {format_seconds(plan.step.time_s)} step: {', '.join(shown)}. "
        f"What costs most beside compute is {PART_NAMES[losses[0]]}."
    )


def _traded(job: Job, plan: Estimate) -> Iterator[str]:
    """One choice changed at a time, everything else kept: what it would have cost."""
    for name, layout in _changes(plan.layout):
        if broken_rules(job, layout):
            continue
        other = estimate(job, layout)
        gap = other.step.time_s - plan.step.time_s
        words = f"{format_seconds(abs(gap))} {'longer' if gap >= 0 else 'shorter'} a step"
        memory = other.memory
        if not memory.fits:
            over = format_bytes(memory.worst.reserved - memory.usable_bytes)
            yield f"{name}: {words}, but stage {memory.worst.stage} would be {over} over."
        else:
            yield f"{name}: {words}, and it would fit."


def _changes(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Neighbours that a reader would ask about first."""
    if layout.recompute != "none":
        yield "Without recomputation", replace(layout, recompute="none")
    elif layout.pp > 1 or layout.tp > 1:
        yield "With full recomputation", replace(layout, recompute="full")
    if layout.tp % 2 == 0:
        half = replace(layout, tp=layout.tp // 2, sequence_parallel=layout.tp > 2)
        yield f"With tp {half.tp} instead of {layout.tp}", _more_data(half)
    if layout.pp % 2 == 0:
        half = replace(layout, pp=layout.pp // 2, vpp=layout.vpp if layout.pp > 2 else 1)
        schedule = "interleaved" if half.vpp > 1 else "1f1b"
        half = replace(half, schedule=schedule)
        yield f"With pp {half.pp} instead of {layout.pp}", _more_data(half)
    if layout.vpp > 1:
        yield "Without interleaving", replace(layout, vpp=1, schedule="1f1b")
    if layout.zero_stage < 3:
        higher = replace(layout, zero_stage=layout.zero_stage + 1)
        yield f"With ZeRO stage {higher.zero_stage}", higher


def _more_data(layout: Layout) -> Layout:
    """Twice the replicas, half the microbatches: the GPUs and the batch stay used up."""
    if layout.microbatches % 2 == 0:
        return replace(layout, dp=layout.dp * 2, microbatches=layout.microbatches // 2)
    return replace(layout, dp=layout.dp * 2)


def _run(plan: Estimate) -> str:
    run, save = plan.run, plan.checkpoint
    return (
        f"A checkpoint every {save.interval_steps:,} steps ({format_seconds(save.interval_s)}) "
        f"takes {format_seconds(save.stall_s)} of training time; with {run.expected_interruptions:,.1f} "
        f"expected failures, overheads are {run.overhead_share:.1%} of the run's "
        f"{format_seconds(run.wall_time_s)}."
    )


def _next(plan: Estimate, alternatives: tuple[Alternative, ...]) -> Iterator[str]:
    if not alternatives:
        yield "No layout with another tp, cp, pp or ep fits."
        return
    other = alternatives[0].estimate
    layout, more = other.layout, other.run.wall_time_s / plan.run.wall_time_s - 1
    axes = ", ".join(f"{axis} {getattr(layout, axis)}" for axis in ("tp", "cp", "pp", "dp"))
    yield f"The next best other shape, {axes}, takes {more:.1%} more wall time."
