"""The values that each axis may take by itself, and what they say in the words of a layout."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from layoutopt.costmodel.axes import RING
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS, PIPELINE_INSIDE, RECOMPUTE
from layoutopt.costmodel.rules import divisors
from layoutopt.costmodel.spreading import activations_fit, offload_fits
from layoutopt.optimizer import choices
from layoutopt.optimizer.question import Limit, Question

Values = dict[str, tuple[int, ...]]
"""Axis to the values it may take, rising; experts, sharding and mode by their codes (choices)."""

HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


def arithmetic_values(question: Question) -> Values:
    """Every value of each axis that divides what it has to divide, and that the framework has."""
    job = question.job
    gpus, batch, layers = job.gpus, job.training.global_batch, job.model.layers
    of_gpus = divisors(gpus)
    of_batch = divisors(batch)
    # Stages apart or a pipeline together: the latter is priced for whole replicas (see orders).
    inside = job.axis_order == PIPELINE_INSIDE
    chunk_counts = {n // pp for n in (layers, layers + 2) for pp in of_gpus if n % pp == 0}
    counts = sorted({v for count in chunk_counts if count > 0 for v in divisors(count)} | {1})
    return {
        "tp": tuple(tp for tp in of_gpus if tp <= job.model.heads),
        "cp": (1,) if inside else tuple(cp for cp in of_gpus if cp <= job.training.seq_len),
        "pp": tuple(pp for pp in of_gpus if pp <= layers and (pp > 1 or not inside)),
        "dp": tuple(dp for dp in of_gpus if batch % dp == 0),
        "experts": tuple(_expert_codes(job)),
        "vpp": tuple(v for v in counts if v <= layers),
        "micro_batch": of_batch,
        "microbatches": of_batch,
        "sharding": tuple(sorted(_sharding_codes(question))),
        "mode": tuple(sorted(_mode_codes(question))),
    }


def _expert_codes(job: Job) -> Iterator[int]:
    """ep divides the experts; etp, where the framework has it, their width and the heads."""
    moe = job.model.moe
    if moe is None:
        yield choices.experts_code(1)
        return
    cuts = [d for d in divisors(moe.expert_ffn) if d <= job.model.heads and job.gpus % d == 0]
    for ep in divisors(moe.experts):
        for etp in cuts if job.software.expert_tensor else [1]:
            yield choices.experts_code(ep, etp)


def _sharding_codes(question: Question) -> Iterator[int]:
    """ZeRO stages; over all replicas, or over groups of every size that may divide them."""
    job = question.job
    asked = question.fix.get("shard_degree")
    spread = divisors(job.gpus)[1:] if asked is None else [int(asked)]
    away = job.software.offload_optimizer or "offload_optimizer" in question.fix
    for zero_stage in range(4):
        groups = spread if zero_stage in job.software.shard_group_stages else []
        for degree in (0, *groups) if zero_stage else (0,):
            for keep in (0, 1) if zero_stage == 3 else (0,):
                for offload in (0, 1) if away and offload_fits(job, zero_stage) else (0,):
                    yield choices.sharding_code(zero_stage, degree, keep, offload)


def _mode_codes(question: Question) -> Iterator[int]:
    """Recompute, the framework's kinds of context parallelism, and whether what is saved goes to
    the host."""
    job = question.job
    away = job.software.offload_activations or "offload_activations" in question.fix
    kinds = {*job.software.cp_kinds, CP_KINDS[RING]}
    for recompute in range(len(RECOMPUTE)):
        for kind, name in enumerate(CP_KINDS):
            if name in kinds:
                fits = away and activations_fit(job, RECOMPUTE[recompute])
                for offload in (0, 1) if fits else (0,):
                    yield choices.mode_code(recompute, kind, offload)


def keys_of(axis: str, value: int) -> dict[str, int]:
    """What one value of an axis says by itself: keys of a layout, names by their codes."""
    if axis == "experts":
        held = choices.experts(value)
        return {"ep": held.ep, "etp": held.etp}
    if axis == "sharding":
        spread = choices.sharding(value)
        return {"zero_stage": spread.zero_stage, "offload_optimizer": spread.offload}
    if axis == "mode":
        way = choices.mode(value)
        return {
            "recompute": way.recompute,
            "cp_kind": way.cp_kind,
            "offload_activations": way.offload,
        }
    return {axis: value}


_NAMES: dict[str, tuple[str, ...]] = {"recompute": RECOMPUTE, "cp_kind": CP_KINDS}


def fixed(question: Question, key: str) -> int:
    """The value that ``fix`` gives ``key``, as an integer."""
    value = question.fix[key]
    return _NAMES[key].index(str(value)) if key in _NAMES else int(value)


def word_of(key: str, value: int) -> str:
    """A value of a key as a person writes it."""
    if key.startswith("offload"):
        return "true" if value else "false"
    return _NAMES[key][value] if key in _NAMES else str(value)


def within(limits: Iterable[Limit], key: str, value: int) -> bool:
    """Whether ``value`` keeps to every limit on ``key``."""
    return all(bool(HOLDS[limit.op](value, limit.bound)) for limit in limits if limit.axis == key)
