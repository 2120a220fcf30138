"""Choices that go together, as one axis value each: an integer that says several keys of a layout.

A table has one column for such an axis where it would need one for each key. Codes are packed, so
that numbers and arrays are read alike, and sorted as the keys in their order are: ties go to the
smaller code, the plainer choice.

    experts    ep, etp
    sharding   zero_stage, shard_degree (0: all replicas), gathered weights kept, optimizer offload
    mode       recompute, cp_kind, activation offload
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layoutopt.costmodel.axes import Ints

_ETP_BITS = 20
_DEGREE_BITS = 24
"""10 million GPUs, the most there are, take 24 bits."""
PACKED = 1 << (_DEGREE_BITS + 4)
"""No code is as large."""


@dataclass(frozen=True)
class Experts:
    """ep and etp, of a number or of an array of codes."""

    ep: Any
    etp: Any


@dataclass(frozen=True)
class Sharding:
    """What is sharded over whom; ``keep``: ZeRO-3 keeps gathered weights until the backward
    pass."""

    zero_stage: Any
    degree: Any
    keep: Any
    offload: Any


@dataclass(frozen=True)
class Mode:
    """How a layer is run; the codes of costmodel.axes."""

    recompute: Any
    cp_kind: Any
    offload: Any


def experts_code(ep: int, etp: int = 1) -> int:
    """ep first, then etp."""
    return ep << _ETP_BITS | etp


def experts(code: int | Ints) -> Experts:
    """The keys of an ``experts`` code."""
    return Experts(code >> _ETP_BITS, code & ((1 << _ETP_BITS) - 1))


def sharding_code(zero_stage: int, degree: int = 0, keep: int = 0, offload: int = 0) -> int:
    """zero_stage first, then shard_degree."""
    return ((zero_stage << _DEGREE_BITS | degree) << 1 | keep) << 1 | offload


def sharding(code: int | Ints) -> Sharding:
    """The keys of a ``sharding`` code."""
    degree = code >> 2 & ((1 << _DEGREE_BITS) - 1)
    return Sharding(code >> (_DEGREE_BITS + 2), degree, code >> 1 & 1, code & 1)


def mode_code(recompute: int, cp_kind: int = 0, offload: int = 0) -> int:
    """recompute first, then cp_kind."""
    return (recompute << 2 | cp_kind) << 1 | offload


def with_recompute(code: Any, recompute: int) -> Any:
    """A ``mode`` code, or an array of them, with another recompute."""
    return recompute << 3 | code & 7


def mode(code: int | Ints) -> Mode:
    """The keys of a ``mode`` code."""
    return Mode(code >> 3, code >> 1 & 3, code & 1)
