"""The names of the options, once: the command line, Python and JSON requests all use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from layoutopt.errors import InputError
from layoutopt.nearest import did_you_mean, nearest_names

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.calibration import Site
    from layoutopt.costmodel.layout import Layout
    from layoutopt.costmodel.model import Model
    from layoutopt.hardware_profiles.schema import Cluster

Number = int | float | str
"""A number, or text with a suffix: ``"16.8M"`` is 16,800,000, ``"1Mi"`` is 1,048,576."""


class JobOptions(TypedDict, total=False):
    """What both ``solve`` and ``estimate`` take."""

    model: str | Path | Model
    """Catalogue name, a size (``"405B"``), a config.json or YAML file, ``-`` for standard input."""
    gpu: str
    cluster: str | Path | Cluster
    """A shipped instance's name or a cluster file; instead of ``gpu``."""
    gpus: Number
    """GPUs to use; for ``solve`` also a range of which it chooses: ``"64..4096"``."""
    seq_len: Number
    global_batch: Number
    """Sequences per optimizer step."""
    tokens: Number
    precision: str
    framework: str
    finetune: str
    """``full`` or ``lora``; left out: pretraining."""
    lora_rank: Number
    lora_targets: str | Iterable[str]
    """``attention``, ``mlp``, ``all``, or names of linear layers: ``"q_proj,v_proj"``."""
    document_length: Number
    """Mean tokens of a document: a number (all alike), or ``"exponential:2048"``."""
    packing: bool | str
    """Whether documents fill sequences one after another; else each is padded to seq_len."""
    calibration: str | Path | Site | None
    """A site's own figures: a file that ``layoutopt calibrate`` made."""
    eval_every: Number
    """Steps between pauses for evaluation."""
    eval_time: Number
    """Seconds of a pause for evaluation, or text with a unit (``"5min"``)."""
    mtbf: Number
    """Mean time between failures of the whole job: seconds, or text with a unit (``"3.1h"``)."""
    failure_rate: Number
    """Failures per 1,000 node-days; instead of ``mtbf`` and of the cluster's own rate."""
    planned_stops: str
    """Announced stops instead of the usual share: ``"4h every 30d"``, ``"3 x 4h"``, ``"none"``."""
    degraded: Number
    """Nodes that are gone: the answer says what to restart with."""


class SolveOptions(JobOptions, total=False):
    """What ``solve`` takes besides."""

    fix: str | Iterable[str] | Mapping[str, Any]
    limit: str | Iterable[str]
    objective: str
    deadline: Number
    """Longest wall time of the run: seconds, or text with a unit (``"30d"``)."""
    budget: Number
    """Most US dollars the run may cost."""
    critical_batch: Number
    """Tokens of the critical batch: a run needs 1 + batch / this times ``tokens``."""
    max_power: Number
    """Most watts that the GPUs may draw, or text with a unit (``"2MW"``)."""
    pareto: bool
    """Also the front of wall time against cost over a range of GPU counts."""
    rejected: str | Path
    """A file to write to: each refused value or layout and its rule, as JSON lines."""
    sensitivity: bool
    """Also what a better machine would be worth, each question solved again."""
    top: Number
    """How many alternatives to return."""
    time_limit: Number
    """Seconds the search may take, or text with a unit."""
    workers: Number
    why_not: str | Mapping[str, Any] | Layout
    phases: str | Path | Iterable[str | Mapping[str, Any]]
    """The run's parts, each with its ``tokens``, ``seq_len``, ``global_batch`` and, where it
    changes, ``gpus``: a list, or a YAML or JSON file of one."""
    phase_layouts: str
    """``auto``, ``one`` or ``each``: which layouts a run in phases may have."""


class EstimateOptions(JobOptions, total=False):
    """What ``estimate`` takes besides."""

    layout: str | Mapping[str, Any] | Layout
    from_launch: str | Path
    """A launch script or configuration to read the layout from, instead of ``layout``."""
    phases: str | Path | Iterable[str | Mapping[str, Any]]
    """As ``solve`` takes them: the layout is priced in each."""


class SimulateOptions(EstimateOptions, total=False):
    """What ``simulate`` takes besides a layout."""

    straggler: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]]
    """``stage=3,slow=1.2``, ``{"stage": 3, "slow": 1.2}``, or several."""
    jitter: Number
    """Relative standard deviation of each pass's compute: ``0.05`` or ``"5%"``."""
    seed: Number
    trace: str | Path
    """A ``.json`` file to write the trace to."""
    plot: str | Path
    """An ``.svg`` file to draw the schedule in."""
    run: bool
    """Whole runs instead of one step; the options below are of runs."""
    runs: Number
    failures: str
    """``exponential``, ``weibull:0.7``, or a file of times."""
    interval: Number
    """Steps between saves to the shared storage; left out: the plan's."""
    detect: Number
    restart: Number
    spares: Number
    """Nodes that wait; left out: a spare is always at hand."""
    repair: Number
    tier: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]]
    """``peer,every=10,write=4s,stall=1s,load=5s``."""
    process_share: Number
    switch_share: Number
    nodes_per_switch: Number
    contention: Number
    """Share of the storage's bandwidth that others take."""


JOB_OPTIONS = tuple(JobOptions.__annotations__)
SOLVE_OPTIONS = tuple(SolveOptions.__annotations__)
ESTIMATE_OPTIONS = tuple(EstimateOptions.__annotations__)


def refuse_unknown(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises InputError for an option that is not ``known``, naming the nearest one."""
    known = tuple(known)
    for name in options:
        if name not in known:
            close = nearest_names(name, known)
            hint = did_you_mean(close) or f"; known: {', '.join(known)}"
            raise InputError(f"no option is called {name!r}{hint}", field=name, nearest=close)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` without those that are None: not given."""
    return {name: value for name, value in options.items() if value is not None}
