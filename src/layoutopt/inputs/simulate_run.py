"""What `simulate --run` takes besides a job and a layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path
from typing import Any, TextIO

from layoutopt import units
from layoutopt.costmodel.checkpoint import recovery_of
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.mixed import whole_job
from layoutopt.costmodel.reliability import job_mtbf_s
from layoutopt.costmodel.results import Estimate
from layoutopt.errors import InputError
from layoutopt.inputs.numbers import MOST_TOKENS, read_count, read_seconds
from layoutopt.inputs.options import ESTIMATE_OPTIONS, given, refuse_unknown
from layoutopt.inputs.request import EstimateRequest, read_estimate
from layoutopt.inputs.simulate import STEP_OPTIONS, read_seed, read_share, refuse_degraded
from layoutopt.inputs.words import choice
from layoutopt.nearest import did_you_mean, nearest_names
from layoutopt.simulation.failures import KINDS, Failures, mean_of_trace_s
from layoutopt.simulation.runs import RunPlan
from layoutopt.simulation.tiers import SURVIVES, Tier

RUN_OPTIONS = (
    "run",
    "runs",
    "seed",
    "failures",
    "interval",
    "detect",
    "restart",
    "spares",
    "repair",
    "tier",
    "process_share",
    "switch_share",
    "nodes_per_switch",
    "contention",
)
RUNS = 1000
MOST_RUNS = 100_000
MOST_SPARES = 10_000
REPAIR_S = 1.0 * units.DAY
"""A failed node is back after a day: an assumption; sites differ from hours to weeks."""
MOST_CONTENTION = 0.99
_TIER_KEYS = ("every", "write", "stall", "load", "fails", "late", "late_factor")
MOST_TRACE_BYTES = 2**22


@dataclass(frozen=True)
class RunRequest:
    """A run to simulate many times."""

    request: EstimateRequest
    estimate: Estimate
    plan: RunPlan
    runs: int
    seed: int
    failures: str
    """As it was asked for."""


def read_run(options: Mapping[str, Any], stdin: TextIO | None = None) -> RunRequest:
    """The request that ``simulate --run`` was given; InputError for anything wrong in it."""
    refuse_unknown(options, (*ESTIMATE_OPTIONS, *RUN_OPTIONS, *STEP_OPTIONS))
    options = given(options)
    refuse_degraded(options)
    for name in STEP_OPTIONS:
        if name != "seed" and name in options:
            raise InputError(
                f"{name} is of a step: leave out run, or {name}",
                field=name,
                value=str(options[name]),
            )
    rest = {name: value for name, value in options.items() if name in ESTIMATE_OPTIONS}
    request = read_estimate(rest, stdin)
    plan = estimate(request.job, request.layout)
    text = str(options.get("failures", "exponential"))
    return RunRequest(
        request=request,
        estimate=plan,
        plan=_plan(options, request, plan, text),
        runs=read_count(options.get("runs", RUNS), "runs", most=MOST_RUNS),
        seed=read_seed(options),
        failures=text,
    )


def _plan(
    options: Mapping[str, Any], request: EstimateRequest, plan: Estimate, failures: str
) -> RunPlan:
    job = request.job
    if job.cluster.pools:
        # As estimate has it: the GPUs that the layout uses, with the mean of their failure rates.
        job = whole_job(job, request.layout)
    recovery = recovery_of(job)
    mtbf = job_mtbf_s(job.cluster.failures_per_gpu_hour, job.gpus)
    spares = options.get("spares")
    return RunPlan(
        step_s=plan.step.time_s,
        steps=plan.run.steps,
        tiers=_tiers(options, request, plan),
        failures=_failures(options, failures, mtbf),
        detect_s=_seconds(options, "detect", recovery.detect_s),
        restart_s=_seconds(options, "restart", recovery.restart_s),
        spares=None if spares is None else read_count(spares, "spares", least=0, most=MOST_SPARES),
        repair_s=_seconds(options, "repair", REPAIR_S),
        planned_per_failure=recovery.planned_per_failure,
        stops=recovery.stops,
    )


def _seconds(options: Mapping[str, Any], name: str, usual: float) -> float:
    return read_seconds(options[name], name) if name in options else usual


def _failures(options: Mapping[str, Any], text: str, mtbf_s: float) -> Failures:
    """``exponential``, ``weibull:0.7``, or a file of times."""
    process = read_share(options.get("process_share", 0), "process_share", 1.0)
    switch = read_share(options.get("switch_share", 0), "switch_share", 1.0)
    if process + switch > 1:
        raise InputError(
            f"process_share {process:g} and switch_share {switch:g} are more than 1 together",
            field="switch_share",
            value=switch,
            nearest=(1 - process,),
        )
    shares = (process, 1 - process - switch, switch)
    behind = read_count(options.get("nodes_per_switch", 1), "nodes_per_switch", most=10**6)
    word, _, shape = text.partition(":")
    if word == "weibull":
        steep = read_share(shape, "failures weibull shape", 10.0)
        if steep < 0.1:
            raise InputError(
                f"failures: a Weibull shape of {shape} is below 0.1; 0.7 to 0.8 is usual",
                field="failures",
                value=text,
                nearest=("weibull:0.7",),
            )
        return Failures(mtbf_s, steep, (), shares, behind)
    if text == "exponential":
        return Failures(mtbf_s, 1.0, (), shares, behind)
    times = _read_trace(text)
    return Failures(mean_of_trace_s(times), 1.0, times, shares, behind)


def _read_trace(path: str) -> tuple[float, ...]:
    """Times of failures from the start of a run, one a line: ``3.2h``; ``#`` starts a comment."""
    if not Path(path).is_file():
        close = nearest_names(path, ("exponential", "weibull:0.7"))
        hint = did_you_mean(close) or ": exponential, weibull:0.7, or a file of times"
        raise InputError(
            f"failures {path[:60]!r} is no distribution and no file{hint}",
            field="failures",
            value=path[:60],
            nearest=close or ("exponential", "weibull:0.7"),
        )
    if Path(path).stat().st_size > MOST_TRACE_BYTES:
        raise InputError(f"failures: {path} is too large", field="failures", value=path)
    times: list[float] = []
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"failures: {path} is not UTF-8 text", field="failures", value=path
        ) from error
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text:
            times.append(read_seconds(text, f"failures {path}:{number}"))
            if len(times) > 1 and times[-1] <= times[-2]:
                raise InputError(
                    f"failures {path}:{number}: {text} is not after the time before it",
                    field="failures",
                    value=text,
                )
    if not times:
        raise InputError(f"failures: {path} lists no time", field="failures", value=path)
    return tuple(times)


