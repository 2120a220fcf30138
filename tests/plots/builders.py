"""Stored sweeps to draw: priced layouts, no search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layoutopt.plots.series import Sweep, read_sweep
from layoutopt.sweep.store import Store
from layoutopt.sweep.sweep import run_sweep
from tests.sweep.builders import priced, spec_of

SIZES = {"gpus": [64, 128, 256, 4096], "gpu": ["h100", "b200"]}
GRID = {"gpus": [64, 128], "fix.tp": [1, 2, 4], "fix.pp": [1, 2]}


def stored(folder: Path, **keys: Any) -> Path:
    """The folder of a sweep of the 8B model over these axes."""
    run_sweep(spec_of(**{"axes": SIZES, **keys}), folder, priced)
    return folder


def read(folder: Path) -> Sweep:
    """What pictures of that folder show."""
    with Store.open(folder) as store:
        return read_sweep(store)
