"""The space of layouts: which values each axis may take, and which of them go together.

Nothing here lists layouts: an axis has a handful of values, and `candidates` counts the legal
combinations by multiplying.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from layoutopt.costmodel import framework_rules as framework
from layoutopt.costmodel import rules as legal
from layoutopt.costmodel import spreading
from layoutopt.costmodel.axes import RING, Flags, Ints, ints
from layoutopt.costmodel.defaults import default_layout_values
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS, RECOMPUTE, Layout
from layoutopt.optimizer import choices
from layoutopt.optimizer.domains import HOLDS, Values, arithmetic_values, fixed, keys_of, within
from layoutopt.optimizer.question import Question


def tensor_divides_heads(job: Job, tp: int) -> bool:
    """tp divides the heads, the key-value heads (or they it) and the MLP width."""
    return legal.tensor_parallel_fits(job, tp)


def context_halves_the_sequence(job: Job, cp: int) -> bool:
    """The sequence splits into 2 cp causal halves."""
    return spreading.context_parallel_fits(job, cp)


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
    "experts_stay_within_tensor_ranks",
    "shards_divide_replicas",
    "context_kind_splits_heads",
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

    def sequence_parallel(self, tp: int, cp: int) -> bool:
        """Whether a layout of this tp and cp uses it: where the sequence splits, as without it
        nothing is faster or smaller; ``fix`` decides otherwise."""
        if not self.keeps("sequence_parallel_splits"):
            return tp > 1 and self.job.software.default_sequence_parallel
        return uses_sequence_parallel(self.question, tp, cp)

    def splits(self, tp: int, cp: int) -> bool:
        """Sequence parallelism, where it is used, gives every rank whole positions; the framework
        runs experts, and cuts the sequence, this way."""
        if self.keeps("sequence_parallel_splits") and not self._framework_splits(tp, cp):
            return False
        asked = self.question.fix.get("sequence_parallel")
        if tp == 1 and asked and self.keeps("keep_to_fix"):
            return False
        if not self.keeps("sequence_parallel_splits") or not self.sequence_parallel(tp, cp):
            return True
        return legal.sequence_splits(self.job, tp, cp)

    def _framework_splits(self, tp: int, cp: int) -> bool:
        sequence = self.sequence_parallel(tp, cp)
        experts = framework.experts_run_with(self.job, tp, sequence)
        return experts and framework.halves_are_whole(self.job, tp, cp)

    def groups(self, pp: int, vpp: int, microbatches: int) -> bool:
        """Interleaving works on groups of pp microbatches."""
        if not self.keeps("interleave_whole_groups"):
            return True
        return legal.interleaving_fits(pp, vpp, microbatches)

    def shards(self, sharding: int, pp: int) -> bool:
        """The framework runs this ZeRO stage with this pipeline, and keeps gathered weights or
        drops them there; ``fix`` agrees."""
        chosen = choices.sharding(sharding)
        usual = default_layout_values(self.job.software, tp=1, pp=pp).reshard
        reshard = not chosen.keep if chosen.zero_stage == 3 else usual
        asked = self.question.fix.get("reshard", reshard)
        if asked != reshard and self.keeps("keep_to_fix"):
            return False
        if not self.keeps("framework_shards"):
            return True
        choice = self.job.software.reshard_choice or reshard == usual
        return choice and legal.sharding_fits(self.job, chosen.zero_stage, pp)

    def offloads(self, mode: int, pp: int) -> bool:
        """The framework moves what this way to run a layer moves, with this pipeline."""
        return not choices.mode(mode).offload or spreading.pipeline_fits(self.job, pp)

    def expert_groups(self, experts: int, pp: int) -> bool:
        """Expert groups divide the GPUs of a stage."""
        if not self.keeps("experts_share_a_stage"):
            return True
        held = choices.experts(experts)
        return bool(self.job.gpus % (held.ep * held.etp * pp) == 0)

    def cuts_experts(self, experts: int, tp: int) -> bool:
        """Experts are cut over tensor ranks: etp divides tp."""
        within = self.keeps("experts_stay_within_tensor_ranks")
        return not within or bool(tp % choices.experts(experts).etp == 0)

    @cached_property
    def legal_pairs(self) -> dict[tuple[str, str], Flags]:
        """For two axes that a rule joins, whether it lets each pair of their values through."""
        rules: tuple[tuple[str, str, Callable[[int, int], bool]], ...] = (
            ("tp", "cp", self.splits),
            ("sharding", "pp", self.shards),
            ("experts", "pp", self.expert_groups),
            ("experts", "tp", self.cuts_experts),
        )
        return {
            (first, second): np.array(
                [[rule(a, b) for b in self.values[second]] for a in self.values[first]], dtype=bool
            ).reshape(len(self.values[first]), len(self.values[second]))
            for first, second, rule in rules
        }

    def exchanges(self, tp: Ints, cp: Ints, mode: Ints) -> Flags:
        """The kind of context parallelism splits the heads; without cp there is one kind alone."""
        kind = choices.mode(mode).cp_kind
        kinds = [CP_KINDS.index(one) for one in self.job.software.cp_kinds]
        known = np.where(cp > 1, np.isin(kind, kinds), kind == self._kind_of_one)
        if not self.keeps("context_kind_splits_heads"):
            return np.asarray(known, dtype=bool)
        return np.asarray(
            known & spreading.context_kind_splits_heads(self.job, tp, cp, kind), dtype=bool
        )

    def moves(self, pp: Ints, mode: Ints) -> Flags:
        """`offloads`, of arrays; of codes too that only a variant of the recompute makes legal."""
        if spreading.pipeline_fits(self.job, 2):
            return np.ones(np.shape(mode), dtype=bool)
        return np.asarray((pp == 1) | (choices.mode(mode).offload == 0))

    @property
    def _kind_of_one(self) -> int:
        """What is said where nothing is exchanged: what was asked for, else a ring."""
        fix = self.question.fix
        return fixed(self.question, "cp_kind") if "cp_kind" in fix else RING

    def groups_shards(self, tp: Ints, pp: Ints, experts: Ints, sharding: Ints) -> Flags:
        """Shard groups smaller than all replicas divide them, and those of experts too; ``fix`` and
        limits on shard_degree hold."""
        chosen, held = choices.sharding(sharding), choices.experts(experts)
        group = self.job.gpus // (tp * pp)
        degree = np.where(chosen.degree == 0, group, chosen.degree)
        good = (chosen.degree == 0) | (chosen.degree < group)
        if self.keeps("shards_divide_replicas"):
            divides = spreading.shards_divide_replicas(self.job, tp, pp, held.ep, held.etp, degree)
            good &= (chosen.degree == 0) | divides
        if self.keeps("keep_to_fix") and "shard_degree" in self.question.fix:
            good &= degree == self.question.fix["shard_degree"]
        if self.keeps("keep_to_limits"):
            for limit in self.question.limits:
                if limit.axis == "shard_degree":
                    good &= HOLDS[limit.op](degree, limit.bound)
        return np.asarray(good, dtype=bool)

    @cached_property
    def candidates(self) -> int:
        """Legal layouts, memory ignored; counted by multiplying, never listed."""
        batches = defaultdict(list)
        for dp, _, microbatches in self.batches:
            batches[dp].append(microbatches)
        chunks = defaultdict(list)
        for pp, vpp in self.chunks:
            chunks[pp].append(vpp)
        fits: dict[tuple[int, int], int] = {}
        total = 0
        for tp, cp, pp, dp in self.grids:
            if (pp, dp) not in fits:
                fits[pp, dp] = sum(self.groups(pp, v, m) for m in batches[dp] for v in chunks[pp])
            total += fits[pp, dp] * self._shardings[tp, pp] * self._modes[tp, cp, pp]
        return total

    @cached_property
    def _modes(self) -> dict[tuple[int, int, int], int]:
        """Legal values of mode for each (tp, cp, pp)."""
        grids = sorted({(tp, cp, pp) for tp, cp, pp, _ in self.grids})
        place, mode = _product(range(len(grids)), self.values["mode"])
        tp, cp, pp = ints(grids).reshape(-1, 3)[place].T
        legal = self.exchanges(tp, cp, mode) & self.moves(pp, mode)
        found = np.bincount(place[legal], minlength=len(grids))
        return dict(zip(grids, found.tolist(), strict=True))

    @cached_property
    def _shardings(self) -> dict[tuple[int, int], int]:
        """Legal pairs of experts and sharding for each (tp, pp)."""
        pairs = sorted({(tp, pp) for tp, _, pp, _ in self.grids})
        spread = {
            pp: [code for code in self.values["sharding"] if self.shards(code, pp)]
            for pp in {pp for _, pp in pairs}
        }
        rows = []
        for place, (tp, pp) in enumerate(pairs):
            held = [
                code
                for code in self.values["experts"]
                if self.expert_groups(code, pp) and self.cuts_experts(code, tp)
            ]
            experts, sharding = _product(held, spread[pp])
            rows.append(np.stack([np.full_like(experts, place), experts, sharding]))
        place, experts, sharding = np.concatenate([np.zeros((3, 0), np.int64), *rows], axis=1)
        tp, pp = ints(pairs).reshape(-1, 2)[place].T
        good = self.groups_shards(tp, pp, experts, sharding)
        found = np.bincount(place[good], minlength=len(pairs))
        return dict(zip(pairs, found.tolist(), strict=True))


def _product(first: Iterable[int], second: Iterable[int]) -> tuple[Ints, Ints]:
    """Every pair, as two arrays."""
    one, other = np.meshgrid(ints(list(first)), ints(list(second)), indexing="ij")
    return one.ravel(), other.ravel()


def space_of(question: Question, dropped: Iterable[str] = ()) -> Space:
    """Axis values that arithmetic, the axis's own rule, ``fix`` and ``limits`` leave."""
    off = frozenset(dropped)
    values = {
        axis: tuple(value for value in domain if _allowed(question, axis, value, off))
        for axis, domain in arithmetic_values(question).items()
    }
    return Space(question, values, off)


