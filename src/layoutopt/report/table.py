"""The answer for people: what to run, how long it takes, where the time goes, what was assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.costmodel.assumptions import ALL
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import BREAKDOWN, PART_NAMES, Estimate, Run
from layoutopt.inputs.layout_text import stages_text
from layoutopt.optimizer.outcome import SearchReport
from layoutopt.report.answer import Answer, Best, WhyNot
from layoutopt.report.console import bar, heading, render, table, wrapped
from layoutopt.report.front import front_part, worth_part
from layoutopt.report.misses import misses_part
from layoutopt.report.phases import phases_part
from layoutopt.report.placement import placement_part
from layoutopt.report.plan_json import layers_per_stage, layout_difference, layout_line
from layoutopt.report.reading import MEMORY_PARTS
from layoutopt.report.saving import checkpoint_rows, degraded_rows
from layoutopt.report.tuning import tuning_lines
from layoutopt.report.uncertainty import uncertainty
from layoutopt.units import DAY, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def as_table(answer: Answer, *, color: bool = False, assumptions: bool = False) -> str:
    """The whole report; ``assumptions`` adds the numbered ones that the figures lean on."""
    items: list[RenderableType] = [table(_first_lines(answer))]
    if answer.plan:
        items += phases_part(answer.phases)
        items += _seconds_part(answer.plan) + _memory_part(answer.plan)
        items += _failures_part(answer, answer.plan)
    if answer.misses:
        items += misses_part(answer)
    items += front_part(answer) + worth_part(answer) + placement_part(answer)
    items += _sentences("Why", answer.explain)
    items += _best_part(answer.best) + _why_not_part(answer.why_not) + _alternatives_part(answer)
    items += _filled_part(answer)
    if assumptions and answer.plan:
        items += _assumptions_part(answer.plan)
    items += _sentences("Warnings", answer.warnings)
    return render(items, color=color)


def _first_lines(answer: Answer) -> list[tuple[str, str]]:
    job = answer.request.job
    lines = [("Job", _job_line(answer)), *tuning_lines(job), *_layout_lines(answer)]
    if answer.plan:
        lines += _plan_lines(answer.plan)
    return [*lines, *_proof_lines(answer)]


def _job_line(answer: Answer) -> str:
    job = answer.request.job
    counts, training = count(job.model), job.training
    active = f" ({format_count(counts.active)} active)" if counts.active < counts.total else ""
    machines = " + ".join(f"{pool.all_gpus:,} x {pool.gpu.name}" for pool in job.cluster.pools)
    on = machines or f"{job.gpus:,} x {job.cluster.gpu.name}"
    return (
        f"{job.model.name}, {format_count(counts.total)} parameters{active}, on {on}; "
        f"{training.global_batch:,} sequences of {training.seq_len:,} tokens a step, "
        f"{training.precision}"
    )


def _layout_lines(answer: Answer) -> list[tuple[str, str]]:
    if answer.plan is None:
        reason = "none fits" if answer.status == "infeasible" else "none found in time"
        return [("Layout", reason)]
    layout, layers = answer.plan.layout, answer.request.job.model.layers
    lines = [("Layout", wrapped(layout_line(layout)))]
    if layout.pp > 1:
        lines.append(("Layers", f"{stages_text(layers_per_stage(layout, layers))} over the stages"))
    return lines


def _plan_lines(plan: Estimate) -> list[tuple[str, str]]:
    step, memory, save = plan.step, plan.memory, plan.checkpoint
    fits = "" if memory.fits else ": DOES NOT FIT"
    return [
        (
            "Step",
            f"{format_seconds(step.time_s)}, {step.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, "
            f"{step.tflops_per_gpu:,.0f} TFLOP/s/GPU, MFU {step.mfu:.1%}, HFU {step.hfu:.1%}",
        ),
        ("Run", _run_line(plan.run)),
        (
            "Memory",
            f"{format_bytes(memory.worst.reserved)} of {format_bytes(memory.usable_bytes)} usable "
            f"on the worst stage ({memory.worst.stage}){fits}",
        ),
        (
            "Checkpoint",
            f"every {save.interval_steps:,} steps ({format_seconds(save.interval_s)}): "
            f"{format_bytes(save.bytes, binary=False)}, written in {format_seconds(save.write_s)}",
        ),
    ]


def _run_line(run: Run) -> str:
    price = f", ${format_count(round(run.cost_usd))}" if run.cost_usd is not None else ""
    energy = f", {_energy_text(run.energy_kwh)}" if run.energy_kwh is not None else ""
    took, ideal = f"{run.wall_time_s / DAY:,.1f} days", f"{run.ideal_s / DAY:,.1f}"
    if run.wall_time_s < DAY:
        took, ideal = format_seconds(run.wall_time_s), format_seconds(run.ideal_s)
    return (
        f"{format_count(run.tokens)} tokens in {took} "
        f"({ideal} without failures and checkpoints){price}{energy}"
    )


def _energy_text(kwh: float) -> str:
    if kwh < 1e3:
        return f"{kwh:,.1f} kWh"
    return f"{kwh / 1e6:,.1f} GWh" if kwh >= 1e7 else f"{kwh / 1e3:,.1f} MWh"


def _proof_lines(answer: Answer) -> list[tuple[str, str]]:
    lines = []
    if answer.search is not None:
        lines.append(("Proof", _proof_line(answer)))
    residual = uncertainty(answer.request)
    share = residual["step_time_rel"]
    band = f"step time +/- {share:.0%}, " if share is not None else ""
    return [*lines, ("Uncertainty", f"{band}{residual['basis']}")]


def _proof_line(answer: Answer) -> str:
    search = answer.search
    if search is None:
        return ""
    legal = f"{search.candidates:,} legal layouts{_over_counts(search)}, {search.wall_s:.2f} s"
    if answer.status == "optimal":
        return f"optimal for {search.objective}: no other layout is better ({legal})"
    if answer.status == "infeasible":
        return f"infeasible: no layout meets the limits ({legal})"
    gap = f", gap at most {search.gap:.1%}" if search.gap is not None else ""
    if answer.status == "feasible":
        return f"time limit: best so far{gap}; another try may answer differently ({legal})"
    return f"time limit: neither a layout nor a proof ({legal})"


def _over_counts(search: SearchReport) -> str:
    if search.counts is None:
        return ""
    kind = "GPU counts and batches" if search.counts.batches else "GPU counts"
    return f" on {search.counts.legal:,} {kind}"


def _seconds_part(plan: Estimate) -> list[RenderableType]:
    total = plan.step.time_s
    rows = [
        (PART_NAMES[part], f"{seconds:.4g}", f"{seconds / total:.1%}", bar(seconds / total))
        for part in BREAKDOWN
        if (seconds := plan.step.breakdown_s[part]) > 0
    ]
    header = ("Where the step goes", "seconds", "share", "")
    return ["", table(rows, header, right=(1, 2))]


def _memory_part(plan: Estimate) -> list[RenderableType]:
    worst, usable = plan.memory.worst, plan.memory.usable_bytes
    rows = [
        (part, f"{size / 2**30:.2f}", f"{size / usable:.1%}", bar(size / usable))
        for part in MEMORY_PARTS
        if (size := getattr(worst, part)) > 0
    ]
    title = f"Memory of stage {worst.stage} ({worst.layers} layers)"
    return ["", table(rows, (title, "GiB", "of usable", ""), right=(1, 2))]


def _failures_part(answer: Answer, plan: Estimate) -> list[RenderableType]:
    rows = checkpoint_rows(answer.request.job, plan) + degraded_rows(plan, answer.degraded)
    return [heading("Failures and checkpoints"), table(rows)] if rows else []


def _sentences(title: str, sentences: tuple[str, ...]) -> list[RenderableType]:
    if not sentences:
        return []
    return [heading(title), table([("-", sentence) for sentence in sentences])]


def _assumptions_part(plan: Estimate) -> list[RenderableType]:
    """The assumptions that the figures lean on, by number, with where each is known to break."""
    if not plan.assumptions:
        return []
    rows = [(number, ALL[number].text, ALL[number].breaks) for number in plan.assumptions]
    return ["", table(rows, ("Leans on", "assumption", "breaks with"))]


def _best_part(best: Best | None) -> list[RenderableType]:
    """The best layout of a launch's job, and the seconds that the launch loses, by part."""
    if best is None:
        return []
    line = (
        f"{layout_line(best.estimate.layout)}: {format_seconds(best.estimate.step.time_s)} a step"
    )
    return [
        heading(f"Beside the best ({best.status})"),
        table([("-", line), ("-", best.sentence)]),
        *_by_part(best.by_part_s),
    ]


