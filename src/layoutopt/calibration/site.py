"""A calibration: a handful of factors for one GPU type and one framework, kept as a YAML file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from layoutopt.costmodel.efficiency import Efficiency, efficiency_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.software import Software
from layoutopt.errors import InputError, ProfileError
from layoutopt.hardware_profiles.reading import parse_yaml, read_file
from layoutopt.nearest import did_you_mean, nearest_names

SCHEMA = "layoutopt.calibration/1"

MOST = 5.0
"""Largest factor, and inverse of the smallest, that is believed of a site."""

_OVERLAPS = (
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_fsdp",
    "overlap_tp",
    "overlap_pp",
    "overlap_ep",
)

_HEAD = """\
# Made by layoutopt calibrate: what {runs} measured runs say about {gpu} with {framework}.
# Use it with --calibration FILE of solve, estimate and validate. Factors are over the shipped
# figures: times above 1 are slower, rates above 1 faster, overlap_shift is the share of what was
# exposed that is hidden (above 0), or of what was hidden that is exposed (below 0).
"""


@dataclass(frozen=True)
class Factors:
    """What differs at a site, over the shipped figures."""

    compute_time: float = 1.0
    """Kernel time over the shipped."""
    memory_rate: float = 1.0
    """Rate of streaming kernels over the shipped."""
    scaleup_rate: float = 1.0
    """Bus bandwidth inside the scale-up domain over the shipped."""
    network_time: float = 1.0
    """Network time over the shipped."""
    overlap_shift: float = 0.0
    """-1 to 1: share of exposed traffic that gets hidden; below 0, of hidden that is exposed."""

    def efficiency(self, shipped: Efficiency) -> Efficiency:
        """The architecture's row at this site; no rate passes its wire."""
        return shipped.model_copy(
            update={
                "memory": min(1.0, shipped.memory * self.memory_rate),
                "scaleup": min(1.0, shipped.scaleup * self.scaleup_rate),
                "scaleout": min(1.0, shipped.scaleout / self.network_time),
            }
        )

    def software(self, shipped: Software) -> Software:
        """The framework's profile at this site."""
        moved = {name: self._shifted(getattr(shipped, name)) for name in _OVERLAPS}
        return shipped.model_copy(
            update={
                "compute_factor": shipped.compute_factor * self.compute_time,
                **moved,
            }
        )

    def _shifted(self, overlap: float) -> float:
        shift = self.overlap_shift
        return overlap + shift * (1 - overlap) if shift > 0 else overlap * (1 + shift)

    def apply(self, job: Job) -> Job:
        """``job`` with the site's figures; the job's own are taken as the shipped ones."""
        shipped = job.efficiency or efficiency_of(job.cluster.gpu.architecture)
        return replace(
            job, software=self.software(job.software), efficiency=self.efficiency(shipped)
        )


@dataclass(frozen=True)
class SiteErrors:
    """How far predictions are from the site's runs. Shares of 1."""

    shipped_mean: float
    """Mean |predicted / measured - 1| with the shipped figures."""
    fitted_mean: float
    left_out_mean: float
    """Each run predicted by a fit to the others."""
    left_out_band: float | None
    """Half-width that holds 80% of the left-out runs; None of fewer than four."""


@dataclass(frozen=True)
class Site:
    """A calibration of one GPU type and one framework."""

    gpu: str
    framework: str
    """Name of the software profile."""
    factors: Factors
    runs: tuple[str, ...]
    """Ids of the runs behind it."""
    errors: SiteErrors | None = None
    made: str = ""
    """Date and program."""

    def applies_to(self, job: Job) -> bool:
        """The job is for this GPU type and framework."""
        return (job.cluster.gpu.name, job.software.name) == (self.gpu, self.framework)

    def apply(self, job: Job) -> Job:
        """``job`` with the site's figures where it is for this GPU and framework, else as it is."""
        return self.factors.apply(job) if self.applies_to(job) else job

    def to_dict(self) -> dict[str, Any]:
        """The keys of schema layoutopt.calibration/1 that a file holds."""
        return {
            "schema": SCHEMA,
            "gpu": self.gpu,
            "framework": self.framework,
            "factors": asdict(self.factors),
            "runs": list(self.runs),
            "errors": asdict(self.errors) if self.errors else None,
            "made": self.made,
        }

    def text(self) -> str:
        """The YAML file."""
        head = _HEAD.format(runs=len(self.runs), gpu=self.gpu, framework=self.framework)
        body = yaml.safe_dump(self.to_dict(), sort_keys=False, width=100, allow_unicode=True)
        return f"{head}{body}"


