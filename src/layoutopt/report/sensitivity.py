"""What the global batch decides: the same layout at half and at twice of it."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.results import Estimate
from layoutopt.costmodel.rules import broken_rules
from layoutopt.units import format_count, format_seconds


def batch_sentence(job: Job, plan: Estimate) -> str:
    """How step, MFU and run change when the batch is halved or doubled, microbatches with it."""
    training = job.training
    halves = _at(job, plan, 1, 2)
    doubles = _at(job, plan, 2, 1)
    here = f"{training.global_batch:,} sequences, {format_count(training.tokens_per_step)} tokens"
    return (
        f"Batch: {here} a step. On this layout half of it would {halves}; "
        f"twice of it would {doubles}."
    )


def _at(job: Job, plan: Estimate, times: int, over: int) -> str:
    """ "give a step of 3.1 s, MFU 37.2%, and a run 4.0% longer", or why there is none."""
    layout = plan.layout
    microbatches, odd = divmod(layout.microbatches * times, over)
    if odd or microbatches == 0:
        return f"not divide (dp {layout.dp} x micro_batch {layout.micro_batch})"
    batch = layout.dp * layout.micro_batch * microbatches
    other_job = replace(job, training=job.training.model_copy(update={"global_batch": batch}))
    other_layout = replace(layout, microbatches=microbatches)
    # Of several pools a layout need not use every GPU.
    gpus = layout.gpus if layout.pools_per_stage else job.gpus
    broken = broken_rules(replace(other_job, gpus=gpus), other_layout)
    if broken:
        return f"break a rule ({broken[0].message})"
    other = estimate(other_job, other_layout)
    ratio = other.run.wall_time_s / plan.run.wall_time_s - 1
    change = f"{abs(ratio):.1%} {'longer' if ratio >= 0 else 'shorter'}"
    return (
        f"give a step of {format_seconds(other.step.time_s)}, MFU {other.step.mfu:.1%} and a run "
        f"{change} for the same tokens"
    )
