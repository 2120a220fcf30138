"""Figures of memory that no formula gives: fitted to measured runs, one set for all of them.

data/memory.yaml holds them, written by benchmarks/fit_memory.py with the date and the records.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from layoutopt.costmodel.model import Frozen

if TYPE_CHECKING:
    from layoutopt.costmodel.job import Job


class MemoryFit(Frozen):
    """Allocator, context, workspaces, and what unfused operators keep."""

    fragmented_per_mille: int
    """Allocator reserve over allocated bytes where the device runs full and the allocator gives
    back what it caches: blocks that are split too finely to use (A10)."""
    reserve_per_mille: int
    """The same as long as there is room: measured runs show 3 to 9% (A10)."""
    old_reserve_per_mille: int
    """The same before PyTorch 2."""
    context_bytes: int
    """CUDA context, kernels and NCCL buffers outside the allocator (A11)."""
    workspace_bytes: int
    """Workspaces of cuBLAS and Transformer Engine inside the allocator (A11): what small runs hold
    between steps beside their state."""
    unfused_norm_bytes: float
    """Extra bytes per element that a norm in the framework's own operators keeps for its backward
    pass: its fp32 input, and its normalised value in 16 bit or in fp32 (A13)."""
    eager_rotary_bytes: float
    """Extra bytes per element of queries and keys where rotary embedding is not one kernel: its
    fp32 input (A13)."""
    eager_hidden_bytes: float
    """Bytes per hidden element and layer of dropout masks and copies of the residual stream in
    stacks of unfused operators (A13)."""


@lru_cache(maxsize=1)
def shipped() -> MemoryFit:
    """The fit of data/memory.yaml."""
    text = resources.files("layoutopt.costmodel").joinpath("data/memory.yaml").read_text("utf-8")
    table: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return MemoryFit(**table["shared"])


def memory_fit(job: Job) -> MemoryFit:
    """The job's own figures, else the shipped ones."""
    return job.memory_fit or shipped()
