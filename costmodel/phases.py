"""A run in phases: each with its own batch and sequence length, and what stands between them.

Symbols: N tokens of the whole run, n_p steps of phase p, W_p the expected wall time of a run of N
tokens that is like phase p throughout (checkpoint.run_plan), c_p = ceil(N / tokens of its step).

    wall = sum over p of  n_p / c_p * W_p  +  sum over restarts of (write + restart + load)

A phase is priced as its share of a run that is all like it: failures, saves and their interval are
those of the whole run, and a phase cut in two costs what it cost in one piece. Where the next phase
cannot go on in the same processes, a full save is written, the job starts anew, and the save is
read. Only the number of microbatches follows a batch without a restart (Megatron-LM's
``--rampup-batch-size``); a new sequence length, GPU count or layout takes one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from layoutopt.costmodel.checkpoint import cost_usd, energy_kwh, recovery_of, restart_time_s
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import Checkpoint, Estimate, Memory, Run, StepTime
from layoutopt.costmodel.stages import even_split
from layoutopt.costmodel.training import Training

_SHARDS = (
    "tp",
    "pp",
    "ep",
    "etp",
    "vpp",
    "zero_stage",
    "shard_degree",
    "offload_optimizer",
    "layers_per_stage",
    "axis_order",
)
"""Keys of a layout that say which rank holds which weights and optimizer state."""


@dataclass(frozen=True)
class Phase:
    """A part of a run. ``global_batch`` counts sequences per optimizer step."""

    tokens: int
    seq_len: int
    global_batch: int
    gpus: int


@dataclass(frozen=True)
class PhaseJob:
    """A phase as a job of its own."""

    number: int
    """From 1."""
    phase: Phase
    job: Job
    """A run of all tokens of all phases that is like this phase throughout, without pauses."""
    steps: int
    pauses_s: float

    @property
    def share(self) -> float:
        """The phase's steps, as a share of those of ``job``."""
        return self.steps / self.job.training.steps


@dataclass(frozen=True)
class PhaseEstimate:
    """A phase under a layout; ``estimate.run`` is the phase alone."""

    planned: PhaseJob
    estimate: Estimate

    @property
    def layout(self) -> Layout:
        """Its layout."""
        return self.estimate.layout

    @property
    def step(self) -> StepTime:
        """One of its optimizer steps."""
        return self.estimate.step

    @property
    def memory(self) -> Memory:
        """Bytes per GPU."""
        return self.estimate.memory

    @property
    def checkpoint(self) -> Checkpoint:
        """How often to save in this phase."""
        return self.estimate.checkpoint

    @property
    def run(self) -> Run:
        """The phase alone, failures and checkpoints included."""
        return self.estimate.run


@dataclass(frozen=True)
class Restart:
    """What lies between two phases that do not go on in the same processes."""

    after: int
    """Number of the phase before it."""
    reshards: bool
    """Whether some rank holds other weights or optimizer state afterwards."""
    changes: tuple[str, ...]
    """Options and keys of the layout that change."""
    bytes: int
    """Parameters and optimizer state: what is written and read."""
    write_s: float
    restart_s: float
    load_s: float

    @property
    def total_s(self) -> float:
        """Seconds without training."""
        return self.write_s + self.restart_s + self.load_s


