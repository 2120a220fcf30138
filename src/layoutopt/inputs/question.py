"""What ``solve`` is asked beside the job: what is fixed, limited and least, how long to look."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from layoutopt.costmodel.critical import at_batch, critical_batch
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.placement import ordered
from layoutopt.errors import InputError
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.inputs.filled import Notebook
from layoutopt.inputs.fixed import refuse_impossible
from layoutopt.inputs.limits import (
    fix_pairs,
    limit_text,
    read_fix,
    read_limits,
    refuse_contradictions,
)
from layoutopt.inputs.machine import read_range
from layoutopt.inputs.numbers import (
    MOST_BATCH,
    MOST_GPUS,
    MOST_TOKENS,
    read_count,
    read_money,
    read_seconds,
    read_watts,
)
from layoutopt.inputs.pipeline import limits_of, pipeline_words, read_pipeline
from layoutopt.inputs.words import choice, yes_or_no
from layoutopt.optimizer.question import Budget, Objective, Question

OBJECTIVES = ("time", "cost", "energy", "gpus")
CRITICAL_REASON = (
    "in tokens: 2.1e8 / loss^4.76 (Kaplan 2020, arXiv 2001.08361) at the loss of Hoffmann 2022; a "
    "run needs 1 + batch / this times the tokens (McCandlish 2018, arXiv 1812.06162)"
)
MOST_ALTERNATIVES = 100
MOST_WORKERS = 256


class AskedOfSolve:
    """The options of ``solve`` that are not the job's, read before the job is."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._fixed, self._limits = read_fix(options.get("fix")), read_limits(options.get("limit"))
        refuse_contradictions(self._fixed, self._limits)
        self._counts = read_range(options.get("gpus"), "gpus", MOST_GPUS)
        self._batches = read_range(options.get("global_batch"), "global_batch", MOST_BATCH)

    @property
    def of_job(self) -> Mapping[str, Any]:
        """The options for the job: of a range the largest number."""
        ranges = {"gpus": self._counts, "global_batch": self._batches}
        largest = {name: ends[1] for name, ends in ranges.items() if ends}
        return {**self._options, **largest}

    def question(self, job: Job, notebook: Notebook) -> Question:
        """The question about ``job``."""
        options = self._options
        ranged = bool(self._counts or self._of_fragment(job.cluster))
        batched = self._batches is not None
        refuse_impossible(self._fixed, job, any_gpus=ranged, any_batch=batched)
        self._refuse_pools(job)
        critical = self._critical(job, notebook)
        if not batched and math.isfinite(critical):
            training = at_batch(job.training, job.training.global_batch, critical)
            job = replace(job, training=training)
        pipeline = read_pipeline(fix_pairs(options.get("fix")), job)
        limits = (*self._limits, *limits_of(pipeline))
        refuse_contradictions(self._fixed, limits)
        job = ordered(job, str(self._fixed.get("axis_order", job.axis_order)))
        objective = _read_objective(options.get("objective"), job.cluster, notebook, ranged=ranged)
        pareto = yes_or_no(options.get("pareto", False), "pareto")
        if pareto and not ranged:
            raise _needs_range("pareto")
        late = read_seconds(options["deadline"], "deadline") if "deadline" in options else None
        top = _count_or(options, "top", Question.top, notebook, least=0, most=MOST_ALTERNATIVES)
        return Question(
            job=job,
            fix=self._fixed,
            limits=limits,
            objective=objective,
            deadline_s=late,
            budget_usd=_read_dollars(options.get("budget"), job.cluster),
            max_power_w=_read_power(options.get("max_power"), job.cluster),
            counts=self._counts or self._of_fragment(job.cluster),
            batches=self._batches,
            critical_tokens=critical,
            pareto=pareto,
            sensitivity=yes_or_no(options.get("sensitivity", False), "sensitivity"),
            top=top,
            pipeline=pipeline,
        )

    def _of_fragment(self, cluster: Cluster) -> tuple[int, int] | None:
        """Of a list of nodes fewer may be taken, where no count was asked for."""
        if not cluster.switches or self._options.get("gpus") is not None:
            return None
        return cluster.gpus_per_node, cluster.all_gpus or 0

    def _refuse_pools(self, job: Job) -> None:
        """Raises InputError for what is asked of one GPU type: pools decide what they use."""
        asked = {
            "gpus": self._counts is not None,
            "global_batch": self._batches is not None,
            "sensitivity": bool(self._options.get("sensitivity")),
            "rejected": "rejected" in self._options,
        }
        field = next((name for name, wanted in asked.items() if wanted), None)
        if job.cluster.pools and field is not None:
            what = {"gpus": "a range of GPU counts", "global_batch": "a range of batches"}
            raise InputError(
                f"{what.get(field, field)} needs a cluster of one GPU type: {job.cluster.name} has "
                f"{len(job.cluster.pools)} pools, of which the search itself decides what it uses",
                field=field,
                value=str(self._options.get(field)),
            )

    def _critical(self, job: Job, notebook: Notebook) -> float:
        """The critical batch in tokens: given, or a default where batches are compared."""
        value = self._options.get("critical_batch")
        if value is not None:
            return read_count(value, "critical_batch", most=MOST_TOKENS, fraction=True)
        if self._batches is None:
            return math.inf
        tokens = critical_batch(job.model, job.training.tokens)
        notebook.fill("critical_batch", tokens, CRITICAL_REASON)
        return tokens


