"""The accuracy scripts run as the README says, on a small file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.validation.builders import row, write

ROOT = Path(__file__).parents[2]


def run(script: str, path: Path) -> str:
    command = [sys.executable, "-m", f"benchmarks.{script}", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_accuracy_prints_a_row_per_source_with_the_napkin(tmp_path: Path) -> None:
    """6 x 6.738e9 x 262,144 tokens / (8 x 0.4 x 312e12) = 10.62 s, 6.2% above 10 s."""
    out = run("accuracy", write(tmp_path / "mine.jsonl", row("a"), row("b")))
    mine = next(line for line in out.splitlines() if line.split()[:1] == ["mine"])
    assert mine.split()[1:4] == ["2", "2", "2"]
    assert mine.split()[8:10] == ["6.2%", "6.2%"]
    assert "2 records in" in out


def test_residuals_print_a_row_per_value_of_an_axis(tmp_path: Path) -> None:
    rows = [row(f"run-{number}") for number in range(4)]
    out = run("residuals", write(tmp_path / "mine.jsonl", *rows))
    assert "time by tp" in out
    assert any(line.split()[:2] == ["2", "4"] for line in out.splitlines())
