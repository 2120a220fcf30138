"""How far a predicted step time is from measured ones: the band of comparable runs.

`data/uncertainty.json` holds, per kind of run, how far 80% of the measured runs of that kind lie
from predictions of fits that never saw them; `benchmarks/fit_uncertainty.py` writes it. A band is
the smallest share w such that measured times within prediction * (1 +/- w) are 80% of the runs,
with the small-sample rank of split conformal prediction (Lei et al. 2018, section 2.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from layoutopt.costmodel.extrapolation import MEASURED_GPUS
from layoutopt.costmodel.job import Job

SHARE = 0.8
"""Share of comparable runs that a band is to hold."""

SCALES = (8, 64, 512, MEASURED_GPUS)
"""Largest GPU counts of the classes of scale: a server, some racks, some rows, a building."""

ANY_FRAMEWORK = "generic"
"""The software profile that stands for no framework in particular: runs of all compare with it."""


@dataclass(frozen=True)
class Kind:
    """What makes runs comparable. None: whatever it is."""

    architecture: str | None
    """GPU architecture."""
    framework: str | None
    """Framework family: megatron, nemo, torchtitan, fsdp, ..."""
    experts: bool | None
    """Mixture of experts, or dense."""
    scale: int | None
    """Largest GPU count of the class of scale; 0: beyond what was measured."""

    @property
    def words(self) -> str:
        """The kind for people: ``hopper, nemo, dense, 65 to 512 GPUs``."""
        experts = {True: "mixture of experts", False: "dense", None: None}[self.experts]
        parts = (self.architecture, self.framework, experts, scale_words(self.scale))
        return ", ".join(part for part in parts if part) or "of any kind"


@dataclass(frozen=True)
class Cell:
    """What was measured of one kind."""

    kind: Kind
    step_time_rel: float
    """Half-width of the band, relative to the prediction; each run predicted by a fit that saw
    neither it nor its neighbours (runs of the same model on the same cluster)."""
    away_rel: float
    """The same where the fit saw nothing of the run's source: what to expect of a new place."""
    records: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Band:
    """The uncertainty of a predicted step time."""

    step_time_rel: float | None
    """Half-width of the 80% band, relative to the prediction; None: no table is shipped."""
    basis: str
    """On which measured runs, and how many, in words."""
    records: int = 0
    comparable: bool = False
    """Runs of this very kind were measured; else the band is that of a wider kind."""
    extrapolated: bool = False
    """The question is beyond the sizes that were measured."""

    def to_dict(self) -> dict[str, Any]:
        """The ``uncertainty`` of schema layoutopt.plan/1."""
        return asdict(self)


def scale_of(gpus: int) -> int:
    """Class of scale of ``gpus``: the largest count of the class, 0 beyond the measured ones."""
    return next((most for most in SCALES if gpus <= most), 0)


def scale_words(scale: int | None) -> str | None:
    """A class of scale for people."""
    if scale is None:
        return None
    if scale == 0:
        return f"more than {SCALES[-1]:,} GPUs"
    place = SCALES.index(scale)
    return f"{SCALES[place - 1] + 1:,} to {scale:,} GPUs" if place else f"up to {scale} GPUs"


def kind_of(job: Job) -> Kind:
    """The kind of run that ``job`` is."""
    framework = job.software.framework
    return Kind(
        architecture=job.cluster.gpu.architecture,
        framework=None if framework == ANY_FRAMEWORK else framework,
        experts=job.model.moe is not None,
        scale=scale_of(job.gpus),
    )


def wider(kind: Kind) -> tuple[Kind, ...]:
    """``kind`` and the wider kinds that hold it, in the order in which they are asked.

    Beyond the measured sizes the largest measured ones are asked instead.
    """
    architecture, experts = kind.architecture, kind.experts
    scale = SCALES[-1] if kind.scale == 0 else kind.scale
    found = (
        kind,
        Kind(architecture, kind.framework, experts, scale),
        Kind(architecture, kind.framework, experts, None),
        Kind(architecture, None, experts, scale),
        Kind(architecture, None, experts, None),
        Kind(None, None, experts, None),
        Kind(None, None, None, None),
    )
    return tuple(dict.fromkeys(found))


def band_in(cells: Mapping[Kind, Cell], kind: Kind) -> Band:
    """The band of ``kind`` from ``cells``.

    Where nothing of the kind was measured it is that of the next wider kind, as the fits that never
    saw a source were off there, and never less than the wider kind's own.
    """
    place = next((wide for wide in wider(kind) if wide in cells), None)
    if place is None:
        return Band(None, "not yet compared with measured runs")
    cell, comparable, beyond = cells[place], place == kind, kind.scale == 0
    number, sources = f"{cell.records:,}", _names(cell.sources)
    runs = f"{number} measured runs ({place.words}; {sources})"
    if comparable:
        basis = f"80% of {runs} lie within it, each predicted by a fit without its neighbours"
        return Band(cell.step_time_rel, basis, cell.records, comparable=True)
    lacking = (
        f"extrapolation: nearly nothing is measured above {MEASURED_GPUS:,} GPUs"
        if beyond
        else f"too few runs of this kind are measured ({kind.words})"
    )
    return Band(
        step_time_rel=max(cell.step_time_rel, cell.away_rel),
        basis=f"{lacking}; 80% of {runs} lie within it, each predicted without its source",
        records=cell.records,
        extrapolated=beyond,
    )


def band(job: Job) -> Band:
    """The uncertainty of step times predicted for ``job``, from the shipped table."""
    return band_in(shipped_cells(), kind_of(job))


@lru_cache(maxsize=1)
def shipped_cells() -> dict[Kind, Cell]:
    """The shipped table; empty where none is shipped."""
    table = resources.files("layoutopt.costmodel").joinpath("data/uncertainty.json")
    if not table.is_file():
        return {}
    cells = [_cell(row) for row in json.loads(table.read_text("utf-8"))["cells"]]
    return {cell.kind: cell for cell in cells}


def cell_to_dict(cell: Cell) -> dict[str, Any]:
    """The cell as a row of the table."""
    entry = asdict(cell)
    return {**entry.pop("kind"), **entry}


def _cell(row: Mapping[str, Any]) -> Cell:
    kind = Kind(row["architecture"], row["framework"], row["experts"], row["scale"])
    return Cell(kind, row["step_time_rel"], row["away_rel"], row["records"], tuple(row["sources"]))


def _names(sources: tuple[str, ...]) -> str:
    shown = ", ".join(sources[:3])
    return shown if len(sources) <= 3 else f"{shown} and {len(sources) - 3} more"