def _why_not_part(why_not: WhyNot | None) -> list[RenderableType]:
    if why_not is None:
        return []
    name = f" {layout_line(why_not.layout)}" if why_not.layout else ""
    items: list[RenderableType] = [heading(f"Why not{name}?"), table([("-", why_not.sentence)])]
    return [*items, *_by_part(why_not.by_part_s or {})]


def _by_part(by_part_s: dict[str, float]) -> list[RenderableType]:
    """What a step takes more than the best one's, or less."""
    rows = [
        (PART_NAMES[part], f"{seconds:+.4g}")
        for part, seconds in by_part_s.items()
        if abs(seconds) > 0
    ]
    return [table(rows, ("against the best, by part", "seconds"), right=(1,))] if rows else []


def _alternatives_part(answer: Answer) -> list[RenderableType]:
    if not answer.alternatives:
        return []
    best = answer.plan.layout if answer.plan else Layout()
    rows = [
        (
            layout_difference(one.estimate.layout, best),
            format_seconds(one.estimate.step.time_s),
            f"{one.estimate.memory.worst.reserved / 2**30:.1f}",
            one.reason,
        )
        for one in answer.alternatives
    ]
    return ["", table(rows, ("Next best: with", "step", "GiB", "why it loses"), right=(1, 2))]


def _filled_part(answer: Answer) -> list[RenderableType]:
    """What was filled in; options with one value and one reason share a line."""
    shared: dict[tuple[str, str], list[str]] = {}
    for entry in answer.request.filled:
        shared.setdefault((_value_text(entry.value), entry.reason), []).append(entry.option)
    rows = [(_options_text(names), *rest) for rest, names in shared.items()]
    return ["", table(rows, ("Filled in", "value", "why"))] if rows else []


def _options_text(names: list[str]) -> str:
    """``layout.ep, etp, vpp``: the part before the dot once."""
    head, dot, _ = names[0].rpartition(".")
    if any(name.rpartition(".")[:2] != (head, dot) for name in names):
        return ", ".join(names)
    return f"{head}{dot}{', '.join(name.rpartition('.')[2] for name in names)}"


def _value_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return format_count(value)
