"""``layoutopt submit`` on Slurm: nodes, a solved plan, sbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from layoutopt.errors import InputError, LayoutoptError
from layoutopt.hardware_profiles.catalog import find_gpu
from layoutopt.hardware_profiles.cluster import cluster_for, with_nodes
from layoutopt.hardware_profiles.fragment import fragment
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.inputs.numbers import MOST_GPUS, read_count
from layoutopt.launchers.plan import Plan, read_plan
from layoutopt.report.answer import Answer
from layoutopt.report.plan_json import layout_line
from layoutopt.schedulers.nodes import Node, Pool, pool_for, states_of
from layoutopt.schedulers.slurm_nodes import slurm_nodes, slurm_switches
from layoutopt.schedulers.slurm_submit import Submission, sizes, soonest, wait_s
from layoutopt.schedulers.variables import variables
from layoutopt.units import format_seconds

SCHEMA = "layoutopt.submission/1"


@dataclass(frozen=True)
class Asked:
    """What ``submit`` was asked besides the question."""

    script: str
    nodes: str | None
    partition: str | None
    when: bool
    more: tuple[str, ...]


@dataclass(frozen=True)
class Submitted:
    """What was submitted, or would be."""

    submission: Submission
    answer: Answer
    job: str | None
    """Slurm's id; None in a dry run."""
    waits_s: dict[int, float] = field(default_factory=dict)
    """Seconds until a job of so many nodes would start, where Slurm was asked."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON of schema layoutopt.submission/1; the plan is whole."""
        return {
            "schema": SCHEMA,
            "job": self.job,
            "command": self.submission.words,
            "nodes": self.submission.plan.nodes,
            "variables": variables(self.submission.plan),
            "waits_s": {str(nodes): wait for nodes, wait in self.waits_s.items()},
            "notes": list(self.notes),
            "plan": self.answer.to_dict(),
        }

    def text(self) -> str:
        """The job's id alone on the first line, as --parsable prints it, or the command."""
        plan = self.submission.plan
        first = self.job if self.job is not None else self.submission.line()
        found = self.answer.plan
        lines = [first]
        if found is not None:
            step = format_seconds(found.step.time_s)
            wall = format_seconds(found.run.wall_time_s)
            lines.append(
                f"{plan.nodes} x {plan.gpus_a_node} {plan.gpu}: {layout_line(plan.layout)}; "
                f"{step} a step, {wall} in all ({self.answer.status})"
            )
        return "\n".join([*lines, *self.notes])


def submit(
    asked: Asked, options: Mapping[str, Any], stdin: TextIO | None, *, dry_run: bool
) -> Submitted:
    """Solves for nodes that Slurm has, and hands the script to sbatch.

    Raises InputError for a size or type that the cluster has not, ToolError where Slurm is missing,
    hangs or refuses, and what ``solve`` raises.
    """
    given = {name: value for name, value in options.items() if value is not None}
    pool = pool_for(slurm_nodes(), given.get("gpu"), asked.partition)
    least, most, notes = _range(pool, asked, given)
    # A job that may wait gets whichever nodes come free.
    now = not asked.when and most <= len(pool.free)
    cluster = _cluster(pool, pool.free if now else pool.nodes, given)
    waits: dict[int, float] = {}
    if asked.when and most > least:
        answer, waits = _soonest_finish(asked, given, cluster, pool, least, most, stdin)
    else:
        answer = _solved(given, cluster, pool, least, most, stdin)
    plan = _plan(answer)
    submission = Submission(plan, asked.script, asked.partition, asked.more)
    job = None if dry_run else submission.submit()
    return Submitted(submission, answer, job, waits, notes)


