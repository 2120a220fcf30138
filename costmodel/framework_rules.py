"""What a training framework accepts of a layout: rules from data, each with its source.

Arithmetic is in rules.py, schedules and splits of a pipeline in pipelines.py, orders of the axes in
placement.py. ``generic`` has no row here, and so no rule but arithmetic.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Literal

import yaml

from layoutopt.costmodel.broken import Broken, divisors, nearest_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.model import Frozen
from layoutopt.costmodel.software import Software

Degree = Literal["tp", "cp", "pp", "ep", "etp", "vpp"]
DEGREES: tuple[Degree, ...] = ("tp", "cp", "pp", "ep", "etp", "vpp")


class Accepts(Frozen):
    """What one framework, or one profile of it, accepts (data/framework_rules.yaml)."""

    framework: str
    profiles: tuple[str, ...] = ()
    """Profiles that the row is for; none: all that have no row of their own."""
    axes: tuple[Degree, ...] = DEGREES
    """Degrees that may be more than 1."""
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    zero_stages_with_pipeline: tuple[int, ...] = (0, 1, 2, 3)
    uneven_chunks: bool = False
    """Interleaved chunks may hold unlike numbers of layers."""
    experts_need_sequence_parallel: bool = False
    """A mixture of experts with tp > 1 runs with sequence parallelism alone."""
    key_value_heads_reach_tensor_ranks: bool = False
    """Key-value heads are not copied: tp is at most their number."""
    sequence_in_halves: bool = False
    """With tp or cp, the sequence divides by 2 x tp x cp."""
    stages_hold_equally_many_layers: bool = False
    source: str


_EVERYTHING = Accepts(framework="generic", uneven_chunks=True, source="no rule but arithmetic")


@lru_cache(maxsize=1)
def _rows() -> dict[str, Accepts]:
    """Rows by profile, and by framework for profiles without one."""
    data = resources.files("layoutopt.costmodel").joinpath("data/framework_rules.yaml")
    rows = yaml.load(data.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    found = [Accepts(**row) for row in rows]
    return {name: row for row in found for name in row.profiles or (f"all {row.framework}",)}


def accepted_by(software: Software) -> Accepts:
    """What ``software`` accepts: its profile's own row, its framework's, or everything."""
    rows = _rows()
    return rows.get(software.name) or rows.get(f"all {software.framework}") or _EVERYTHING


def axis_is_run(job: Job, axis: str, degree: int) -> bool:
    """The framework has the axis, where it is more than 1."""
    if axis == "micro_batch" and degree > 1 and one_sequence_packed(job):
        return False
    return degree == 1 or axis not in DEGREES or axis in accepted_by(job.software).axes


def one_sequence_packed(job: Job) -> bool:
    """The framework packs documents into microbatches of one sequence alone."""
    training = job.training
    packed = training.documents is not None and training.documents.packed
    return packed and training.finetune is not None and job.software.packs_one_sequence


def heads_are_not_copied(job: Job, tp: int) -> bool:
    """Every tensor rank has a key-value head of its own, where the framework copies none."""
    able = accepted_by(job.software)
    return not able.key_value_heads_reach_tensor_ranks or tp <= job.model.kv_heads


def zero_is_run(job: Job, zero_stage: int, pp: int) -> bool:
    """The framework shards state this far, with this pipeline."""
    able = accepted_by(job.software)
    stages = able.zero_stages if pp == 1 else able.zero_stages_with_pipeline
    return zero_stage in stages


def halves_are_whole(job: Job, tp: int, cp: int) -> bool:
    """Every rank holds two halves of whole positions, where the framework asks for that."""
    halves = accepted_by(job.software).sequence_in_halves and tp * cp > 1
    return not halves or job.training.seq_len % (2 * tp * cp) == 0


def stages_are_even(job: Job, pp: int, vpp: int) -> bool:
    """Every chunk holds equally many layers, where the framework asks for that."""
    even = accepted_by(job.software).stages_hold_equally_many_layers
    return not even or job.model.layers % (pp * vpp) == 0


def experts_run_with(job: Job, tp: int, sequence_parallel: bool) -> bool:
    """Experts on tensor ranks have sequence parallelism, where the framework asks for that."""
    needs = accepted_by(job.software).experts_need_sequence_parallel
    return not needs or job.model.moe is None or tp == 1 or sequence_parallel


def uneven_chunks_fit(job: Job, pp: int, vpp: int) -> bool:
    """The framework takes chunks of unlike sizes, and there is something for each to hold: a layer,
    the embedding or the loss head. Legal, though not searched."""
    able = accepted_by(job.software)
    return able.uneven_chunks and pp > 1 and job.model.layers + 2 >= pp * vpp


def framework_broken(job: Job, layout: Layout) -> list[Broken]:
    """The framework's rules that ``layout`` breaks."""
    found, name, able = [], job.software.name, accepted_by(job.software)
    for axis in DEGREES:
        degree = getattr(layout, axis)
        if not axis_is_run(job, axis, degree):
            message = f"{name} does not run {axis} {degree}: it has no {_WORDS[axis]}"
            found.append(Broken("framework_axes", axis, degree, message, (1,)))
    if not axis_is_run(job, "micro_batch", layout.micro_batch):
        message = f"{name} packs documents into microbatches of one sequence; a longer seq_len "
        message += "holds as many tokens"
        found.append(Broken("framework_packs", "micro_batch", layout.micro_batch, message, (1,)))
    if not zero_is_run(job, layout.zero_stage, layout.pp):
        stages = able.zero_stages if layout.pp == 1 else able.zero_stages_with_pipeline
        message = f"{name} does not run zero_stage {layout.zero_stage} with pp {layout.pp}"
        found.append(Broken("framework_shards", "zero_stage", layout.zero_stage, message, stages))
    return found + _tensor_and_sequence(job, layout) + _chunks(job, layout)


_WORDS = {
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "pp": "pipeline",
    "ep": "expert parallelism",
    "etp": "tensor parallelism of experts",
    "vpp": "interleaved pipeline",
}


def _tensor_and_sequence(job: Job, layout: Layout) -> list[Broken]:
    found, name, tp, cp = [], job.software.name, layout.tp, layout.cp
    if not heads_are_not_copied(job, tp):
        heads = job.model.kv_heads
        message = f"{name} copies no key-value heads: tp {tp} is more than the model's {heads}"
        nearest = nearest_of(divisors(heads), tp)
        found.append(Broken("framework_heads", "tp", tp, message, nearest))
    if not halves_are_whole(job, tp, cp):
        seq = job.training.seq_len
        message = f"{name} needs seq_len {seq} to divide by 2 x tp x cp = {2 * tp * cp}"
        fits = [d for d in divisors(seq) if halves_are_whole(job, d, cp)]
        found.append(Broken("framework_halves", "tp", tp, message, nearest_of(fits or [1], tp)))
    if not experts_run_with(job, tp, layout.sequence_parallel):
        message = f"{name} runs experts with tp {tp} only with sequence parallelism"
        found.append(Broken("framework_experts", "sequence_parallel", False, message, (True,)))
    return found


def _chunks(job: Job, layout: Layout) -> list[Broken]:
    if stages_are_even(job, layout.pp, layout.vpp):
        return []
    chunks = layout.pp * layout.vpp
    message = (
        f"{job.software.name} puts equally many layers on each stage: pp {layout.pp} x vpp "
        f"{layout.vpp} = {chunks} does not divide {job.model.layers}"
    )
    nearest = nearest_of(divisors(job.model.layers), layout.pp)
    return [Broken("framework_stages", "pp", layout.pp, message, nearest)]
