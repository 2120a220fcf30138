"""The checkpoint plan beside the interval: tiers, what an interval off by two costs, quantiles of
the wall time, how much is kept, and how many spare nodes are worth holding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import Array, ints
from layoutopt.costmodel.checkpoint import (
    bytes_per_parameter,
    recovery_of,
    restart_time_s,
    saved_parameters,
    writer_nodes,
)
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.reliability import (
    interval_wall_s,
    job_mtbf_s,
    never_finishes,
    optimum_s,
    persist_time_s,
)
from layoutopt.costmodel.results import Estimate
from layoutopt.units import DAY

HARDWARE_SHARE = 0.78
"""Share of unplanned failures that take hardware with them, and so need another node. Source: Llama
Team 2024 (arXiv 2407.21783), section 3.3.4."""
SWITCH_SHARE = 35 / 419
"""Share that a switch or cable causes. Source: as above, table 5."""
REPAIR_S = 1.0 * DAY
"""Until a failed node can be used again: an assumption; sites differ from hours to weeks."""
KEPT = 2
"""Checkpoints kept on the shared storage: the newest, and the one before it until the next has been
written and read back."""
HOST_BYTES_PER_S_PER_GPU = 25e9
"""Copy from a GPU to its host's memory: 80% of PCIe 4.0 x16, 31.5 GB/s one way (PCI-SIG), which is
an assumption; PCIe 5.0 has twice that. ``storage.host`` of a cluster file says otherwise."""
LEAST_STALL_S = 0.04
"""Pause of the quickest background save that has been published. Source: Wan et al. 2025,
ByteRobust (arXiv 2509.16293), table 8; data/failures.jsonl, byterobust-ckpt-70b-byterobust-save."""
FLAT_SHARE = 0.001
"""Intervals whose wall time is within a thousandth of the best are as good."""
QUANTILES = {"p05": -1.6449, "p25": -0.6745, "p50": 0.0, "p75": 0.6745, "p95": 1.6449}
"""Shares of runs and their standard scores."""


@dataclass(frozen=True)
class SaveTier:
    """One place to save to, with the interval that is best for the failures it is for."""

    kind: str
    """host (the node's own memory), peer (another node's), shared (storage)."""
    outlives: tuple[str, ...]
    interval_steps: int
    write_s: float
    stall_s: float
    load_s: float
    bytes_per_node: int


@dataclass(frozen=True)
class CheckpointPlan:
    """What a run needs to know of its checkpoints besides how often."""

    mtbf_s: float | None
    """Mean time between failures of the job; None: nothing fails."""
    bytes_by_part: dict[str, int]
    writer_nodes: int
    bytes_per_writer: int
    load_s: float
    recovery_s: float
    """From a failure to training again: detection, restart, loading."""
    kept: int
    kept_bytes: int
    half_interval_share: float
    """Wall time with half the interval over the best, minus 1."""
    double_interval_share: float
    flat_steps: tuple[int, int]
    """Shortest and longest interval within FLAT_SHARE of the best wall time."""
    wall_time_quantiles_s: dict[str, float]
    lost_per_failure_s: float
    """Work repeated after a failure, in the mean."""
    spare_nodes: int
    tiers: tuple[SaveTier, ...]


def checkpoint_plan(job: Job, estimate: Estimate) -> CheckpointPlan:
    """The plan that goes with an estimate's interval."""
    save, run, layout = estimate.checkpoint, estimate.run, estimate.layout
    mtbf = job_mtbf_s(job.cluster.failures_per_gpu_hour, job.gpus)
    recovery = restart_time_s(job, save.bytes)
    usual = recovery_of(job)
    nodes = int(writer_nodes(job, *(ints(axis) for axis in _sharding(layout)))[0])
    relative = _relative_wall(job, estimate, mtbf, recovery)
    off = relative(np.array([max(1, save.interval_steps // 2), 2 * save.interval_steps]))
    persist = float(persist_time_s(save.write_s, save.stall_s))
    return CheckpointPlan(
        mtbf_s=mtbf if math.isfinite(mtbf) else None,
        bytes_by_part=bytes_by_part(job),
        writer_nodes=nodes,
        bytes_per_writer=-(-save.bytes // nodes),
        load_s=recovery - usual.detect_s - usual.restart_s,
        recovery_s=recovery,
        kept=KEPT,
        kept_bytes=KEPT * save.bytes,
        half_interval_share=float(off[0]),
        double_interval_share=float(off[1]),
        flat_steps=_flat(save.interval_steps, run.steps, relative),
        wall_time_quantiles_s=wall_quantiles_s(
            run.wall_time_s, run.ideal_s, mtbf, recovery, save.interval_s + save.stall_s, persist
        ),
        lost_per_failure_s=run.overhead_s["lost_work"] / max(run.expected_interruptions, 1e-12),
        spare_nodes=spare_nodes(mtbf / HARDWARE_SHARE, REPAIR_S, _nodes(job)),
        tiers=save_tiers(job, estimate, mtbf),
    )


def bytes_by_part(job: Job) -> dict[str, int]:
    """Bytes of a checkpoint by what they are; `checkpoint_bytes` is their sum."""
    parameters = saved_parameters(job)
    each = job.software.weight_bytes
    parts = {"weights": each * parameters, "moments": 8 * parameters}
    if bytes_per_parameter(each) > each + 8:
        parts["master_weights"] = 4 * parameters
    return parts


def _sharding(layout: Layout) -> tuple[int, int, int]:
    return layout.tp, layout.pp, layout.zero_stage


def _nodes(job: Job) -> int:
    return -(-job.gpus // job.cluster.gpus_per_node)


class _Relative:
    """Wall time of intervals over the plan's, minus 1; planned stops leave it as it is."""

    def __init__(self, job: Job, estimate: Estimate, mtbf_s: float, recovery_s: float) -> None:
        self.fixed = (estimate.checkpoint.write_s, estimate.checkpoint.stall_s, mtbf_s, recovery_s)
        self.step_s, self.steps = estimate.step.time_s, estimate.run.steps
        self.best = self._wall(np.array([estimate.checkpoint.interval_steps]))[0]

    def _wall(self, steps: Array) -> Array:
        interval = np.minimum(steps, self.steps)
        return interval_wall_s(self.step_s, self.steps, interval, *self.fixed)

    def __call__(self, steps: Array) -> Array:
        found: Array = self._wall(steps) / self.best - 1
        return found


def _relative_wall(job: Job, estimate: Estimate, mtbf_s: float, recovery_s: float) -> _Relative:
    return _Relative(job, estimate, mtbf_s, recovery_s)


def _flat(best: int, steps: int, relative: _Relative) -> tuple[int, int]:
    """Ends of the valley around ``best``, where the wall time is at most FLAT_SHARE higher; by
    halving, because the wall time rises on both sides."""

    def within(k: int) -> bool:
        return float(relative(np.array([k]))[0]) <= FLAT_SHARE

    low, beyond = best, 0
    while low - beyond > 1:
        middle = (low + beyond) // 2
        low, beyond = (middle, beyond) if within(middle) else (low, middle)
    high, beyond = best, steps + 1
    while beyond - high > 1:
        middle = (high + beyond) // 2
        high, beyond = (middle, beyond) if within(middle) else (high, middle)
    return low, high


def wall_quantiles_s(
    wall_s: float,
    ideal_s: float,
    mtbf_s: float,
    recovery_s: float,
    interval_s: float,
    persist_s: float = 0.0,
) -> dict[str, float]:
    """Quantiles of the wall time, around its expectation.

    Failures are n = wall / M in the mean, a Poisson number, and each costs c = R + P + U, with U
    uniform in the interval a: a compound Poisson sum with variance n E[c^2], E[c^2] = (R + P)^2 +
    (R + P) a + a^2 / 3, taken as normal (Wald; central limit). Never below the ideal time. Good
    while failures are rarer than saves; tests hold it against simulated runs.
    """
    if not math.isfinite(mtbf_s) or never_finishes(wall_s, ideal_s):
        return dict.fromkeys(QUANTILES, wall_s)
    fixed = recovery_s + persist_s
    second = fixed**2 + fixed * interval_s + interval_s**2 / 3
    deviation = math.sqrt(wall_s / mtbf_s * second)
    return {name: max(ideal_s, wall_s + z * deviation) for name, z in QUANTILES.items()}


def spare_nodes(node_mtbf_s: float, repair_s: float, nodes: int) -> int:
    """Spare nodes that are worth holding for a job of ``nodes``.

    Nodes in repair are Poisson with mean repair / M (Palm's theorem for M/G/infinity). With S
    spares the job stands still while more than S are in repair, and wastes all its nodes then; a
    spare wastes itself. The S that wastes least: S + nodes P(N > S).
    """
    if not math.isfinite(node_mtbf_s):
        return 0
    mean = repair_s / node_mtbf_s
    most = math.ceil(mean + 12 * math.sqrt(mean) + 12)
    number = np.arange(most + 1)
    log_odds = number * math.log(mean) - mean - np.array([math.lgamma(n + 1) for n in number])
    more = np.maximum(1 - np.cumsum(np.exp(log_odds)), 0.0)
    return int(np.argmin(number + nodes * more))


def save_tiers(job: Job, estimate: Estimate, mtbf_s: float) -> tuple[SaveTier, ...]:
    """The usual three tiers, each saved to as often as the failures that it is for ask.

    Level l's interval is the best one for its stall and for the time between failures that no
    quicker tier outlives (Moody et al. 2010, SCR: multi-level checkpointing), a multiple of the
    quicker tier's. All saves are in the background: training stands still for the copy to the
    host's memory. The plan's own interval is for the shared storage alone.
    """
    storage, layout, save = job.cluster.storage, estimate.layout, estimate.checkpoint
    ranks = job.gpus if layout.zero_stage >= 1 else layout.tp * layout.pp
    each = save.bytes / ranks
    copy = each / (storage.host_bytes_per_s_per_gpu or HOST_BYTES_PER_S_PER_GPU)
    host = max(copy, LEAST_STALL_S)
    network = each / job.cluster.levels[-1].usable_bytes_per_s
    per_node = math.ceil(each * min(job.cluster.gpus_per_node, ranks))
    load = save.bytes / (storage.read_bytes_per_s or storage.write_bytes_per_s)
    process = 1 - HARDWARE_SHARE
    levels = (
        ("host", ("process",), process, host, host, host),
        ("peer", ("process", "node"), HARDWARE_SHARE - SWITCH_SHARE, host + network, host, network),
        ("shared", ("process", "node", "switch"), SWITCH_SHARE, save.write_s, host, load),
    )
    found: list[SaveTier] = []
    for kind, outlives, share, write, stall, read in levels:
        wanted = float(optimum_s(min(stall, write), mtbf_s / share))
        wanted = min(max(wanted, write), estimate.run.ideal_s)
        quicker = found[-1].interval_steps if found else 1
        steps = quicker * max(1, round(wanted / estimate.step.time_s / quicker))
        found.append(SaveTier(kind, outlives, steps, write, min(stall, write), read, per_node))
    return tuple(found)
