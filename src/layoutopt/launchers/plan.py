"""A plan as launchers need it: read back from the JSON of schema layoutopt.plan/1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TextIO, cast

from pydantic import ValidationError

from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.machine import used_gpus
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.software import Software, software
from layoutopt.costmodel.stages import even_split
from layoutopt.costmodel.training import Precision, Training
from layoutopt.errors import InputError
from layoutopt.inputs.layout_text import read_layout
from layoutopt.inputs.text import read_text
from layoutopt.inputs.tuning import tuning_of

SCHEMA = "layoutopt.plan/1"
MOST_BYTES = 2**24
_COUNTED = ("parameters", "active_parameters")
"""What a plan's ``architecture`` holds beside the model's own keys."""


@dataclass(frozen=True)
class Plan:
    """One layout of one job, and what a launch needs beside it."""

    model: Model
    training: Training
    software: Software
    gpus: int
    gpus_per_node: int
    gpu: str
    layout: Layout
    interval_steps: int
    """Optimizer steps between checkpoints."""
    usd_per_gpu_hour: float | None = None
    domain_gpus: int = 1
    """GPUs that the innermost level of the network joins, as the job uses it."""

    @property
    def nodes(self) -> int:
        """Servers of the job; the last one may be partly used."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def gpus_a_node(self) -> int:
        """GPUs that the job uses on each of its servers."""
        return min(self.gpus, self.gpus_per_node)

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of each pipeline stage."""
        return self.layout.layers_per_stage or even_split(self.model.layers, self.layout.pp)

    @property
    def island(self) -> int:
        """GPUs that exchange data inside every layer: tp x cp, and ep where experts are."""
        layout = self.layout
        inner = layout.tp * layout.cp
        return max(inner, layout.ep * layout.etp) if self.model.moe else inner

    def title(self) -> str:
        """One line for people; never holds a line break, whatever the model is called."""
        name = " ".join(self.model.name.split())
        return f"{name} on {self.gpus:,} x {self.gpu}, {self.training.global_batch:,} sequences"


def read_plan_text(source: str, stdin: TextIO | None, phase: int | None = None) -> Plan:
    """The plan in a file, or on standard input (``-``); of a run in phases that of ``phase``."""
    text = read_text(source, "plan", stdin, MOST_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"{source} is not JSON: {error}", source) from error
    return read_plan(value, source, phase)


def read_plan(value: object, source: str = "plan", phase: int | None = None) -> Plan:
    """A Plan of a whole answer; raises InputError for what is none, or has no layout.

    ``phase``: number of the phase, of a run in phases.
    """
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        shown = value.get("schema") if isinstance(value, Mapping) else type(value).__name__
        raise InputError(
            f"{source} has schema {str(shown)[:60]!r}, not {SCHEMA!r}: solve --json makes plans",
            field="schema",
            value=str(shown)[:60],
            nearest=(SCHEMA,),
        )
    if not isinstance(value.get("layout"), Mapping):
        raise _wrong(
            f"{source} has no layout: its status is {str(value.get('status'))[:40]}", source
        )
    try:
        return _read(_of_phase(value, phase))
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise _wrong(
            f"{source} is no whole plan of this version: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}",
            source,
        ) from error


def _of_phase(answer: Mapping[str, Any], number: int | None) -> Mapping[str, Any]:
    """The answer as if one phase had been asked for alone."""
    phases = (answer.get("phases") or {}).get("list") or []
    if not phases and number is None:
        return answer
    if number is None or not 1 <= number <= len(phases):
        numbers = tuple(range(1, len(phases) + 1))
        many = f"has {len(phases)} phases: say which" if phases else "is not of a run in phases"
        raise InputError(f"the plan {many}", field="phase", value=number, nearest=numbers)
    one = phases[number - 1]
    keys = ("tokens", "seq_len", "global_batch", "gpus")
    request = {**answer["request"], **{key: one[key] for key in keys}}
    return {**answer, "request": request, **{k: one[k] for k in ("layout", "checkpoint")}}


def _read(answer: Mapping[str, Any]) -> Plan:
    request, machine = answer["request"], answer["request"]["machine"]
    shape = {k: v for k, v in request["architecture"].items() if k not in _COUNTED}
    keys = read_layout(dict(answer["layout"]))
    known = {item.name for item in fields(Layout)}
    if keys.get("layers_per_stage") == even_split(int(shape["layers"]), keys["pp"]):
        del keys["layers_per_stage"]  # None means even
    training = Training(
        **tuning_of(request).fields(),
        seq_len=request["seq_len"],
        global_batch=keys.get("global_batch") or request["global_batch"],
        tokens=request["tokens"],
        precision=cast("Precision", request["precision"]),
    )
    gpus, gpus_per_node = int(keys.get("gpus") or request["gpus"]), int(machine["gpus_per_node"])
    return Plan(
        model=Model(**shape),
        training=training,
        software=software(request["framework"]),
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        domain_gpus=used_gpus(int(machine["levels"][0]["gpus"]), gpus_per_node, gpus),
        gpu=str(request["gpu"]),
        layout=Layout(**{key: word for key, word in keys.items() if key in known}),
        interval_steps=int((answer.get("checkpoint") or {}).get("interval_steps") or 0),
        usd_per_gpu_hour=machine.get("usd_per_gpu_hour"),
    )


def _wrong(message: str, source: str) -> InputError:
    return InputError(message, field="plan", value=source)
