"""The questions of a sweep: read and refused as ``solve`` does, each with its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutopt.errors import InputError, RuleError
from layoutopt.inputs.numbers import MOST_GPUS, read_count
from layoutopt.inputs.request import SolveRequest, read_solve
from layoutopt.report.errors import for_people
from layoutopt.sweep.spec import FIX, Spec, shown
from layoutopt.sweep.values import PerGpu
from layoutopt.sweep.version import model_version

_NOT_THE_QUESTION = ("command", "model", "filled", "top", "workers", "time_limit_s")
"""What a request echoes that changes no proved answer; ``architecture`` and ``machine`` do."""


@dataclass(frozen=True)
class Point:
    """One question. ``options`` are those of ``solve``; files in them have been read."""

    key: str
    """Hash of the normalised question and the version of the model."""
    asked: dict[str, Any]
    """The values of the spec as they were written."""
    options: dict[str, Any]
    scaling: str
    """``strong``, or ``weak`` where the batch is given for each GPU."""
    refused: str | None = None
    """Why arithmetic or a framework's rule excludes every layout, where reading showed it."""


@dataclass(frozen=True)
class Points:
    """All of a sweep. Two ways to write the same question are one point."""

    points: tuple[Point, ...]
    twice: int
    """Combinations left out because an earlier one asks the same."""


def points_of(spec: Spec) -> Points:
    """Every point of ``spec``, read as ``solve`` reads it.

    Raises InputError naming the axis for a value that ``solve`` refuses; one that only breaks a
    rule of arithmetic together with the others (a GPU count that ``fix.tp`` does not divide) is a
    point whose row says so.
    """
    found: dict[str, Point] = {}
    read: dict[tuple[str, str], Any] = {}
    combinations = 0
    for asked in spec.combinations():
        combinations += 1
        point = _point(asked, spec, read)
        found.setdefault(point.key, point)
    if not found:
        raise InputError("filter: no point passes it", field="filter")
    return Points(tuple(found.values()), combinations - len(found))


def _point(asked: Mapping[str, Any], spec: Spec, read: dict[tuple[str, str], Any]) -> Point:
    scaling = "weak" if isinstance(asked.get("global_batch"), PerGpu) else "strong"
    shown_values = {
        name: float(value) if isinstance(value, PerGpu) else value for name, value in asked.items()
    }
    options: dict[str, Any] = {}
    try:
        options = _options(asked)
        request = read_solve(options)
    except RuleError as error:
        key = _hash({"refused": shown_values, "scaling": scaling})
        return Point(key, shown_values, options, scaling, for_people(error))
    except InputError as error:
        raise _named(error, asked, spec) from None
    key = _hash(_question(request))
    return Point(key, shown_values, _self_contained(options, request, read), scaling)


def _options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``solve`` for the values of one point."""
    options = {name: value for name, value in asked.items() if not name.startswith(FIX)}
    fix = {name.removeprefix(FIX): v for name, v in asked.items() if name.startswith(FIX)}
    if fix:
        options["fix"] = fix
    for name in ("model", "cluster", "calibration"):
        if options.get(name) == "-":
            raise InputError(f"{name}: a sweep reads no standard input; name a file", field=name)
    batch = options.get("global_batch")
    if isinstance(batch, PerGpu):
        if "gpus" not in options:
            raise InputError("global_batch per_gpu needs gpus, as an axis or fixed", field="gpus")
        options["global_batch"] = batch.batch(read_count(options["gpus"], "gpus", most=MOST_GPUS))
    return options


def _self_contained(
    options: dict[str, Any], request: SolveRequest, read: dict[tuple[str, str], Any]
) -> dict[str, Any]:
    """``options`` with files as what they held: a worker may stand on another machine."""
    contents: dict[str, Any] = {"calibration": request.calibration, "cluster": request.job.cluster}
    if "model" in options and Path(str(options["model"])).is_file():
        contents["model"] = request.job.model
    found = dict(options)
    for name, value in contents.items():
        if options.get(name) is not None:
            found[name] = read.setdefault((name, str(options[name])), value)
    return found


def _question(request: SolveRequest) -> dict[str, Any]:
    asked = request.to_dict()
    return {name: value for name, value in asked.items() if name not in _NOT_THE_QUESTION}


def _hash(question: Mapping[str, Any]) -> str:
    text = json.dumps([model_version(), question], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _named(error: InputError, asked: Mapping[str, Any], spec: Spec) -> InputError:
    """The refusal with the axis that is to blame, or else with the point."""
    field = error.field or ""
    blamed = field if field in asked else f"{FIX}{field.removeprefix('fix.')}"
    where = ", ".join(f"{name}={shown(asked[name])}" for name in spec.axes)
    if blamed in asked:
        kind = "axis" if blamed in spec.axes else "fixed"
        prefix = f"{kind} {blamed}: "
    else:
        prefix = f"at {where}: " if where else ""
    return InputError(
        prefix + error.message, field=error.field, value=error.value, nearest=error.nearest
    )