def _allowed(question: Question, axis: str, value: int, off: frozenset[str]) -> bool:
    rule = AXIS_RULES.get(axis)
    if rule is not None and rule.__name__ not in off and not rule(question.job, value):
        return False
    for key, said in keys_of(axis, value).items():
        has = "framework_has_the_axis" in off or framework_has_the_axis(question.job, key, said)
        if not has:
            return False
        if key in question.fix and "keep_to_fix" not in off and said != fixed(question, key):
            return False
        if "keep_to_limits" not in off and not within(question.limits, key, said):
            return False
    return True


def uses_sequence_parallel(question: Question, tp: int, cp: int) -> bool:
    """Space.sequence_parallel with every rule in force."""
    asked = question.fix.get("sequence_parallel")
    if tp == 1 or asked is not None:
        return tp > 1 and bool(asked)
    job = question.job
    return job.software.default_sequence_parallel and legal.sequence_splits(job, tp, cp)


def layout_of(question: Question, chosen: dict[str, int]) -> Layout:
    """The layout of one value per axis; what is not searched follows the framework."""
    held = choices.experts(chosen["experts"])
    spread, way = choices.sharding(chosen["sharding"]), choices.mode(chosen["mode"])
    usual = default_layout_values(question.job.software, tp=chosen["tp"], pp=chosen["pp"])
    return Layout(
        tp=chosen["tp"],
        cp=chosen["cp"],
        pp=chosen["pp"],
        dp=chosen["dp"],
        vpp=chosen["vpp"],
        micro_batch=chosen["micro_batch"],
        microbatches=chosen["microbatches"],
        ep=held.ep,
        etp=held.etp,
        zero_stage=spread.zero_stage,
        shard_degree=spread.degree or None,
        reshard=not spread.keep if spread.zero_stage == 3 else usual.reshard,
        offload_optimizer=bool(spread.offload),
        recompute=RECOMPUTE[way.recompute],
        offload_activations=bool(way.offload),
        cp_kind=CP_KINDS[way.cp_kind],
        sequence_parallel=uses_sequence_parallel(question, chosen["tp"], chosen["cp"]),
        schedule="interleaved" if chosen["vpp"] > 1 else "1f1b",
        axis_order=question.job.axis_order,
    )


def chosen_of(layout: Layout) -> dict[str, int]:
    """The value of each axis that a layout of the search has."""
    keep = int(layout.zero_stage == 3 and not layout.reshard)
    plain = ("tp", "cp", "pp", "dp", "vpp", "micro_batch", "microbatches")
    return {
        **{axis: getattr(layout, axis) for axis in plain},
        "experts": choices.experts_code(layout.ep, layout.etp),
        "sharding": choices.sharding_code(
            layout.zero_stage, layout.shard_degree or 0, keep, int(layout.offload_optimizer)
        ),
        "mode": choices.mode_code(
            RECOMPUTE.index(layout.recompute),
            CP_KINDS.index(layout.cp_kind),
            int(layout.offload_activations),
        ),
    }
