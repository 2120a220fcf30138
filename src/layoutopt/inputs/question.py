"""What ``solve`` is asked beside the job: what is fixed, limited and least, how long to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.placement import ordered
from layoutopt.errors import InputError
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.inputs.filled import Notebook
from layoutopt.inputs.fixed import refuse_impossible
from layoutopt.inputs.limits import limit_text, read_fix, read_limits, refuse_contradictions
from layoutopt.inputs.machine import read_counts
from layoutopt.inputs.numbers import read_count, read_money, read_seconds, read_watts
from layoutopt.inputs.words import choice, yes_or_no
from layoutopt.optimizer.question import Budget, Objective, Question

OBJECTIVES = ("time", "cost", "energy", "gpus")
MOST_ALTERNATIVES = 100
MOST_WORKERS = 256


class AskedOfSolve:
    """The options of ``solve`` that are not the job's, read before the job is."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._fixed, self._limits = read_fix(options.get("fix")), read_limits(options.get("limit"))
        refuse_contradictions(self._fixed, self._limits)
        self._counts = read_counts(options.get("gpus"))

    @property
    def of_job(self) -> Mapping[str, Any]:
        """The options for the job: of a range of GPU counts the largest."""
        return {**self._options, "gpus": self._counts[1]} if self._counts else self._options

    def question(self, job: Job, notebook: Notebook) -> Question:
        """The question about ``job``."""
        options, ranged = self._options, self._counts is not None
        refuse_impossible(self._fixed, job, any_gpus=ranged)
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
            limits=self._limits,
            objective=objective,
            deadline_s=late,
            budget_usd=_read_dollars(options.get("budget"), job.cluster),
            max_power_w=_read_power(options.get("max_power"), job.cluster),
            counts=self._counts,
            pareto=pareto,
            sensitivity=yes_or_no(options.get("sensitivity", False), "sensitivity"),
            top=top,
        )


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


def echo(question: Question, budget: Budget) -> dict[str, Any]:
    """The options of ``solve`` as the request echoes them."""
    return {
        "objective": question.objective,
        "fix": dict(question.fix),
        "limit": [limit_text(limit) for limit in question.limits],
        "gpus_range": question.counts,
        "deadline_s": question.deadline_s,
        "budget_usd": question.budget_usd,
        "max_power_w": question.max_power_w,
        "pareto": question.pareto,
        "sensitivity": question.sensitivity,
        "top": question.top,
        "time_limit_s": budget.seconds,
        "workers": budget.workers,
    }
