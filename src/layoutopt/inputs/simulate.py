"""What `simulate` takes besides a job and a layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from layoutopt.errors import InputError
from layoutopt.inputs.numbers import read_count
from layoutopt.inputs.options import (
    ESTIMATE_OPTIONS,
    SimulateOptions,
    given,
    refuse_unknown,
)
from layoutopt.inputs.request import EstimateRequest, read_estimate
from layoutopt.nearest import did_you_mean, nearest_names

STEP_OPTIONS = ("straggler", "jitter", "seed", "trace", "plot")
MOST_SEED = 2**53
MOST_SLOW = 1000.0
MOST_JITTER = 10.0
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(%?)")


@dataclass(frozen=True)
class StepRequest:
    """One step to simulate."""

    request: EstimateRequest
    stragglers: dict[int, float]
    jitter: float
    seed: int
    trace: Path | None
    plot: Path | None

    @property
    def calm(self) -> bool:
        """Nothing disturbs the step but the cost model's own allowance."""
        return not self.stragglers and not self.jitter


def read_step(options: Mapping[str, Any], stdin: TextIO | None = None) -> StepRequest:
    """The request that ``simulate`` was given; InputError for anything wrong in it."""
    options = {name: value for name, value in given(options).items() if name != "run"}
    _refuse_options_of_runs(options)
    refuse_degraded(options)
    refuse_unknown(options, (*ESTIMATE_OPTIONS, *STEP_OPTIONS))
    rest = {name: value for name, value in options.items() if name in ESTIMATE_OPTIONS}
    request = read_estimate(rest, stdin)
    return StepRequest(
        request=request,
        stragglers=_read_stragglers(options.get("straggler", ()), request.layout.pp),
        jitter=read_share(options.get("jitter", 0), "jitter", MOST_JITTER),
        seed=read_seed(options),
        trace=_path(options, "trace", ".json"),
        plot=_path(options, "plot", ".svg"),
    )


def _refuse_options_of_runs(options: Mapping[str, Any]) -> None:
    """Raises InputError for an option that only ``run`` takes."""
    for name in SimulateOptions.__annotations__:
        if name in options and name not in (*ESTIMATE_OPTIONS, *STEP_OPTIONS):
            raise InputError(
                f"{name} is of whole runs: add run (--run), or leave {name} out",
                field=name,
                value=str(options[name]),
                nearest=("run",),
            )


def refuse_degraded(options: Mapping[str, Any]) -> None:
    """Raises InputError for ``degraded`` and ``phases``: a simulation is of one layout as it is
    given."""
    for name in ("degraded", "phases"):
        if name in options:
            raise InputError(
                f"{name} is of estimate and solve; simulate the layout that they answer",
                field=name,
                value=str(options[name])[:60],
            )


def read_seed(options: Mapping[str, Any]) -> int:
    """The seed of random numbers; 0 where none is given."""
    return read_count(options.get("seed", 0), "seed", least=0, most=MOST_SEED)


def read_share(value: object, field: str, most: float) -> float:
    """A share from 0 to ``most``: a number, or text such as ``5%``."""
    number = None
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        number = float(match[1]) / (100 if match[2] else 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    if number is None or not 0 <= number <= most:
        shown = str(value)[:40]
        raise InputError(
            f"{field} {shown!r} is not a share from 0 to {most:g} such as 0.05 or 5%",
            field=field,
            value=shown,
            nearest=(0.05,) if number is None else (min(max(number, 0.0), most),),
        )
    return number


def _read_stragglers(value: object, stages: int) -> dict[int, float]:
    """Stage to factor: text ``stage=3,slow=1.2``, mappings, or several of them."""
    if isinstance(value, str | Mapping):
        value = (value,)
    if not isinstance(value, Iterable):
        raise _not_a_straggler(value)
    found: dict[int, float] = {}
    for entry in value:
        stage, slow = _straggler(entry, stages)
        if stage in found and found[stage] != slow:
            raise InputError(
                f"straggler: stage {stage} is given twice", field="straggler", value=stage
            )
        found[stage] = slow
    return found


def _straggler(entry: object, stages: int) -> tuple[int, float]:
    if isinstance(entry, str):
        pairs = [part.partition("=") for part in entry.split(",")]
        entry = {key.strip(): text.strip() for key, _, text in pairs}
    if not isinstance(entry, Mapping):
        raise _not_a_straggler(entry)
    for key in entry:
        if key not in ("stage", "slow"):
            close = nearest_names(str(key), ("stage", "slow"))
            raise InputError(
                f"straggler has no key {str(key)!r}{did_you_mean(close)}; write stage=3,slow=1.2",
                field="straggler",
                value=str(key),
                nearest=close,
            )
    if set(entry) != {"stage", "slow"}:
        raise _not_a_straggler(entry)
    stage = read_count(entry["stage"], "straggler stage", least=0, most=stages - 1)
    slow = read_share(entry["slow"], "straggler slow", MOST_SLOW)
    if slow <= 0:
        raise InputError(
            "straggler slow 0 has to be above 0: 1.2 is a stage that takes 1.2 times as long",
            field="straggler",
            value=slow,
            nearest=(1.2,),
        )
    return stage, slow


def _not_a_straggler(value: object) -> InputError:
    return InputError(
        f"straggler {str(value)[:40]!r} is not stage=STAGE,slow=FACTOR, such as stage=3,slow=1.2",
        field="straggler",
        value=str(value)[:40],
        nearest=("stage=3,slow=1.2",),
    )


def _path(options: Mapping[str, Any], name: str, suffix: str) -> Path | None:
    """A file to write, whose name says what is in it."""
    if name not in options:
        return None
    path = Path(str(options[name]))
    if path.suffix != suffix:
        raise InputError(
            f"{name} {path} has to end in {suffix}",
            field=name,
            value=str(path),
            nearest=(str(path.with_suffix(suffix)) if path.name else f"step{suffix}",),
        )
    return path
