"""Bytes by hand: one layer's parameters, parts in KiB, 1,024 tokens in a microbatch."""

from __future__ import annotations

from typing import Any

from layoutopt.costmodel import memory
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.costmodel.model import Model
from layoutopt.units import KIB
from tests.costmodel.cases import SMALL, flag, job, one

LAYER = 61_568
"""Parameters of a layer: 61,440 in matrices and 128 in norms."""
ENDS = 2 * 65_536 + 64
SIXTEEN = {"gradient_bytes": 2}
"""2 + 2 + 12 bytes a parameter; PLAIN has fp32 gradients: 2 + 4 + 12."""


def kib(size: float) -> int:
    """Bytes in whole KiB, rounded up."""
    return int(-(-size // KIB))


def state(asked: Job, stage: int, **options: Any) -> memory.State:
    """State of the whole model on one stage, tp 1."""
    one_stage = (one(asked.model.layers), flag(True), flag(True))
    return memory.state_kib(asked, one(1), one(1), one(stage), *one_stage, **options)


def parts(asked: Job, stage: int, **options: Any) -> list[int]:
    """Weights, gradients, optimizer in KiB."""
    got = state(asked, stage, **options)
    return [int(got.weights[0]), int(got.gradients[0]), int(got.optimizer[0])]


def thousand(model: Model = SMALL, **changes: Any) -> Job:
    """1,024 tokens in a microbatch."""
    return job(model, seq_len=1024, **changes)


WORKSPACE = shipped().workspace_bytes // KIB
"""Whole KiB, on every stage."""


def buffers(asked: Job, stage: int, layers: int = 12, **options: Any) -> int:
    """KiB in hand beside shards and workspaces, on a middle stage."""
    middle = (flag(False), flag(False))
    got = memory.state_kib(asked, one(1), one(1), one(stage), one(layers), *middle, **options)
    return int(got.buffers[0]) - WORKSPACE
