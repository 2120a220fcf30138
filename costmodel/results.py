"""What an estimate says. Bytes are integers, seconds floats."""

from __future__ import annotations

from dataclasses import dataclass, field

from layoutopt.costmodel.layout import Layout

BREAKDOWN = (
    "compute",
    "recompute",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "offload",
    "pp_comm",
    "pipeline_bubble",
    "dp_comm",
    "optimizer",
    "other",
)
"""Parts of a step, in the order they are printed; they add up to the step time."""

PART_NAMES = {
    "compute": "compute",
    "recompute": "recomputed activations",
    "tp_comm": "tensor-parallel traffic",
    "cp_comm": "context-parallel traffic",
    "ep_comm": "expert traffic",
    "offload": "activations on their way to the host and back",
    "pp_comm": "messages between stages",
    "pipeline_bubble": "the pipeline bubble",
    "dp_comm": "data-parallel traffic that nothing hides",
    "optimizer": "the optimizer",
    "other": "everything else",
}
"""The same in words, as they follow a figure."""


@dataclass(frozen=True)
class StageMemory:
    """Peak bytes on one GPU of a pipeline stage, by part, at the stage's own worst moment."""

    stage: int
    layers: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    buffers: int
    reserve: int
    peak_moment: str
    pool: str | None = None
    """The pool that the stage stands on, on a cluster of several."""
    usable_bytes: int | None = None
    """Of that pool's GPUs; None: as Memory says."""

    @property
    def allocated(self) -> int:
        """Bytes that tensors hold."""
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.buffers
        )

    @property
    def reserved(self) -> int:
        """Allocated bytes plus what the allocator holds on top."""
        return self.allocated + self.reserve


@dataclass(frozen=True)
class Memory:
    """Memory of the worst stage and of every stage, per GPU."""

    capacity_bytes: int
    usable_bytes: int
    stages: tuple[StageMemory, ...]
    fits: bool
    host_bytes: int = 0
    """What offload keeps in host memory for one GPU of the worst stage."""
    host_usable_bytes: int = 0
    """What offload may fill of it; 0 where nothing is offloaded."""

    @property
    def worst(self) -> StageMemory:
        """The stage that holds, and so reserves, most of what its GPU has."""

        def share(stage: StageMemory) -> float:
            # Without pools all stages have one GPU, and the bytes themselves decide.
            return stage.allocated / (stage.usable_bytes or 1)

        return max(self.stages, key=share)


@dataclass(frozen=True)
class StepTime:
    """One optimizer step, in seconds, with where the seconds go."""

    time_s: float
    breakdown_s: dict[str, float]
    model_flops: float
    """(6 x active parameters + causal attention) x tokens of a step, recompute not counted."""
    model_flops_6nd: float
    hardware_flops: float
    """With recompute counted."""
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float
    mfu_6nd: float
    hfu: float


@dataclass(frozen=True)
class Checkpoint:
    """How often to save and what a save costs."""

    interval_steps: int
    interval_s: float
    bytes: int
    write_s: float
    stall_s: float
    young_s: float
    daly_s: float


@dataclass(frozen=True)
class Run:
    """The whole run, failures and checkpoints included."""

    tokens: int
    steps: int
    ideal_s: float
    wall_time_s: float
    overhead_s: dict[str, float]
    """checkpoint, lost_work, restart, planned (announced stops, pauses for evaluation):
    wall_time_s - ideal_s, by cause."""
    overhead_share: float
    """Overhead as a share of wall time."""
    expected_interruptions: float
    cost_usd: float | None
    energy_kwh: float | None
    planned_stops: float = 0.0
    """Expected number of announced stops."""
    planned_s: dict[str, float] = field(default_factory=dict)
    """stops, evaluation (pauses), phases (saves and restarts between them): the parts of
    overhead_s["planned"]."""


@dataclass(frozen=True)
class Estimate:
    """What one layout needs and takes."""

    layout: Layout
    memory: Memory
    step: StepTime
    checkpoint: Checkpoint
    run: Run
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
