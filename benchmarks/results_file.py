"""Dated records in benchmarks/results: never edited, so a second one of a day gets a number."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def parameters_mark() -> str:
    """Twelve hex digits that change with the shipped values of the fitted figures."""
    # Late: a reader of records needs no scipy.
    from benchmarks.fit_time import current, parameters

    fitted = parameters()
    values = zip(fitted, current(fitted), strict=True)
    text = "\n".join(f"{parameter.key} {value:.6g}" for parameter, value in values)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def circumstances(command: str) -> dict[str, Any]:
    """When, by which command, from which commit, where and with what a record was made."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.date.today().isoformat(),
        "command": command,
        "commit": described.stdout.strip() or "unknown",
        "parameters": parameters_mark(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "versions": {name: metadata.version(name) for name in ("layoutopt", "numpy", "scipy")},
    }


def new_file(kind: str, suffix: str = ".json") -> Path:
    """A path for a record of today: DATE_kind.json, DATE_kind-2.json, ..."""
    stem = f"{datetime.date.today().isoformat()}_{kind}"
    names = [f"{stem}{suffix}", *(f"{stem}-{number}{suffix}" for number in range(2, 1000))]
    return next(path for name in names if not (path := RESULTS / name).exists())


def newest(kind: str) -> dict[str, Any] | None:
    """The latest record of ``kind``; None where there is none."""

    def order(path: Path) -> tuple[str, int]:
        date, _, rest = path.stem.partition(f"_{kind}")
        return date, int(rest.lstrip("-") or 1)

    found = sorted(RESULTS.glob(f"*_{kind}*.json"), key=order)
    if not found:
        return None
    record: dict[str, Any] = json.loads(found[-1].read_text("utf-8"))
    return {**record, "file": found[-1].name}
