"""Questions to the real programs, which live in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

JUDGES = Path(__file__).parent / "judges"
PYTHON = os.environ.get("FRAMEWORKS_PYTHON")
"""Python of an environment made from requirements.txt."""


def need_frameworks() -> str:
    """That Python; skips where there is none, unless REQUIRE_FRAMEWORKS=1 says there has to be."""
    if PYTHON and Path(PYTHON).exists():
        return PYTHON
    why = "FRAMEWORKS_PYTHON names no environment made from tests/frameworks/requirements.txt"
    if os.environ.get("REQUIRE_FRAMEWORKS") == "1":
        pytest.fail(why)
    pytest.skip(why)


def verdicts(judge: str, cases: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the program behind ``judge`` says of each case, by id."""
    python = need_frameworks()
    done = subprocess.run(
        [python, str(JUDGES / f"judge_{judge}.py")],
        input="\n".join(json.dumps(case) for case in cases),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"id"')]
    answers = {answer["id"]: answer for answer in map(json.loads, lines)}
    missing = [case["id"] for case in cases if case["id"] not in answers]
    assert not missing, f"no verdict on {missing}:\n{done.stderr[-2000:]}"
    return answers
