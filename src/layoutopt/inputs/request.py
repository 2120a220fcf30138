"""A whole request: the question, and the echo of it that the answer carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.placement import ordered
from layoutopt.errors import InputError, RuleError
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.inputs.calibration import calibrated, read_site, with_defaults_of
from layoutopt.inputs.filled import Filled, Notebook
from layoutopt.inputs.fixed import refuse_impossible
from layoutopt.inputs.job import read_job, refuse_two_on_stdin
from layoutopt.inputs.layout_complete import complete_layout
from layoutopt.inputs.layout_text import LAYOUT_KEYS, read_layout
from layoutopt.inputs.limits import (
    limit_text,
    read_fix,
    read_limits,
    refuse_contradictions,
)
from layoutopt.inputs.machine import shown_path
from layoutopt.inputs.numbers import read_count, read_money, read_seconds
from layoutopt.inputs.options import (
    ESTIMATE_OPTIONS,
    SOLVE_OPTIONS,
    given,
    refuse_unknown,
)
from layoutopt.inputs.words import choice
from layoutopt.optimizer.question import Budget, Question

if TYPE_CHECKING:
    from layoutopt.calibration import Site

OBJECTIVES = ("time", "cost", "energy")
MOST_ALTERNATIVES = 100
MOST_WORKERS = 256
MOST_LAYOUT_BYTES = 2**20


@dataclass(frozen=True)
class Request:
    """What was asked, after defaults. ``asked`` holds the options that only one command has."""

    command: str
    job: Job
    model: str
    """As the person named it."""
    asked: dict[str, Any]
    filled: tuple[Filled, ...]
    warnings: tuple[str, ...]
    calibration: Site | None
    """The site's own figures, which ``job`` carries; None: the shipped ones."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON ``request``: plain options first, then what they resolved to."""
        job, training = self.job, self.job.training
        counts = count(job.model)
        return {
            "command": self.command,
            "model": self.model,
            "gpu": job.cluster.gpu.name,
            "cluster": job.cluster.name,
            "gpus": job.gpus,
            "seq_len": training.seq_len,
            "global_batch": training.global_batch,
            "tokens": training.tokens,
            "precision": training.precision,
            "framework": job.software.name,
            "calibration": self.calibration.to_dict() if self.calibration else None,
            **self.asked,
            "architecture": {
                **job.model.model_dump(),
                "parameters": counts.total,
                "active_parameters": counts.active,
            },
            "machine": _machine(job.cluster),
            "filled": [entry.to_dict() for entry in self.filled],
        }


@dataclass(frozen=True)
class SolveRequest(Request):
    """A request to search."""

    question: Question
    budget: Budget
    why_not: Layout | str | None
    """The layout to compare with, or the sentence that says why it is none."""


@dataclass(frozen=True)
class EstimateRequest(Request):
    """A request to price one layout."""

    layout: Layout


def read_solve(options: Mapping[str, Any], stdin: TextIO | None = None) -> SolveRequest:
    """The request that ``solve`` was given; raises InputError for anything wrong in it."""
    refuse_unknown(options, SOLVE_OPTIONS)
    options, notebook = given(options), Notebook()
    fixed, limits = read_fix(options.get("fix")), read_limits(options.get("limit"))
    refuse_contradictions(fixed, limits)
    why_not_keys = _layout_keys(options, "why_not", stdin)
    site = read_site(options)
    job = calibrated(read_job(with_defaults_of(site, options, notebook), notebook, stdin), site)
    refuse_impossible(fixed, job)
    job = ordered(job, str(fixed.get("axis_order", job.axis_order)))
    objective = _read_objective(options.get("objective"), job.cluster, notebook)
    top = _count_or(options, "top", Question.top, notebook, least=0, most=MOST_ALTERNATIVES)
    budget = _read_budget(options, notebook)
    question = Question(
        job=job,
        fix=fixed,
        limits=limits,
        objective=objective,
        deadline_s=read_seconds(options["deadline"], "deadline") if "deadline" in options else None,
        budget_usd=_read_dollars(options.get("budget"), job.cluster),
        top=top,
    )
    return SolveRequest(
        command="solve",
        job=job,
        model=shown_path(options["model"]),
        asked=_asked(question, budget),
        filled=tuple(notebook.filled),
        warnings=tuple(notebook.warnings),
        calibration=site,
        question=question,
        budget=budget,
        why_not=_read_why_not(why_not_keys, job),
    )


