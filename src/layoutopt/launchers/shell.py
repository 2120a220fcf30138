"""Bash scripts of one command: literal flags, every word quoted, one option a line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Flag = tuple[str, ...]
"""An option and its values: ("--tensor-model-parallel-size", "8")."""

RENDEZVOUS = '"${MASTER_ADDR:-127.0.0.1}:${MASTER_PORT:-29500}"'
"""Where the ranks meet, from the job's environment; literal shell text."""


@dataclass(frozen=True)
class Script:
    """A launch: environment, program and flags. Values are plain text; quoting happens here."""

    program: tuple[str, ...]
    flags: Sequence[Flag]
    environment: Mapping[str, str] = field(default_factory=dict)
    comments: Iterable[str] = ()
    raw: Sequence[str] = ()
    """Words behind the program that are shell text already."""

    def text(self) -> str:
        """The script, ending in a line break."""
        lines = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        lines.append(" ".join([*map(shlex.quote, self.program), *self.raw]))
        lines += [" ".join(map(shlex.quote, flag)) for flag in self.flags]
        comments = [f"# {' '.join(line.split())}" for line in self.comments]
        body = " \\\n  ".join(lines)
        return "\n".join(["#!/usr/bin/env bash", *comments, body]) + "\n"


def torchrun(nodes: int, gpus_a_node: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """torchrun's words, and those that are shell text, for ``nodes`` servers."""
    words = ("torchrun", f"--nnodes={nodes}", f"--nproc-per-node={gpus_a_node}")
    if nodes == 1:
        return (*words, "--standalone"), ()
    return (*words, "--rdzv-backend=c10d"), (f"--rdzv-endpoint={RENDEZVOUS}",)