def _tiers(
    options: Mapping[str, Any], request: EstimateRequest, plan: Estimate
) -> tuple[Tier, ...]:
    """The shared storage of the plan, unless given, and what ``tier`` adds."""
    job, save = request.job, plan.checkpoint
    busy = 1 - read_share(options.get("contention", 0), "contention", MOST_CONTENTION)
    storage = job.cluster.storage
    load = save.bytes / (storage.read_bytes_per_s or storage.write_bytes_per_s)
    steps = save.interval_steps
    if "interval" in options:
        steps = read_count(options["interval"], "interval", most=MOST_TOKENS)
    synchronous = save.stall_s >= save.write_s
    write = save.write_s / busy
    shared = Tier(
        kind="shared",
        every_steps=min(steps, plan.run.steps),
        write_s=write,
        stall_s=write if synchronous else save.stall_s,
        load_s=load / busy,
    )
    found = {"shared": shared}
    asked = options.get("tier", ())
    for entry in asked if isinstance(asked, list | tuple) else (asked,):
        tier = _tier(entry, shared)
        found[tier.kind] = tier
    if "interval" not in options:
        found["shared"] = _nested(found["shared"], list(found.values()), plan.run.steps)
    return tuple(found.values())


def _nested(shared: Tier, tiers: list[Tier], steps: int) -> Tier:
    """The plan's interval as the nearest multiple of those of quicker tiers."""
    quicker = lcm(*(tier.every_steps for tier in tiers if tier.every_steps < shared.every_steps))
    if quicker >= shared.every_steps:
        return shared
    every = quicker * max(1, round(shared.every_steps / quicker))
    return replace(shared, every_steps=min(every, steps))


def _tier(entry: object, shared: Tier) -> Tier:
    """``peer,every=10,write=4s,stall=1s,load=5s``; keys left out are as on the shared storage."""
    kind, keys = _tier_keys(entry)
    unknown = next((key for key in keys if key not in _TIER_KEYS), None)
    if unknown is not None:
        close = nearest_names(unknown, _TIER_KEYS)
        raise InputError(
            f"tier has no key {unknown!r}{did_you_mean(close or _TIER_KEYS)}",
            field="tier",
            value=unknown,
            nearest=close or _TIER_KEYS,
        )
    write = _of(keys, "write", shared.write_s)
    every = keys.get("every")
    return Tier(
        kind=kind,
        every_steps=shared.every_steps
        if every is None
        else read_count(every, "tier every", most=MOST_TOKENS),
        write_s=write,
        stall_s=min(write, _of(keys, "stall", min(write, shared.stall_s))),
        load_s=_of(keys, "load", shared.load_s),
        fails=read_share(keys.get("fails", 0), "tier fails", 0.99),
        late=read_share(keys.get("late", 0), "tier late", 1.0),
        late_factor=max(1.0, read_share(keys.get("late_factor", 1), "tier late_factor", 1e4)),
    )


def _of(keys: Mapping[str, Any], name: str, usual: float) -> float:
    return read_seconds(keys[name], f"tier {name}") if name in keys else usual


def _tier_keys(entry: object) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        kind, *pairs = [part.strip() for part in entry.split(",")]
        keys: dict[str, Any] = {}
        for pair in pairs:
            key, _, value = pair.partition("=")
            keys[key.strip()] = value.strip()
    elif isinstance(entry, Mapping):
        keys = {str(key): value for key, value in entry.items()}
        kind = str(keys.pop("kind", "shared"))
    else:
        raise InputError(
            f"tier {str(entry)[:40]!r} is not KIND,every=STEPS,write=TIME,stall=TIME,load=TIME",
            field="tier",
            value=str(entry)[:40],
        )
    return choice(kind, "tier", tuple(SURVIVES)), keys


def shares_text(failures: Failures) -> str:
    """The mix of failures in words."""
    parts = [
        f"{share:.0%} {kind}" for kind, share in zip(KINDS, failures.shares, strict=True) if share
    ]
    return ", ".join(parts)
