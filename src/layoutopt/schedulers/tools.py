"""Outside programs: run with a limit, every failure one sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from layoutopt.errors import ToolError

SECONDS = 20.0
"""Longest that a scheduler's command may take."""


def run_tool(words: Sequence[str], seconds: float = SECONDS) -> str:
    """Standard output of a program; raises ToolError where it is missing, hangs or fails."""
    done = try_tool(words, seconds)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[-1][:300] if said else f"exit code {done.returncode}"
        raise ToolError(f"{words[0]} fails: {why}")
    return done.stdout


def try_tool(words: Sequence[str], seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """How a program ended; raises ToolError where it is missing or hangs."""
    try:
        return subprocess.run(
            list(words),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise ToolError(f"{words[0]} is not installed, or not on PATH") from error
    except PermissionError as error:
        raise ToolError(f"{words[0]} may not be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{words[0]} has not answered for {seconds:g} s") from error
