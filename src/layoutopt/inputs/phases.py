"""``phases``: the parts of a run, each with its own tokens, sequence length and batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO, cast

import yaml

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.phases import Phase
from layoutopt.errors import InputError
from layoutopt.inputs.defaults import default_global_batch
from layoutopt.inputs.filled import Notebook
from layoutopt.inputs.job import read_job
from layoutopt.inputs.layout_complete import complete_layout
from layoutopt.inputs.numbers import (
    MOST_BATCH,
    MOST_GPUS,
    MOST_PHASES,
    MOST_SEQ_LEN,
    MOST_TOKENS,
    read_count,
)
from layoutopt.inputs.text import read_text
from layoutopt.inputs.words import choice
from layoutopt.nearest import did_you_mean, nearest_names
from layoutopt.optimizer.question import PHASE_LAYOUTS, PhaseLayouts

KEYS = ("tokens", "seq_len", "global_batch", "gpus")
_MOST_BYTES = 2**20
_OF_A_PHASE = ("tokens", "seq_len", "global_batch")
_NOT_WITH = (
    "critical_batch",
    "pareto",
    "sensitivity",
    "rejected",
    "why_not",
    "degraded",
    "from_launch",
)
"""Options that are about one job with one batch."""
_MOST = {
    "tokens": MOST_TOKENS,
    "seq_len": MOST_SEQ_LEN,
    "global_batch": MOST_BATCH,
    "gpus": MOST_GPUS,
}


class AskedPhases:
    """The phases of ``options``, read before the job is."""

    def __init__(self, options: Mapping[str, Any], stdin: TextIO | None) -> None:
        _refuse_beside(options)
        self._options = options
        self._phases = _phases(options["phases"], stdin)
        self.layouts = cast(
            "PhaseLayouts",
            choice(str(options.get("phase_layouts", "auto")), "phase_layouts", PHASE_LAYOUTS),
        )
        self._longest = max(self._phases, key=lambda phase: phase["tokens"])

    @property
    def of_job(self) -> dict[str, Any]:
        """The options for the job that the phases have in common: with the batch and the sequence
        length of the phase of most tokens, and the GPUs of the largest."""
        options = {k: v for k, v in self._options.items() if k not in ("phases", "phase_layouts")}
        told = {key: self._longest[key] for key in KEYS[1:3] if key in self._longest}
        counts = [phase["gpus"] for phase in self._phases if "gpus" in phase]
        if counts:
            told["gpus"] = max([*counts, *self._gpus()])
        return {**options, **told, "tokens": sum(phase["tokens"] for phase in self._phases)}

    def _gpus(self) -> list[int]:
        value = self._options.get("gpus")
        return [] if value is None else [read_count(value, "gpus", most=MOST_GPUS)]

    def echo(self, phases: Sequence[Phase]) -> dict[str, Any]:
        """What the request echoes."""
        return {
            "phases": [asdict(phase) for phase in phases],
            "phase_layouts": self.layouts,
        }

    def phases(self, job: Job, notebook: Notebook, stdin: TextIO | None) -> tuple[Phase, ...]:
        """The phases of ``job``, with what was left out filled in, and warned of as for a job."""
        _refuse_machine(job)
        usual = self._gpus() or [job.gpus]
        found = []
        for number, phase in enumerate(self._phases, 1):
            gpus = phase.get("gpus", usual[0])
            seq_len = phase.get("seq_len", job.training.seq_len)
            batch = phase.get("global_batch")
            if batch is None:
                batch, reason = default_global_batch(job.model, gpus, seq_len)
                notebook.fill(f"phases[{number}].global_batch", batch, reason)
            one = Phase(phase["tokens"], seq_len, batch, gpus)
            found.append(one)
            aside = Notebook()
            # Read as a job of its own: what a job of this length would be warned of.
            read_job(
                {
                    "model": job.model,
                    "cluster": job.cluster,
                    "framework": job.software.name,
                    "precision": job.training.precision,
                    **{key: getattr(one, key) for key in KEYS},
                },
                aside,
                stdin,
            )
            for warning in aside.warnings:
                if warning not in notebook.warnings:
                    notebook.warn(warning)
        return tuple(found)


def layout_of_phase(keys: Mapping[str, Any], job: Job, phase: Phase, notebook: Notebook) -> Layout:
    """The given layout as one phase runs it: microbatches follow the batch, and dp the GPUs.

    Raises InputError where the layout states what is different from phase to phase.
    """
    for key in ("microbatches", "global_batch"):
        if key in keys:
            raise InputError(
                f"layout.{key} follows the batch of each phase; leave it out",
                field=f"layout.{key}",
                value=keys[key],
            )
    changes = {"seq_len": phase.seq_len, "global_batch": phase.global_batch}
    training = job.training.model_copy(update=changes)
    aside = Notebook()
    layout = complete_layout(keys, replace(job, training=training, gpus=phase.gpus), aside)
    for entry in aside.filled:
        same = any(known.option == entry.option for known in notebook.filled)
        if not same and entry.option not in ("layout.microbatches", "layout.dp"):
            notebook.filled.append(entry)
    return layout


def _refuse_beside(options: Mapping[str, Any]) -> None:
    """Raises InputError for an option that phases leave no room for."""
    for name in _OF_A_PHASE:
        if options.get(name) is not None:
            raise InputError(
                f"{name} stands in each phase; leave --{name.replace('_', '-')} out",
                field=name,
                value=str(options[name]),
            )
    for name in _NOT_WITH:
        if options.get(name):
            raise InputError(
                f"{name} is asked of one job with one batch, not of a run in phases: ask it of a "
                "phase by itself",
                field=name,
                value=str(options[name]),
            )
    objective = options.get("objective")
    if objective == "gpus":
        raise InputError(
            "objective gpus: each phase runs on given GPUs; the shortest run on them is also the "
            "cheapest",
            field="objective",
            value=str(objective),
            nearest=("time", "cost", "energy"),
        )
    gpus = options.get("gpus")
    if isinstance(gpus, str) and ".." in gpus:
        raise InputError(
            f"gpus {gpus[:60]} is a range: a phase runs on a given count, as in --phase "
            "tokens=1T,gpus=512; ask for the phases at each count that comes into question, or for "
            "the longest of them by itself, without --phase, over the range",
            field="gpus",
            value=gpus[:60],
            nearest=tuple(end for end in gpus[:60].split("..") if end),
        )


def _refuse_machine(job: Job) -> None:
    for told, what in ((job.cluster.pools, "several pools"), (job.cluster.switches, "a node list")):
        if told:
            raise InputError(
                f"the cluster {job.cluster.name} has {what}: phases are searched on GPUs of one "
                "type whose place is not asked",
                field="cluster",
                value=job.cluster.name,
            )


def _phases(value: object, stdin: TextIO | None) -> tuple[dict[str, int], ...]:
    """Each phase's own keys, as whole numbers."""
    if isinstance(value, str | Path):
        text = str(value).strip()
        listed = [text] if "=" in text else _file(text, stdin)
    elif isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise _no_list(value)
    else:
        listed = list(value)
    if not 1 <= len(listed) <= MOST_PHASES:
        raise InputError(
            f"phases: {len(listed)} phases; there can be 1 to {MOST_PHASES}",
            field="phases",
            value=len(listed),
            nearest=(MOST_PHASES if listed else 1,),
        )
    return tuple(_phase(phase, number) for number, phase in enumerate(listed, 1))


