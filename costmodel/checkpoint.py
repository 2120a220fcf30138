"""What a checkpoint weighs and costs, and the plan of a run with its save interval."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel.adapters import FROZEN_BYTES, adapter_parameters
from layoutopt.costmodel.axes import Array, Ints, ints
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.planned import expected_stops, stop_s
from layoutopt.costmodel.reliability import (
    best_interval_steps,
    daly_s,
    job_mtbf_s,
    overheads,
    wall_time,
    young_s,
)
from layoutopt.costmodel.results import Checkpoint, Run
from layoutopt.hardware_profiles.schema import PlannedStops
from layoutopt.units import HOUR

JOB_HANG_SHARE = 0.099
"""Share of incidents that are hangs, found by a collective's time-out and not by an error.
Source: Wan et al. 2025, ByteRobust (arXiv 2509.16293); data/failures.jsonl, byterobust-fleet."""
HANG_DETECT_S = 600.0
"""Until a time-out fires. Source: ByteRobust, as above ("about 10 min by timeout")."""
ERROR_DETECT_S = 30.0
"""Until an error with a message is acted on. Source: ByteRobust, as above."""
RESTART_S = 600.0
"""From a detected failure to training again, on a replaced node, loading aside: the geometric
middle of 5 and 20 minutes. Source: Kokolis et al. 2024 (arXiv 2410.21680); data/failures.jsonl,
meta-rsc1. ByteRobust says "often more than 10 minutes" at 10,000 GPUs."""
PLANNED_PER_FAILURE = 47 / 419
"""Announced stops per unplanned one. Source: Llama Team 2024 (arXiv 2407.21783), section 3.3.4."""
ASYNC_STALL_S = 6.3
"""Pause of an asynchronous save (copy to host memory). Source: PyTorch blog 2024-06-12 (7B, 6.3 s);
6.8 s in ByteRobust, table 8 (70B). Engines made for it reach 0.04 to 0.6 s."""
_MASTER_AND_MOMENTS_BYTES = 12
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Recovery:
    """How a site recovers from failures; the defaults stand in docs/reliability.md."""

    detect_s: float = JOB_HANG_SHARE * HANG_DETECT_S + (1 - JOB_HANG_SHARE) * ERROR_DETECT_S
    """Mean time until a failure is noticed: 86 s."""
    restart_s: float = RESTART_S
    planned_per_failure: float = PLANNED_PER_FAILURE
    """Announced stops per failure, where ``stops`` does not say."""
    stops: PlannedStops | None = None


DEFAULT_RECOVERY = Recovery()


def recovery_of(job: Job) -> Recovery:
    """What the job's cluster says of itself; the defaults for what it leaves out."""
    cluster, usual = job.cluster, DEFAULT_RECOVERY
    return Recovery(
        detect_s=usual.detect_s if cluster.detect_s is None else cluster.detect_s,
        restart_s=usual.restart_s if cluster.restart_s is None else cluster.restart_s,
        planned_per_failure=0.0 if cluster.planned_stops else usual.planned_per_failure,
        stops=cluster.planned_stops,
    )


def bytes_per_parameter(weight_bytes: int) -> int:
    """Bytes of a checkpoint per parameter: 14, or 12 where the weights are kept in fp32.

    16-bit weights are saved beside the fp32 master copy and two moments (2 + 12; Megatron's 1T
    checkpoint of 13.8 TB has 13.7, Narayanan et al. 2021, section 5.10). fp32 weights are their
    own master copy (4 + 8, FSDP with fp32 parameters).
    """
    return _MASTER_AND_MOMENTS_BYTES + (weight_bytes if weight_bytes < 4 else 0)


def checkpoint_bytes(job: Job) -> int:
    """Bytes of one full checkpoint; no layout changes it. Of a run that trains adapters, theirs."""
    return saved_parameters(job) * bytes_per_parameter(job.software.weight_bytes)


def saved_parameters(job: Job) -> int:
    """Parameters that a checkpoint holds: those that are trained."""
    if job.training.lora:
        return adapter_parameters(job)
    return count(job.model).total_with_mtp


def frozen_bytes(job: Job) -> int:
    """Bytes of the weights that a restart loads beside the checkpoint: those that never change."""
    return FROZEN_BYTES * count(job.model).total_with_mtp if job.training.lora else 0


