"""A whole request: the question, and the echo of it that the answer carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO, cast

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.phases import Phase
from layoutopt.errors import InputError, RuleError
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.inputs.calibration import calibrated, read_site, with_defaults_of
from layoutopt.inputs.filled import Filled, Notebook
from layoutopt.inputs.job import read_job, refuse_two_on_stdin
from layoutopt.inputs.layout_complete import complete_layout
from layoutopt.inputs.layout_text import LAYOUT_KEYS, read_layout
from layoutopt.inputs.machine import shown_path
from layoutopt.inputs.options import (
    ESTIMATE_OPTIONS,
    SOLVE_OPTIONS,
    given,
    refuse_unknown,
)
from layoutopt.inputs.phases import AskedPhases, layout_of_phase
from layoutopt.inputs.question import AskedOfSolve, echo, read_budget
from layoutopt.inputs.text import read_text
from layoutopt.inputs.tuning import Tuning, tuning_json
from layoutopt.optimizer.question import Budget, PhaseLayouts, Question

if TYPE_CHECKING:
    from layoutopt.calibration import Site

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
            "eval_interval_steps": training.eval_interval_steps,
            "eval_s": training.eval_s,
            "framework": job.software.name,
            **tuning_json(Tuning(training.finetune, training.lora, training.documents)),
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
    rejected: str | None
    """The file to write what was refused to."""
    why_not_keys: Mapping[str, Any]
    """What was said of the layout to compare with; empty: none was."""
    phases: tuple[Phase, ...] = ()
    """The parts of the run; none: it is of one piece."""
    phase_layouts: PhaseLayouts = "auto"

    @property
    def why_not(self) -> Layout | str | None:
        """The layout to compare with, or the sentence that says why it is none."""
        return _read_why_not(self.why_not_keys, self.job)

    def at(self, job: Job | None) -> SolveRequest:
        """The request with the GPU count and batch that were chosen; itself without any."""
        if job is None:
            return self
        job = replace(self.job, gpus=job.gpus, training=job.training, cluster=job.cluster)
        return replace(self, job=job, question=replace(self.question, job=job))


@dataclass(frozen=True)
class EstimateRequest(Request):
    """A request to price one layout."""

    layout: Layout
    phases: tuple[Phase, ...] = ()
    """The parts of the run; none: it is of one piece."""
    phase_layouts: tuple[Layout, ...] = ()
    """The layout as each phase runs it."""


def read_solve(options: Mapping[str, Any], stdin: TextIO | None = None) -> SolveRequest:
    """The request that ``solve`` was given; raises InputError for anything wrong in it."""
    refuse_unknown(options, SOLVE_OPTIONS)
    options, notebook = given(options), Notebook()
    phased = _phased(options, stdin)
    options = phased.of_job if phased else options
    why_not_keys = _layout_keys(options, "why_not", stdin)
    asked = AskedOfSolve(options)
    site = read_site(options)
    whole = with_defaults_of(site, asked.of_job, notebook)
    job = calibrated(read_job(whole, notebook, stdin), site)
    question, budget = asked.question(job, notebook), read_budget(options, notebook)
    job = question.job
    phases = phased.phases(job, notebook, stdin) if phased else ()
    return SolveRequest(
        command="solve",
        job=job,
        model=shown_path(options["model"]),
        asked={**echo(question, budget), **(phased.echo(phases) if phased else {})},
        filled=tuple(notebook.filled),
        warnings=tuple(notebook.warnings),
        calibration=site,
        question=question,
        budget=budget,
        rejected=str(options["rejected"]) if "rejected" in options else None,
        why_not_keys=why_not_keys,
        phases=phases,
        phase_layouts=phased.layouts if phased else "auto",
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
    phased = _phased(options, stdin)
    options = phased.of_job if phased else options
    site = read_site(options)
    asked = with_defaults_of(site, options, notebook)
    job = calibrated(read_job(asked, notebook, stdin, {} if phased else keys), site)
    phases = phased.phases(job, notebook, stdin) if phased else ()
    layouts = tuple(layout_of_phase(keys, job, phase, notebook) for phase in phases)
    layout = layouts[0] if layouts else complete_layout(keys, job, notebook)
    return EstimateRequest(
        command="estimate",
        job=job,
        model=shown_path(options["model"]),
        asked=phased.echo(phases) if phased else {},
        filled=tuple(notebook.filled),
        warnings=tuple(notebook.warnings),
        calibration=site,
        layout=layout,
        phases=phases,
        phase_layouts=layouts,
    )


def _phased(options: Mapping[str, Any], stdin: TextIO | None) -> AskedPhases | None:
    """What was said of phases; None where the run is of one piece."""
    if "phases" in options:
        return AskedPhases(options, stdin)
    if "phase_layouts" in options:
        raise InputError(
            "phase_layouts is about a run in phases: give --phases or --phase", field="phases"
        )
    return None


def _layout_keys(options: Mapping[str, Any], name: str, stdin: TextIO | None) -> dict[str, Any]:
    """The keys of a layout given as text, object, file, or on standard input; {} when absent."""
    refuse_two_on_stdin(options)
    value = options.get(name)
    if value is None:
        return {}
    if isinstance(value, str) and (value.strip() == "-" or value.strip().endswith(".json")):
        value = read_text(value.strip(), name, stdin, MOST_LAYOUT_BYTES)
    return read_layout(value, name)


def _read_why_not(keys: Mapping[str, Any], job: Job) -> Layout | str | None:
    if not keys:
        return None
    try:
        return complete_layout(keys, job, Notebook())
    except RuleError as error:
        return error.message


def _machine(cluster: Cluster) -> dict[str, Any]:
    """The cluster's figures; the GPU's own stand under ``gpu_figures``."""
    figures = cluster.model_dump(mode="json", exclude={"filled", "pools"})
    gpu = cast("dict[str, Any]", figures.pop("gpu"))
    pools = [_machine(pool) for pool in cluster.pools]
    return {**figures, "pools": pools, "gpu": gpu["name"], "gpu_figures": gpu}
