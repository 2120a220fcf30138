"""Everything about a question except the layout, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from layoutopt.costmodel.efficiency import Efficiency
from layoutopt.costmodel.layout import PIPELINE_LAST
from layoutopt.costmodel.memory_fit import MemoryFit
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.software import Software
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.schema import Cluster


@dataclass(frozen=True)
class Job:
    """A model to train, on ``gpus`` GPUs of a cluster, with a framework."""

    model: Model
    cluster: Cluster
    training: Training
    software: Software
    gpus: int
    efficiency: Efficiency | None = None
    """A site's own figures; None: the shipped row of the GPU's architecture."""
    memory_fit: MemoryFit | None = None
    """Other figures of memory; None: the shipped ones."""
    axis_order: str = PIPELINE_LAST
    """Which ranks are neighbours; `estimate` takes the layout's (placement.ordered)."""