def writer_nodes(job: Job, tp: Ints, pp: Ints, zero_stage: Ints) -> Ints:
    """Nodes that write a checkpoint.

    With a sharded optimizer every GPU writes its shard. Without one, a single replica writes:
    tp neighbours on each of pp stages, which lie gpus/pp ranks apart (tp innermost, pp outermost).
    """
    per_node = job.cluster.gpus_per_node
    nodes = -(-job.gpus // per_node)
    one_replica = np.minimum(nodes, pp * -(-tp // per_node))
    return np.where(zero_stage >= 1, nodes, one_replica)


def checkpoint_cost(
    job: Job, tp: int | Ints, pp: int | Ints, zero_stage: int | Ints
) -> tuple[int, Array, Array]:
    """Bytes of a checkpoint, seconds until it is durable, seconds training stands still for it.

    write = max(bytes / aggregate bandwidth, bytes per writing node / bandwidth of a node). A
    synchronous save stops training for all of it, an asynchronous one (Software.async_save) for
    the copy to host memory. Times have the broadcast shape of the axes, at least one dimension.
    """
    size = checkpoint_bytes(job)
    storage = job.cluster.storage
    nodes = writer_nodes(job, *(ints(axis) for axis in (tp, pp, zero_stage)))
    write = size / np.minimum(storage.write_bytes_per_s, nodes * storage.write_bytes_per_s_per_node)
    stall = np.minimum(write, ASYNC_STALL_S) if job.software.async_save else write
    return size, write, stall


def restart_time_s(job: Job, size_bytes: int, recovery: Recovery | None = None) -> float:
    """From a failure to training again: detection, restart and loading ``size_bytes``, and frozen
    weights.

    Storage whose read bandwidth is not given reads as fast as it writes (A17).
    """
    storage = job.cluster.storage
    load = (size_bytes + frozen_bytes(job)) / (
        storage.read_bytes_per_s or storage.write_bytes_per_s
    )
    recovery = recovery or recovery_of(job)
    return recovery.detect_s + recovery.restart_s + load


def announced(
    job: Job,
    wall_s: float | Array,
    write_s: float | Array,
    size_bytes: int,
    recovery: Recovery | None = None,
) -> tuple[Array, Array]:
    """Expected number of the stops that the site announces, and their seconds, in a run that takes
    ``wall_s`` without them and without pauses for evaluation. Nothing where it says none: the
    default share is in ``wall_s``."""
    recovery = recovery or recovery_of(job)
    if recovery.stops is None:
        return np.zeros(1), np.zeros(1)
    anew_s = restart_time_s(job, size_bytes, replace(recovery, detect_s=0.0))
    each = stop_s(recovery.stops, write_s, anew_s)
    stops = expected_stops(recovery.stops, wall_s, each)
    return stops, stops * each


def run_wall_s(
    job: Job,
    step_time_s: float | Array,
    write_s: float | Array,
    stall_s: float | Array,
    size_bytes: int,
    recovery: Recovery | None = None,
) -> Array:
    """Wall time of the run with its best save interval; equal to run_plan's, on arrays."""
    recovery = recovery or recovery_of(job)
    wall = wall_time(
        step_time_s,
        job.training.steps,
        write_s,
        stall_s,
        job_mtbf_s(job.cluster.failures_per_gpu_hour, job.gpus),
        restart_time_s(job, size_bytes, recovery),
        recovery.planned_per_failure,
    )
    apart = job.training.pauses_s + job.training.closing_saves * np.asarray(write_s)
    if recovery.stops is not None:
        wall = wall + announced(job, wall, write_s, size_bytes, recovery)[1]
    return wall + apart


def run_plan(
    job: Job,
    step_time_s: float,
    write_s: float,
    stall_s: float,
    size_bytes: int,
    interval_steps: int | None = None,
    recovery: Recovery | None = None,
) -> tuple[Checkpoint, Run]:
    """How often to save and how long the whole run takes, failures included.

    ``interval_steps``: a given interval instead of the best one. A run that never fails, or is
    over before the best interval is, saves once, at its end.
    """
    steps, recovery = job.training.steps, recovery or recovery_of(job)
    mtbf = job_mtbf_s(job.cluster.failures_per_gpu_hour, job.gpus)
    best = int(best_interval_steps(step_time_s, steps, write_s, stall_s, mtbf))
    k = best if interval_steps is None else max(1, min(interval_steps, steps))
    parts = overheads(
        step_time_s,
        steps,
        k,
        write_s,
        stall_s,
        mtbf,
        restart_time_s(job, size_bytes, recovery),
        recovery.planned_per_failure,
    )
    ideal, pauses = float(parts.ideal_s), job.training.pauses_s
    closing_s = job.training.closing_saves * write_s
    causes = parts.by_cause()
    stops, stops_s = (
        float(np.asarray(values).flat[0])
        for values in announced(job, float(parts.wall_s), write_s, size_bytes, recovery)
    )
    wall = float(parts.wall_s) + stops_s + (pauses + closing_s)
    checkpoint = _checkpoint(k, step_time_s, size_bytes, write_s, stall_s, mtbf, ideal)
    run = Run(
        tokens=job.training.tokens,
        steps=steps,
        ideal_s=ideal,
        wall_time_s=wall,
        overhead_s={**causes, "planned": causes["planned"] + (pauses + closing_s) + stops_s},
        overhead_share=(wall - ideal) / wall,
        expected_interruptions=float(parts.failures),
        cost_usd=cost_usd(job, wall),
        energy_kwh=energy_kwh(job, wall),
        planned_stops=recovery.planned_per_failure * float(parts.failures) + stops,
        planned_s={
            "stops": causes["planned"] + stops_s,
            "evaluation": pauses,
            "phases": closing_s,
        },
    )
    return checkpoint, run


def _checkpoint(
    interval_steps: int,
    step_time_s: float,
    size_bytes: int,
    write_s: float,
    stall_s: float,
    mtbf_s: float,
    ideal_s: float,
) -> Checkpoint:
    """The interval beside the classical ones, which are no longer than the run."""
    return Checkpoint(
        interval_steps=interval_steps,
        interval_s=interval_steps * step_time_s,
        bytes=size_bytes,
        write_s=write_s,
        stall_s=stall_s,
        young_s=min(float(young_s(stall_s, mtbf_s)), ideal_s),
        daly_s=min(float(daly_s(stall_s, mtbf_s)), ideal_s),
    )


def cost_usd(job: Job, wall_s: float) -> float | None:
    """GPU-hours of the wall time at the cluster's price; None without a price."""
    price = job.cluster.usd_per_gpu_hour
    return None if price is None else price * job.gpus * wall_s / HOUR


def energy_kwh(job: Job, wall_s: float) -> float | None:
    """Power of all GPUs over the wall time; None without a power."""
    watts = job.cluster.watts_per_gpu
    return None if watts is None else watts * job.gpus * wall_s / _JOULES_PER_KWH
