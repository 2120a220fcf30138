"""A partly given layout made whole by the contract's rules, never by search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from layoutopt.costmodel.defaults import LayoutDefaults, default_layout_values
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.errors import InputError, RuleError
from layoutopt.inputs.filled import Notebook

_ONE = ("tp", "cp", "pp", "ep", "etp", "vpp")
_BATCH_PARTS = ("micro_batch", "microbatches")


def complete_layout(given: Mapping[str, Any], job: Job, notebook: Notebook) -> Layout:
    """The layout that ``given`` (see read_layout) means for ``job``.

    Raises RuleError where its products are not the job's GPUs and batch.
    """
    _refuse_other_totals(given, job)
    values = {key: value for key, value in given.items() if key not in ("gpus", "global_batch")}
    for axis in _ONE:
        if axis not in values:
            values[axis] = 1
            notebook.fill(f"layout.{axis}", 1, "not given: 1")
    values["dp"] = _replicas(values, job.gpus, notebook)
    likely = default_layout_values(job.software, tp=values["tp"], pp=values["pp"])
    _fill_batch(values, job.training.global_batch, likely, notebook)
    for key in ("zero_stage", "recompute", "sequence_parallel", "reshard", "cp_kind"):
        if key not in values:
            values[key] = getattr(likely, key)
            notebook.fill(f"layout.{key}", values[key], likely.reasons[key])
    if "schedule" not in values and values["vpp"] > 1:
        values["schedule"] = "interleaved"
    return Layout(**values)


def _refuse_other_totals(given: Mapping[str, Any], job: Job) -> None:
    """A layout that states its GPUs or batch has to state the job's."""
    totals = {"gpus": job.gpus, "global_batch": job.training.global_batch}
    for key, total in totals.items():
        if given.get(key, total) != total:
            raise InputError(
                f"layout.{key} {given[key]:,} contradicts {key} {total:,}",
                field=f"layout.{key}",
                value=given[key],
                nearest=(total,),
            )


def _replicas(values: Mapping[str, Any], gpus: int, notebook: Notebook) -> int:
    """dp, given or gpus / (tp * cp * pp); the product of all four has to be ``gpus``."""
    model_gpus = values["tp"] * values["cp"] * values["pp"]
    dp = values.get("dp")
    if dp is None and gpus % model_gpus == 0:
        filled = gpus // model_gpus
        notebook.fill("layout.dp", filled, f"{gpus:,} GPUs / (tp x cp x pp = {model_gpus:,})")
        return int(filled)
    if dp is not None and dp * model_gpus == gpus:
        return int(dp)
    words = " x ".join(f"{axis} {values[axis]}" for axis in ("tp", "cp", "pp"))
    replicas = max(1, gpus // model_gpus)
    if dp is None:
        message = f"{words} = {model_gpus:,} does not divide the {gpus:,} GPUs"
        beside: tuple[str, ...] = tuple(
            f"gpus={count * model_gpus}" for count in (replicas, replicas + 1)
        )
    else:
        message = f"{words} x dp {dp} = {dp * model_gpus:,} GPUs, but gpus is {gpus:,}"
        beside = (f"gpus={dp * model_gpus}",)
        if gpus % model_gpus == 0:
            beside = (f"dp={gpus // model_gpus}", *beside)
    raise RuleError(
        f"{message}; nearest: {', '.join(beside)}", field="layout", value=words, nearest=beside
    )


def _fill_batch(
    values: dict[str, Any], batch: int, likely: LayoutDefaults, notebook: Notebook
) -> None:
    """micro_batch and microbatches, so that dp * micro_batch * microbatches = ``batch``."""
    dp = values["dp"]
    if "micro_batch" not in values and "microbatches" not in values:
        values["micro_batch"] = _default_micro_batch(batch, dp, likely.micro_batch)
        notebook.fill("layout.micro_batch", values["micro_batch"], likely.reasons["micro_batch"])
    known = {name: int(values[name]) for name in _BATCH_PARTS if name in values}
    product = dp * math.prod(known.values())
    if batch % product != 0 or (len(known) == len(_BATCH_PARTS) and product != batch):
        raise _batch_error(batch, dp, known)
    for name in _BATCH_PARTS:
        if name not in known:
            values[name] = batch // product
            notebook.fill(f"layout.{name}", values[name], f"{batch:,} / ({_product(dp, known)})")


def _default_micro_batch(batch: int, dp: int, default: int) -> int:
    """The framework's default, made smaller until it divides what a replica gets."""
    per_replica = batch // dp
    return next(
        (size for size in range(min(default, per_replica), 1, -1) if per_replica % size == 0), 1
    )


def _batch_error(batch: int, dp: int, parts: Mapping[str, int]) -> RuleError:
    """dp x ... does not make the batch: the product, and the batches beside it that work."""
    product = dp * math.prod(parts.values())
    words = _product(dp, parts)
    lower = max(1, batch // product) * product
    beside = tuple(dict.fromkeys((lower, lower + product))) if batch != lower else (lower,)
    if len(parts) > 1:
        beside, why = (product,), f"is not the global batch of {batch:,} sequences"
    elif batch < product:
        beside, why = (product,), f"is more than the global batch of {batch:,} sequences"
    else:
        why = f"does not divide the global batch of {batch:,} sequences"
    return RuleError(
        f"{words} = {product:,} {why}; nearest global_batch: {' or '.join(map(str, beside))}",
        field="global_batch",
        value=batch,
        nearest=beside,
    )


def _product(dp: int, parts: Mapping[str, int]) -> str:
    return " x ".join([f"dp {dp}", *(f"{name} {value}" for name, value in parts.items())])