def _file(source: str, stdin: TextIO | None) -> list[Any]:
    """The list in a YAML or JSON file, by itself or under ``phases:``."""
    try:
        found = yaml.safe_load(read_text(source, "phases", stdin, _MOST_BYTES))
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"phases: {source}: {why}", field="phases", value=source) from error
    if isinstance(found, Mapping) and set(found) == {"phases"}:
        found = found["phases"]
    if not isinstance(found, list):
        raise _no_list(source)
    return found


def _no_list(value: object) -> InputError:
    return InputError(
        f"phases {str(value)[:60]!r} is no list of phases, as in [{{tokens: 1T, seq_len: 8192, "
        "global_batch: 1024}]",
        field="phases",
        value=str(value)[:60],
    )


def _phase(value: object, number: int) -> dict[str, int]:
    """One phase: a mapping, or text as in ``tokens=1T,seq_len=8192``."""
    field = f"phases[{number}]"
    if isinstance(value, str):
        value = _pairs(value, field)
    if not isinstance(value, Mapping):
        raise InputError(
            f"{field} {str(value)[:60]!r} is no phase: write tokens=1T,seq_len=8192,...",
            field=field,
            value=str(value)[:60],
        )
    for key in value:
        if key not in KEYS:
            close = nearest_names(str(key), KEYS)
            hint = did_you_mean(close) or f"; known: {', '.join(KEYS)}"
            raise InputError(
                f"{field} has no key {str(key)[:60]!r}{hint}",
                field=f"{field}.{str(key)[:60]}",
                nearest=close or KEYS,
            )
    if value.get("tokens") is None:
        raise InputError(f"{field} has no tokens: write tokens=1T", field=f"{field}.tokens")
    return {
        key: read_count(value[key], f"{field}.{key}", most=_MOST[key], fraction=key == "tokens")
        for key in KEYS
        if value.get(key) is not None
    }


def _pairs(text: str, field: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value or key in found:
            why = "is given twice" if key in found else "is no key=value"
            raise InputError(
                f"{field}: {pair.strip()[:60]!r} {why}; write tokens=1T,seq_len=8192",
                field=field,
                value=text[:60],
            )
        found[key] = value
    return found