def _count_or(
    options: Mapping[str, Any],
    name: str,
    default: int,
    notebook: Notebook,
    *,
    least: int,
    most: int,
) -> int:
    if name not in options:
        notebook.fill(name, default, "default")
        return default
    return read_count(options[name], name, least=least, most=most)


def read_budget(options: Mapping[str, Any], notebook: Notebook) -> Budget:
    """Seconds and workers of the search."""
    workers = _count_or(options, "workers", Budget.workers, notebook, least=1, most=MOST_WORKERS)
    if "time_limit" in options:
        seconds = read_seconds(options["time_limit"], "time_limit", bare=True)
    else:
        seconds = Budget.seconds
        notebook.fill("time_limit", seconds, "default, in seconds")
    return Budget(seconds=seconds, workers=workers)


def _read_objective(
    value: object, cluster: Cluster, notebook: Notebook, *, ranged: bool
) -> Objective:
    if value is None:
        notebook.fill("objective", "time", "default: least wall time of the run")
        return "time"
    objective = choice(str(value), "objective", OBJECTIVES)
    if objective == "gpus" and not ranged:
        raise _needs_range("objective gpus")
    if objective == "cost" and cluster.usd_per_gpu_hour is None:
        raise _unpriced("objective", objective, "usd_per_gpu_hour", cluster)
    if objective == "energy" and cluster.watts_per_gpu is None:
        raise _unpriced("objective", objective, "watts_per_gpu", cluster)
    return cast("Objective", objective)


def _needs_range(what: str) -> InputError:
    return InputError(
        f"{what} needs GPU counts to choose from: give a range, as in --gpus 64..4096",
        field="gpus",
        nearest=("64..4096",),
    )


def _read_dollars(value: object, cluster: Cluster) -> float | None:
    if value is None:
        return None
    dollars = read_money(value, "budget")
    if cluster.usd_per_gpu_hour is None:
        raise _unpriced("budget", value, "usd_per_gpu_hour", cluster)
    return dollars


def _read_power(value: object, cluster: Cluster) -> float | None:
    if value is None:
        return None
    watts = read_watts(value, "max_power")
    if cluster.watts_per_gpu is None:
        raise _unpriced("max_power", value, "watts_per_gpu", cluster)
    return watts


def _unpriced(field: str, value: object, key: str, cluster: Cluster) -> InputError:
    return InputError(
        f"{field} {value} needs {key}, which cluster {cluster.name} does not state; "
        "add it in a cluster file",
        field=field,
        value=value,
        nearest=(key,),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def echo(question: Question, budget: Budget) -> dict[str, Any]:
    """The options of ``solve`` as the request echoes them."""
    return {
        "objective": question.objective,
        "fix": {**question.fix, **pipeline_words(question.pipeline)},
        "limit": [limit_text(limit) for limit in question.limits],
        "gpus_range": question.counts,
        "global_batch_range": question.batches,
        "critical_batch": question.critical_tokens
        if math.isfinite(question.critical_tokens)
        else None,
        "deadline_s": question.deadline_s,
        "budget_usd": question.budget_usd,
        "max_power_w": question.max_power_w,
        "pareto": question.pareto,
        "sensitivity": question.sensitivity,
        "top": question.top,
        "time_limit_s": budget.seconds,
        "workers": budget.workers,
    }