@dataclass(frozen=True)
class PhasedRun:
    """Layouts of all phases, with what the whole run takes."""

    phases: tuple[PhaseEstimate, ...]
    restarts: tuple[Restart, ...]
    run: Run

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One for each phase."""
        return tuple(one.layout for one in self.phases)

    @property
    def fits(self) -> bool:
        """Every phase fits in memory."""
        return all(one.memory.fits for one in self.phases)

    @property
    def main(self) -> PhaseEstimate:
        """The phase that takes longest; of equal ones the first."""
        return max(self.phases, key=lambda one: (one.run.wall_time_s, -one.planned.number))


def phase_jobs(job: Job, phases: Sequence[Phase]) -> tuple[PhaseJob, ...]:
    """Each phase as a job. What the last step of a phase takes beyond its tokens, the next does
    not need to; every phase takes a step at least."""
    tokens, ahead, done = sum(phase.tokens for phase in phases), 0, 0
    every, found = job.training.eval_interval_steps, []
    for number, phase in enumerate(phases, 1):
        changes = {
            "seq_len": phase.seq_len,
            "global_batch": phase.global_batch,
            "tokens": tokens,
            "eval_interval_steps": None,
        }
        training = job.training.model_copy(update=changes)
        steps = max(1, training.model_copy(update={"tokens": phase.tokens - ahead}).steps)
        ahead += _taken(training, steps) - phase.tokens
        pauses = (done + steps) // every - done // every if every else 0
        done += steps
        alone = replace(job, training=training, gpus=phase.gpus)
        found.append(PhaseJob(number, phase, alone, steps, pauses * job.training.eval_s))
    return tuple(found)


def _taken(training: Training, steps: int) -> int:
    """Tokens of so many steps; padding is no token."""
    positions = steps * training.tokens_per_step
    share = training.filled_share
    return positions if share == 1.0 else math.floor(positions * share)


def phase_estimate(planned: PhaseJob, layout: Layout) -> PhaseEstimate:
    """What ``layout`` needs and takes in one phase."""
    whole = estimate(planned.job, layout)
    run, share = whole.run, planned.share
    wall = share * run.wall_time_s + planned.pauses_s
    causes = {cause: share * seconds for cause, seconds in run.overhead_s.items()}
    causes["planned"] += planned.pauses_s
    ideal = share * run.ideal_s
    alone = Run(
        tokens=planned.phase.tokens,
        steps=planned.steps,
        ideal_s=ideal,
        wall_time_s=wall,
        overhead_s=causes,
        overhead_share=(wall - ideal) / wall,
        expected_interruptions=share * run.expected_interruptions,
        cost_usd=cost_usd(planned.job, wall),
        energy_kwh=energy_kwh(planned.job, wall),
        planned_stops=share * run.planned_stops,
        planned_s={
            part: share * seconds + (planned.pauses_s if part == "evaluation" else 0.0)
            for part, seconds in run.planned_s.items()
        },
    )
    return PhaseEstimate(planned, replace(whole, run=alone))


def restart_between(before: PhaseEstimate, after: PhaseEstimate) -> Restart | None:
    """What the next phase costs before it begins; None where it goes on in the same processes."""
    changes = changes_between(before, after)
    if not changes:
        return None
    job, save = before.planned.job, before.checkpoint
    restart_s = recovery_of(job).restart_s
    moved = any(key in _SHARDS for key in changes) or _replicas(before) != _replicas(after)
    return Restart(
        after=before.planned.number,
        reshards=moved,
        changes=changes,
        bytes=save.bytes,
        write_s=save.write_s,
        restart_s=restart_s,
        load_s=anew_s(job, save.bytes) - restart_s,
    )


def anew_s(job: Job, size_bytes: int) -> float:
    """From a save to training again, planned: a restart and the load, no failure to notice."""
    return restart_time_s(job, size_bytes, replace(recovery_of(job), detect_s=0.0))


def _replicas(one: PhaseEstimate) -> tuple[int, bool]:
    """Ranks that share the weights of a stage; zbv puts both ends of a model on one stage."""
    return one.layout.dp * one.layout.cp, one.layout.schedule == "zbv"


def changes_between(before: PhaseEstimate, after: PhaseEstimate) -> tuple[str, ...]:
    """What a running job cannot change: sequence length, GPUs, and all of the layout but the number
    of microbatches."""
    old, new = before.planned.phase, after.planned.phase
    found = [name for name in ("seq_len", "gpus") if getattr(old, name) != getattr(new, name)]
    layers = before.planned.job.model.layers
    mine, its = _said(before.layout, layers), _said(after.layout, layers)
    return (*found, *(key for key in mine if mine[key] != its[key]))


def _said(layout: Layout, layers: int) -> dict[str, object]:
    """The keys that a running job keeps, with the split of the layers written out."""
    said = {item.name: getattr(layout, item.name) for item in fields(layout)}
    said["layers_per_stage"] = layout.layers_per_stage or even_split(layers, layout.pp)
    if layout.shard_degree == layout.dp * layout.cp:
        said["shard_degree"] = None
    del said["microbatches"]
    return said


def phased_run(planned: Sequence[PhaseJob], layouts: Sequence[Layout]) -> PhasedRun:
    """The whole run under one layout for each phase."""
    phases = tuple(map(phase_estimate, planned, layouts))
    found = [(one, restart_between(one, after)) for one, after in pairwise(phases)]
    between = [(one.planned.job, restart) for one, restart in found if restart]
    return PhasedRun(
        phases=phases,
        restarts=tuple(restart for _, restart in between),
        run=_whole_run(phases, between),
    )


def _whole_run(phases: Sequence[PhaseEstimate], between: Sequence[tuple[Job, Restart]]) -> Run:
    """The phases' runs added up, with the restarts among the planned stops."""
    runs = [one.run for one in phases]
    stops = sum(restart.total_s for _, restart in between)
    wall, ideal = sum(run.wall_time_s for run in runs) + stops, sum(run.ideal_s for run in runs)
    causes = {cause: sum(run.overhead_s[cause] for run in runs) for cause in runs[0].overhead_s}
    causes["planned"] += stops
    costs = [run.cost_usd for run in runs]
    costs += [cost_usd(job, restart.total_s) for job, restart in between]
    energies = [run.energy_kwh for run in runs]
    energies += [energy_kwh(job, restart.total_s) for job, restart in between]
    return Run(
        tokens=sum(run.tokens for run in runs),
        steps=sum(run.steps for run in runs),
        ideal_s=ideal,
        wall_time_s=wall,
        overhead_s=causes,
        overhead_share=(wall - ideal) / wall,
        expected_interruptions=sum(run.expected_interruptions for run in runs),
        cost_usd=_added(costs),
        energy_kwh=_added(energies),
        planned_stops=sum(run.planned_stops for run in runs),
        planned_s={
            part: sum(run.planned_s[part] for run in runs) + (stops if part == "phases" else 0.0)
            for part in runs[0].planned_s
        },
    )


def _added(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
