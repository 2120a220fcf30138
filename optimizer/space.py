"""The space of layouts: which values each axis may take, and which of them go together.

Nothing here lists layouts: an axis has a handful of values, and `candidates` counts the legal
combinations by multiplying.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from layoutopt.costmodel import framework_rules as framework
from layoutopt.costmodel import rules as legal
from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import PIPELINE_INSIDE, RECOMPUTE, Layout
from layoutopt.costmodel.rules import divisors
from layoutopt.optimizer.question import AXES, Limit, Question

Values = dict[str, tuple[int, ...]]
"""Axis to the values it may take, rising; recompute by its code (its index in RECOMPUTE)."""

_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


def tensor_divides_heads(job: Job, tp: int) -> bool:
    """tp divides the heads, the key-value heads (or they it) and the MLP width."""
    return legal.tensor_parallel_fits(job, tp)


def context_halves_the_sequence(job: Job, cp: int) -> bool:
    """The sequence splits into 2 cp causal halves."""
    return legal.context_parallel_fits(job, cp)


def framework_has_the_axis(job: Job, axis: str, value: int) -> bool:
    """The framework runs the axis at that degree; nanotron copies no key-value heads."""
    has = framework.axis_is_run(job, axis, value)
    return has and (axis != "tp" or framework.heads_are_not_copied(job, value))


AXIS_RULES: dict[str, Callable[[Job, int], bool]] = {
    "tp": tensor_divides_heads,
    "cp": context_halves_the_sequence,
}
"""Rules that look at one axis alone; the others stand in rules.py. Divisors of the GPUs, the batch
and the experts, and no more stages than layers, are the domains themselves (arithmetic_values)."""

RULES = (
    "tensor_divides_heads",
    "context_halves_the_sequence",
    "framework_has_the_axis",
    "keep_to_fix",
    "keep_to_limits",
    "use_every_gpu",
    "use_the_batch",
    "cut_layers_evenly",
    "sequence_parallel_splits",
    "interleave_whole_groups",
    "framework_shards",
    "experts_share_a_stage",
    "every_stage_fits",
)
"""Names of all rules; ``space_of`` leaves out those that it is told to."""


@dataclass(frozen=True)
class Space:
    """What a question leaves open. ``dropped`` names rules that tests switch off."""

    question: Question
    values: Values
    dropped: frozenset[str] = frozenset()

    @property
    def job(self) -> Job:
        """The question's job."""
        return self.question.job

    def keeps(self, rule: str) -> bool:
        """Whether ``rule`` is in force."""
        return rule not in self.dropped

    @cached_property
    def grids(self) -> tuple[tuple[int, int, int, int], ...]:
        """(tp, cp, pp, dp) that use every GPU and, with sequence parallel, split the sequence."""
        gpus, known, found = self.job.gpus, set(self.values["dp"]), []
        for tp in self.values["tp"]:
            for cp in self.values["cp"]:
                if not self.splits(tp, cp):
                    continue
                for pp in self.values["pp"]:
                    dp, rest = divmod(gpus, tp * cp * pp)
                    if rest == 0 and dp in known:
                        found.append((tp, cp, pp, dp))
        return tuple(found)

    @cached_property
    def batches(self) -> tuple[tuple[int, int, int], ...]:
        """(dp, micro_batch, microbatches) whose product is the global batch."""
        batch, known, found = self.job.training.global_batch, set(self.values["microbatches"]), []
        for dp in self.values["dp"]:
            for micro_batch in self.values["micro_batch"]:
                microbatches, rest = divmod(batch, dp * micro_batch)
                if rest == 0 and microbatches in known:
                    found.append((dp, micro_batch, microbatches))
        return tuple(found)

    @cached_property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """(pp, vpp) that cut the layers evenly."""
        whole = self.keeps("cut_layers_evenly")
        return tuple(
            (pp, vpp)
            for pp in self.values["pp"]
            for vpp in self.values["vpp"]
            if (self._cuts(pp, vpp) if whole else pp > 1 or vpp == 1)
        )

    def _cuts(self, pp: int, vpp: int) -> bool:
        return legal.pipeline_fits(self.job, pp, vpp) and framework.stages_are_even(
            self.job, pp, vpp
        )

    def splits(self, tp: int, cp: int) -> bool:
        """Sequence parallelism, where it is used, gives every rank whole positions; the framework
        runs experts, and cuts the sequence, this way."""
        if self.keeps("sequence_parallel_splits") and not self._framework_splits(tp, cp):
            return False
        if not self.keeps("sequence_parallel_splits") or not uses_sequence_parallel(self.job, tp):
            return True
        return legal.sequence_splits(self.job, tp, cp)

    def _framework_splits(self, tp: int, cp: int) -> bool:
        sequence = uses_sequence_parallel(self.job, tp)
        experts = framework.experts_run_with(self.job, tp, sequence)
        return experts and framework.halves_are_whole(self.job, tp, cp)

    def groups(self, pp: int, vpp: int, microbatches: int) -> bool:
        """Interleaving works on groups of pp microbatches."""
        if not self.keeps("interleave_whole_groups"):
            return True
        return legal.interleaving_fits(pp, vpp, microbatches)

    def shards(self, zero_stage: int, pp: int) -> bool:
        """The framework runs this ZeRO stage with this pipeline."""
        return not self.keeps("framework_shards") or legal.sharding_fits(self.job, zero_stage, pp)

    def expert_groups(self, ep: int, pp: int) -> bool:
        """Expert groups divide the GPUs of a stage."""
        if not self.keeps("experts_share_a_stage"):
            return True
        return self.job.gpus % (ep * pp) == 0

    @cached_property
    def candidates(self) -> int:
        """Legal layouts, memory ignored; counted by multiplying, never listed."""
        values, ways = self.values, self._ways_by_pp
        batches = defaultdict(list)
        for dp, _, microbatches in self.batches:
            batches[dp].append(microbatches)
        chunks = defaultdict(list)
        for pp, vpp in self.chunks:
            chunks[pp].append(vpp)
        fits: dict[tuple[int, int], int] = {}
        total = 0
        for _, _, pp, dp in self.grids:
            if (pp, dp) not in fits:
                fits[pp, dp] = sum(self.groups(pp, v, m) for m in batches[dp] for v in chunks[pp])
            total += fits[pp, dp] * ways[pp]
        return total * len(values["recompute"])

    @property
    def _ways_by_pp(self) -> dict[int, int]:
        """Legal (zero_stage, ep) for each pp."""
        return {
            pp: sum(self.shards(z, pp) for z in self.values["zero_stage"])
            * sum(self.expert_groups(ep, pp) for ep in self.values["ep"])
            for pp in self.values["pp"]
        }


