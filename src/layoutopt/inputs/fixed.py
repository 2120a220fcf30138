"""Fixed axes that no layout of the job can have: refused before the search, with what would do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.rules import Broken, broken_rules, divisors, nearest_of
from layoutopt.errors import RuleError

_SHARES_GPUS = ("tp", "cp", "pp", "dp")
_SHARES_BATCH = ("dp", "micro_batch", "microbatches")
_NEEDS = {
    "tensor_divides_heads": ("tp",),
    "context_halves_the_sequence": ("cp",),
    "a_layer_per_stage": ("pp",),
    "even_chunks": ("pp", "vpp"),
    "interleave_whole_groups": ("pp", "vpp", "microbatches"),
    "experts_divide": ("ep",),
    "framework_shards": ("zero_stage", "pp"),
    "framework_orders": ("axis_order",),
    "framework_heads": ("tp",),
    "framework_halves": (),
    "framework_experts": ("tp", "sequence_parallel"),
    "framework_exchanges": ("cp_kind",),
    "framework_cuts_experts": ("etp",),
    "framework_stages": ("pp",),
    "framework_packs": ("micro_batch",),
    "framework_axes": (),
    "framework_offloads": (),
}
"""Rule of costmodel.rules -> the axes that decide it; with all of them fixed no other axis can
mend it, the rest being at 1, where every rule is mildest."""


def refuse_impossible(
    fixed: Mapping[str, int | str | bool],
    job: Job,
    *,
    any_gpus: bool = False,
    any_batch: bool = False,
) -> None:
    """Raises RuleError where ``fixed`` alone excludes every layout of ``job``.

    ``any_gpus``, ``any_batch``: the GPU count or the batch is searched too, and need not be what
    the axes multiply to.
    """
    if not any_gpus:
        _refuse_product(fixed, _SHARES_GPUS, job.gpus, "gpus", "GPUs")
    batch = job.training.global_batch
    if not any_batch:
        _refuse_product(
            fixed, _SHARES_BATCH, batch, "global_batch", "sequences of the global batch"
        )
    values: dict[str, Any] = dict(fixed)
    broken = [
        rule
        for rule in _broken_at_mildest(job, values)
        if rule.rule in _NEEDS
        and all(axis in fixed for axis in _NEEDS[rule.rule])
        and (rule.rule != "framework_axes" or rule.field in fixed)
        # Which experts divide the GPUs is another question at another count.
        and not (any_gpus and rule.rule == "experts_divide")
    ]
    if broken:
        raise _refusal(broken[0])


def _broken_at_mildest(job: Job, fixed: Mapping[str, Any]) -> list[Broken]:
    """The rules that ``fixed`` breaks, the other axes where every rule is mildest."""
    mildest: dict[str, Any] = {"sequence_parallel": False}
    if fixed.get("offload_optimizer"):
        mildest["zero_stage"] = 1
    first, *others = (
        broken_rules(job, Layout(**{**mildest, "recompute": recompute, **fixed}))
        for recompute in RECOMPUTE
    )
    # What some way to recompute mends is not broken by the rest.
    every = [{(rule.rule, rule.field) for rule in found} for found in others]
    found = [rule for rule in first if all((rule.rule, rule.field) in one for one in every)]
    if fixed.get("cp_kind") in (None, Layout().cp_kind):
        return found
    # A kind of context parallelism that the framework has not got is none without cp either.
    exchanged = broken_rules(job, Layout(**{**mildest, "cp": 2, **fixed}))
    return found + [rule for rule in exchanged if rule.rule == "framework_exchanges"]


def _refuse_product(
    fixed: Mapping[str, int | str | bool], axes: tuple[str, ...], total: int, option: str, unit: str
) -> None:
    """The fixed ones of ``axes`` have to divide ``total``, and to be it when all are fixed."""
    shares = {axis: int(fixed[axis]) for axis in axes if axis in fixed}
    product = math.prod(shares.values())
    every = len(shares) == len(axes)
    if total % product == 0 and (product == total or not every):
        return
    words = " x ".join(f"{axis} {value}" for axis, value in shares.items())
    is_product = f" = {product:,}" if len(shares) > 1 else ""
    raise RuleError(
        f"fix {words}{is_product} {'is not' if every else 'does not divide'} the {total:,} {unit}",
        field="fix",
        value=",".join(f"{axis}={value}" for axis, value in shares.items()),
        nearest=_beside(shares, total, option),
    )


def _beside(shares: Mapping[str, int], total: int, option: str) -> tuple[str, ...]:
    """Values of the one fixed axis that divide ``total``; else totals that the product divides."""
    if len(shares) == 1:
        axis, value = next(iter(shares.items()))
        return tuple(f"{axis}={fit}" for fit in nearest_of(divisors(total), value, 2))
    product = math.prod(shares.values())
    below = total // product * product
    return tuple(f"{option}={size}" for size in (below, below + product) if size)


def _refusal(rule: Broken) -> RuleError:
    words = (str(one).lower() if isinstance(one, bool) else one for one in rule.nearest)
    nearest = tuple(f"{rule.field}={value}" for value in words)
    return RuleError(f"fix: {rule.message}", field="fix", value=str(rule.value), nearest=nearest)