def _cluster(pool: Pool, nodes: Sequence[Node], given: Mapping[str, Any]) -> Cluster:
    """The pool's nodes as a machine: the GPU's usual links, the scheduler's number of GPUs, and
    its switches where it says which nodes hang on which."""
    name = given.get("gpu") or pool.kind
    if name is None:
        raise InputError(
            "Slurm does not say which GPUs its nodes have (GRES gpu without a type): give --gpu",
            field="gpu",
        )
    gpu, _ = find_gpu(str(name))
    cluster = with_nodes(cluster_for(gpu, gpus_per_node=pool.gpus_per_node), len(pool.nodes))
    paths = slurm_switches()
    mine = {node.name: paths[node.name] for node in nodes if node.name in paths}
    if len(mine) < len(nodes) or len(set(mine.values())) < 2:
        return cluster
    depth = len(next(iter(mine.values())))
    outer = (f"tier{tier}" for tier in range(depth - 2))
    return fragment(cluster, mine, (*outer, "spine", "leaf")[-depth:])


def _range(pool: Pool, asked: Asked, given: dict[str, Any]) -> tuple[int, int, tuple[str, ...]]:
    """Fewest and most nodes, and what is worth saying; ``gpus`` is taken out of ``given``."""
    per, free, there = pool.gpus_per_node, len(pool.free), len(pool.nodes)
    gpus = given.pop("gpus", None)
    if asked.nodes is not None and gpus is not None:
        raise InputError("--nodes and --gpus both say how many: give one of them", field="nodes")
    if asked.nodes is not None:
        least = most = read_count(asked.nodes, "nodes", most=MOST_GPUS)
    elif gpus is not None:
        least, most = (_nodes(end, per) for end in (str(gpus).split("..") * 2)[:2])
    elif free == 0 and not asked.when:
        raise InputError(
            f"no node is free: {states_of(pool)}; --when waits for some, --nodes N queues",
            field="nodes",
            value=0,
        )
    else:
        least, most = 1, there if asked.when else free
    if most > there:
        raise InputError(
            f"{most} nodes are asked for, but there are {there} of {per} GPUs ({states_of(pool)})",
            field="nodes",
            value=most,
            nearest=(there,),
        )
    note = f"{free} of {there} nodes are free ({states_of(pool)}): the job may wait"
    return least, most, (note,) if least > free else ()


def _nodes(gpus: str, per: int) -> int:
    count = read_count(gpus.strip(), "gpus", most=MOST_GPUS)
    if count % per:
        beside = tuple(n for n in (count // per * per, (count // per + 1) * per) if n)
        raise InputError(
            f"{count} GPUs are no whole nodes of {per}", field="gpus", value=count, nearest=beside
        )
    return count // per


def _solved(
    given: Mapping[str, Any],
    cluster: Cluster,
    pool: Pool,
    least: int,
    most: int,
    stdin: TextIO | None,
) -> Answer:
    from layoutopt.api import answer_solve

    per = pool.gpus_per_node
    gpus = str(least * per) if least == most else f"{least * per}..{most * per}"
    question = {name: value for name, value in given.items() if name != "gpu"}
    return answer_solve({"cluster": cluster, **question, "gpus": gpus, "top": 0}, stdin)


def _soonest_finish(
    asked: Asked,
    given: Mapping[str, Any],
    cluster: Cluster,
    pool: Pool,
    least: int,
    most: int,
    stdin: TextIO | None,
) -> tuple[Answer, dict[int, float]]:
    """The size whose wait and run end first."""
    answers: dict[int, Answer] = {}
    waits: dict[int, float] = {}
    for nodes in sizes(least, most):
        wait = wait_s(asked.script, nodes, pool.gpus_per_node, asked.partition, asked.more)
        if wait is None:
            continue
        try:
            answer = _solved(given, cluster, pool, nodes, nodes, stdin)
        except LayoutoptError:
            if nodes == most and not answers:
                raise
            continue  # no legal layout of so many GPUs
        if answer.plan is not None:
            answers[nodes], waits[nodes] = answer, wait
    ends = {n: waits[n] + one.plan.run.wall_time_s for n, one in answers.items() if one.plan}
    return answers[soonest(ends)], waits


def _plan(answer: Answer) -> Plan:
    if answer.plan is None:
        raise InputError(
            f"nothing is submitted: the search ended {answer.status}; layoutopt solve says why",
            field="model",
        )
    return read_plan(answer.to_dict())