def read_estimate(options: Mapping[str, Any], stdin: TextIO | None = None) -> EstimateRequest:
    """The request that ``estimate`` was given; raises InputError for anything wrong in it."""
    refuse_unknown(options, ESTIMATE_OPTIONS)
    options, notebook = given(options), Notebook()
    if "layout" not in options:
        raise InputError(
            f"layout is missing: write tp=8,pp=16,...; keys are {', '.join(LAYOUT_KEYS)}",
            field="layout",
        )
    keys = _layout_keys(options, "layout", stdin)
    site = read_site(options)
    asked = with_defaults_of(site, options, notebook)
    job = calibrated(read_job(asked, notebook, stdin, keys), site)
    layout = complete_layout(keys, job, notebook)
    return EstimateRequest(
        command="estimate",
        job=job,
        model=shown_path(options["model"]),
        asked={},
        filled=tuple(notebook.filled),
        warnings=tuple(notebook.warnings),
        calibration=site,
        layout=layout,
    )


def _layout_keys(options: Mapping[str, Any], name: str, stdin: TextIO | None) -> dict[str, Any]:
    """The keys of a layout given as text, object, file, or on standard input; {} when absent."""
    refuse_two_on_stdin(options)
    value = options.get(name)
    if value is None:
        return {}
    if isinstance(value, str) and (value.strip() == "-" or value.strip().endswith(".json")):
        value = _read_text(value.strip(), name, stdin)
    return read_layout(value, name)


def _read_text(path: str, name: str, stdin: TextIO | None) -> str:
    """A file's text, or standard input's; refuses more than a layout can need."""
    try:
        if path == "-":
            text = stdin.read(MOST_LAYOUT_BYTES + 1) if stdin else ""
        else:
            with Path(path).open(encoding="utf-8") as file:
                text = file.read(MOST_LAYOUT_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot read {path}: {reason}", field=name, value=path) from error
    if not text.strip() or len(text) > MOST_LAYOUT_BYTES:
        size = "empty" if not text.strip() else f"larger than {MOST_LAYOUT_BYTES:,} characters"
        raise InputError(f"{name}: {path} is {size}", field=name, value=path)
    return text


def _read_why_not(keys: Mapping[str, Any], job: Job) -> Layout | str | None:
    if not keys:
        return None
    try:
        return complete_layout(keys, job, Notebook())
    except RuleError as error:
        return error.message


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


def _read_budget(options: Mapping[str, Any], notebook: Notebook) -> Budget:
    """Seconds and workers of the search."""
    workers = _count_or(options, "workers", Budget.workers, notebook, least=1, most=MOST_WORKERS)
    if "time_limit" in options:
        seconds = read_seconds(options["time_limit"], "time_limit", bare=True)
    else:
        seconds = Budget.seconds
        notebook.fill("time_limit", seconds, "default, in seconds")
    return Budget(seconds=seconds, workers=workers)


def _read_objective(value: object, cluster: Cluster, notebook: Notebook) -> Any:
    if value is None:
        notebook.fill("objective", "time", "default: least wall time of the run")
        return "time"
    objective = choice(str(value), "objective", OBJECTIVES)
    if objective == "cost" and cluster.usd_per_gpu_hour is None:
        raise _unpriced("objective", objective, "usd_per_gpu_hour", cluster)
    if objective == "energy" and cluster.watts_per_gpu is None:
        raise _unpriced("objective", objective, "watts_per_gpu", cluster)
    return objective


def _read_dollars(value: object, cluster: Cluster) -> float | None:
    if value is None:
        return None
    dollars = read_money(value, "budget")
    if cluster.usd_per_gpu_hour is None:
        raise _unpriced("budget", value, "usd_per_gpu_hour", cluster)
    return dollars


def _unpriced(field: str, value: object, key: str, cluster: Cluster) -> InputError:
    return InputError(
        f"{field} {value} needs {key}, which cluster {cluster.name} does not state; "
        "add it in a cluster file",
        field=field,
        value=value,
        nearest=(key,),
    )


def _asked(question: Question, budget: Budget) -> dict[str, Any]:
    """The options of ``solve`` as the request echoes them."""
    return {
        "objective": question.objective,
        "fix": dict(question.fix),
        "limit": [limit_text(limit) for limit in question.limits],
        "deadline_s": question.deadline_s,
        "budget_usd": question.budget_usd,
        "top": question.top,
        "time_limit_s": budget.seconds,
        "workers": budget.workers,
    }


def _machine(cluster: Cluster) -> dict[str, Any]:
    """The cluster's figures; the GPU's own stand under ``gpu_figures``."""
    figures = cluster.model_dump(mode="json", exclude={"filled"})
    gpu = cast("dict[str, Any]", figures.pop("gpu"))
    return {**figures, "gpu": gpu["name"], "gpu_figures": gpu}
