"""Judges run in an environment of their own: JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import shlex
import sys
import types
from collections.abc import Callable
from typing import Any


class Lazy(types.ModuleType):
    """A module whose every name is a function that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def without_triton(module: str) -> None:
    """``module`` imports triton, which has no build for a CPU: it is replaced."""
    try:
        import triton  # noqa: F401
    except ImportError:
        sys.modules[module] = Lazy(module)


def words_after(script: str, program: str) -> list[str]:
    """The words of a bash script's one command behind ``program``."""
    lines = [line for line in script.splitlines() if not line.startswith("#")]
    words = shlex.split(" ".join(line.rstrip("\\") for line in lines))
    return words[words.index(program) + 1 :]


def judge(check: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers every line of standard input; what ``check`` raises is a refusal."""
    out = sys.stdout
    for line in sys.stdin:
        case = json.loads(line)
        sys.stdout = sys.stderr
        try:
            verdict = {"ok": True, **check(case)}
        except (Exception, SystemExit) as error:
            verdict = {"ok": False, "message": f"{type(error).__name__}: {error}"}
        sys.stdout = out
        print(json.dumps({"id": case["id"], **verdict}), flush=True)
