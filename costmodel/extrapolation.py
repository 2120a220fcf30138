"""Where an estimate goes beyond what was measured, or leaves out what was asked."""

from __future__ import annotations

from collections.abc import Iterator

from layoutopt.costmodel.efficiency import efficiencies
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.placement import PRICED

MEASURED_GPUS = 10_000
"""Of the 1,727 step times in benchmarks/measured, 3 are from more GPUs than this, all of them
MLPerf runs of a few hundred steps; a test counts them."""


def warnings_for(job: Job, layout: Layout) -> tuple[str, ...]:
    """Sentences with numbers, for the answer; empty where the model stands on measured ground."""
    return (*_beyond_measurements(job, layout), *_left_out(job, layout))


def _beyond_measurements(job: Job, layout: Layout) -> Iterator[str]:
    gpu = job.cluster.gpu
    if job.gpus > MEASURED_GPUS:
        yield (
            f"{job.gpus:,} GPUs: nearly no measured run behind this model is larger than "
            f"{MEASURED_GPUS:,}; step times above that are extrapolated"
        )
    if gpu.architecture not in efficiencies():
        yield (
            f"{gpu.name}: nothing is known of the architecture {gpu.architecture!r}, its kernels "
            "are taken to reach the same shares of peak as Hopper's (A9)"
        )
    domain = job.cluster.levels[0].gpus
    if layout.tp > domain:
        yield (
            f"tp {layout.tp} leaves the scale-up domain of {domain} GPUs: few such runs are "
            "measured, and all of them were slow"
        )
    if layout.offload_optimizer or layout.offload_activations:
        yield "offload to host memory: no measured run stands behind its price (A21)"
    if job.training.lora:
        yield (
            "finetune lora: the uncertainty of the step time is that of runs of this kind, nearly "
            "all of which train every weight (A22)"
        )
    if job.training.precision == "fp32":
        yield "fp32: activations are counted in 2 bytes, as in mixed precision, but take twice that"


def _left_out(job: Job, layout: Layout) -> Iterator[str]:
    if layout.axis_order not in PRICED:
        yield f"axis_order {layout.axis_order} is priced as {PRICED[0]} (A18)"
    if layout.schedule in ("zb-h1", "zb-2p", "zbv"):
        yield (
            f"schedule {layout.schedule}: the mean stage's passes stand for all stages', and "
            "splitting the backward pass is taken to be free (A7)"
        )