def load_site(path: str | Path) -> Site:
    """The calibration in a file; raises InputError that names the field and the value."""
    where = str(path)
    try:
        data = parse_yaml(read_file(Path(where)), where)
    except ProfileError as error:
        raise InputError(error.message, field="calibration", value=where) from None
    _refuse_unknown(data, ("schema", *(field.name for field in fields(Site))), where)
    if data.get("schema") != SCHEMA:
        raise InputError(
            f"{where} is no calibration: its schema is {str(data.get('schema'))[:60]!r}, not "
            f"{SCHEMA!r}; layoutopt calibrate makes such files",
            field="schema",
            value=str(data.get("schema"))[:60],
            nearest=(SCHEMA,),
        )
    return Site(
        gpu=_text(data, "gpu", where),
        framework=_text(data, "framework", where),
        factors=_factors(data.get("factors"), where),
        runs=_names(data.get("runs"), where),
        errors=_errors(data.get("errors"), where),
        made=str(data.get("made") or ""),
    )


def refuse_other_file(path: str | Path) -> None:
    """Raises InputError where ``path`` is a folder, or a file that is no calibration.

    A calibration is replaced without a question; a slip of the keyboard costs no other file.
    """
    place = Path(path)
    if place.is_dir() or not place.parent.is_dir():
        why = "is a folder" if place.is_dir() else f"is in no folder: {place.parent} does not exist"
        raise InputError(f"--out {path} {why}", field="out", value=str(path))
    if place.exists() and place.stat().st_size:
        try:
            load_site(place)
        except InputError:
            raise InputError(
                f"--out {path} exists and is no calibration: it is left as it is",
                field="out",
                value=str(path),
            ) from None


def _refuse_unknown(data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in data:
        if key not in known:
            close = nearest_names(str(key), known)
            hint = did_you_mean(close) or f"; known: {', '.join(known)}"
            raise InputError(
                f"{where}: nothing is called {str(key)[:60]!r}{hint}",
                field=str(key)[:60],
                nearest=close,
            )


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {key} must be a name, not {value!r}", field=key, value=value)
    return value.strip()


def _names(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InputError(
            f"{where}: runs must be a list of ids", field="runs", value=str(value)[:60]
        )
    return tuple(value)


def _mapping(value: object, key: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} must hold keys with values", field=key)
    return value


def _factors(value: object, where: str) -> Factors:
    given = _mapping(value, "factors", where)
    names = [field.name for field in fields(Factors)]
    _refuse_unknown(given, names, where)
    found = {name: _number(given[name], f"factors.{name}", where) for name in given}
    for name, number in found.items():
        low, high = (-1.0, 1.0) if name == "overlap_shift" else (1 / MOST, MOST)
        if not low <= number <= high:
            raise InputError(
                f"{where}: factors.{name} is {number:g}; it lies between {low:g} and {high:g}",
                field=f"factors.{name}",
                value=number,
                nearest=(low if number < low else high,),
            )
    return Factors(**found)


def _errors(value: object, where: str) -> SiteErrors | None:
    if value is None:
        return None
    given = _mapping(value, "errors", where)
    names = [field.name for field in fields(SiteErrors)]
    _refuse_unknown(given, names, where)
    found: dict[str, Any] = {}
    for name in names:
        if given.get(name) is not None:
            found[name] = abs(_number(given[name], f"errors.{name}", where))
        elif name == "left_out_band":
            found[name] = None
        else:
            raise InputError(f"{where}: errors.{name} is missing", field=f"errors.{name}")
    return SiteErrors(**found)


def _number(value: object, field: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        shown = str(value)[:60]
        raise InputError(
            f"{where}: {field} must be a finite number, not {shown}", field=field, value=shown
        )
    return float(value)
