"""sbatch with a solved layout: how many nodes, which layout, when it would start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from layoutopt.errors import InputError, ToolError
from layoutopt.launchers.plan import Plan
from layoutopt.schedulers.tools import run_tool, try_tool
from layoutopt.schedulers.variables import variables

_STARTS = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class Submission:
    """What is handed to sbatch."""

    plan: Plan
    script: str
    partition: str | None = None
    more: tuple[str, ...] = ()
    """sbatch's own options, as they were given after ``--``."""

    @property
    def words(self) -> list[str]:
        """The command: nothing of it is read by a shell."""
        exported = ",".join(f"{key}={value}" for key, value in variables(self.plan).items())
        return [
            "sbatch",
            "--parsable",
            *size_words(self.plan.nodes, self.plan.gpus_a_node, self.partition),
            f"--export=ALL,{exported}",
            "--comment=layoutopt=done",
            *self.more,
            self.script,
        ]

    def line(self) -> str:
        """The command as one line of shell."""
        return shlex.join(self.words)

    def submit(self) -> str:
        """The job's id; raises ToolError with sbatch's own words where it refuses."""
        said = run_tool(self.words).strip()
        job, _, _ = said.partition(";")  # with several clusters: id;cluster
        if not job.isdigit():
            raise ToolError(f"sbatch gives no job id: {said[:200]!r}")
        return job


def size_words(nodes: int, gpus_a_node: int, partition: str | None) -> list[str]:
    """Nodes and GPUs of a job in sbatch's words."""
    words = [f"--nodes={nodes}", f"--gpus-per-node={gpus_a_node}"]
    return [*words, f"--partition={partition}"] if partition else words


def wait_s(
    script: str, nodes: int, gpus_a_node: int, partition: str | None, more: Sequence[str] = ()
) -> float | None:
    """Seconds until Slurm would start a job of so many nodes; None where it never would.

    ``sbatch --test-only`` answers from the backfill scheduler's plan; it uses up a job id.
    """
    words = ["sbatch", "--test-only", *size_words(nodes, gpus_a_node, partition), *more, script]
    done = try_tool(words)
    found = _STARTS.search(done.stderr + done.stdout)
    if found is None:
        return None
    starts = datetime.fromisoformat(found[1])
    return max(0.0, (starts - datetime.now()).total_seconds())


def soonest(finishes: Mapping[int, float]) -> int:
    """The node count whose run ends first; raises InputError where none would ever start."""
    if not finishes:
        raise InputError(
            "Slurm would start no job of these sizes (sbatch --test-only)", field="gpus"
        )
    return min(finishes, key=lambda nodes: (finishes[nodes], nodes))


def sizes(least: int, most: int, limit: int = 12) -> Iterable[int]:
    """Node counts to ask about: all where they are few, else powers of two and the largest."""
    if most - least < limit:
        return range(least, most + 1)
    powers = [1 << power for power in range(most.bit_length()) if least <= 1 << power <= most]
    return sorted({least, *powers, most})