def uses_sequence_parallel(job: Job, tp: int) -> bool:
    """Sequence parallelism follows the framework's default, and needs tp > 1: not searched."""
    return job.software.default_sequence_parallel and tp > 1


def space_of(question: Question, dropped: Iterable[str] = ()) -> Space:
    """Axis values that arithmetic, the axis's own rule, ``fix`` and ``limits`` leave."""
    off = frozenset(dropped)
    values = {
        axis: tuple(value for value in domain if _allowed(question, axis, value, off))
        for axis, domain in arithmetic_values(question.job).items()
    }
    return Space(question, values, off)


def arithmetic_values(job: Job) -> Values:
    """Every value of each axis that divides what it has to divide."""
    gpus, batch, layers = job.gpus, job.training.global_batch, job.model.layers
    experts = job.model.moe.experts if job.model.moe else 1
    of_gpus = divisors(gpus)
    of_batch = divisors(batch)
    chunk_counts = {n // pp for n in (layers, layers + 2) for pp in of_gpus if n % pp == 0}
    # Stages apart or a pipeline together: the latter is priced for whole replicas (see orders).
    inside = job.axis_order == PIPELINE_INSIDE
    counts = sorted({v for count in chunk_counts if count > 0 for v in divisors(count)} | {1})
    return {
        "tp": tuple(tp for tp in of_gpus if tp <= job.model.heads),
        "cp": (1,) if inside else tuple(cp for cp in of_gpus if cp <= job.training.seq_len),
        "pp": tuple(pp for pp in of_gpus if pp <= layers and (pp > 1 or not inside)),
        "dp": tuple(dp for dp in of_gpus if batch % dp == 0),
        "ep": divisors(experts),
        "vpp": tuple(v for v in counts if v <= layers),
        "micro_batch": of_batch,
        "microbatches": of_batch,
        "zero_stage": (0, 1, 2, 3),
        "recompute": tuple(range(len(RECOMPUTE))),
    }


def _allowed(question: Question, axis: str, value: int, off: frozenset[str]) -> bool:
    rule = AXIS_RULES.get(axis)
    if rule is not None and rule.__name__ not in off and not rule(question.job, value):
        return False
    if "framework_has_the_axis" not in off and not framework_has_the_axis(
        question.job, axis, value
    ):
        return False
    if axis in question.fix and "keep_to_fix" not in off and value != fixed(question, axis):
        return False
    return "keep_to_limits" in off or within(question.limits, axis, value)


def fixed(question: Question, axis: str) -> int:
    """The value that ``fix`` gives ``axis``, as an integer."""
    value = question.fix[axis]
    codes: dict[object, int] = {name: code for code, name in enumerate(RECOMPUTE)}
    return codes[value] if axis == "recompute" else int(value)


def within(limits: Iterable[Limit], axis: str, value: int) -> bool:
    """Whether ``value`` keeps to every limit on ``axis``."""
    return all(_HOLDS[limit.op](value, limit.bound) for limit in limits if limit.axis == axis)


def layout_of(job: Job, chosen: dict[str, int]) -> Layout:
    """The layout of one value per axis; what is not searched follows the framework."""
    said: dict[str, Any] = {axis: chosen[axis] for axis in AXES if axis != "recompute"}
    defaults = default_layout_values(job.software, tp=chosen["tp"], pp=chosen["pp"])
    return Layout(
        **said,
        recompute=RECOMPUTE[chosen["recompute"]],
        sequence_parallel=defaults.sequence_parallel,
        reshard=defaults.reshard,
        schedule="interleaved" if chosen["vpp"] > 1 else "1f1b",
        axis_order=job.axis_order,
    )
