"""What a layout leaves unsaid, filled by the most likely value for its framework.

``estimate --layout`` and ``validate`` fill from this one table. Evidence for the figures: the
measured records in benchmarks/measured that do state the value.
"""

from __future__ import annotations

from dataclasses import dataclass

from layoutopt.costmodel.layout import CpKind, Recompute
from layoutopt.costmodel.software import Software

MICRO_BATCH = 1
"""Sequences per microbatch when nothing is said: the usual choice of large runs, and the one
that needs least memory."""

_FSDP_FRAMEWORKS = frozenset({"torchtitan", "fsdp"})
_INTERLEAVING_FRAMEWORKS = frozenset({"megatron", "nemo"})
LAYERS_PER_CHUNK = 2
"""Layers of a model chunk in an interleaved run that does not say: the median of the measured runs
that do (1 and 2 are about equally common, 4 follows)."""

_LOOPED_STAGES_PER_RANK = 2
"""torchtitan's looped schedules put two stages on a rank unless told otherwise (torchtitan,
distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part's caller)."""


@dataclass(frozen=True)
class LayoutDefaults:
    """Values for the keys that a layout leaves out, and why each was taken."""

    micro_batch: int
    zero_stage: int
    recompute: Recompute
    sequence_parallel: bool
    reshard: bool
    cp_kind: CpKind
    reasons: dict[str, str]
    """By key of the layout: one clause that says why."""


def default_layout_values(software: Software, *, tp: int, pp: int) -> LayoutDefaults:
    """Most likely micro_batch, zero_stage, recompute, sequence_parallel, reshard and cp_kind.

    ``tp`` and ``pp`` are the layout's own degrees. Sequence parallelism needs tp > 1. With a
    pipeline, FSDP frameworks keep gathered weights between microbatches, and DeepSpeed, which
    refuses ZeRO >= 2 there, shards the optimizer alone.
    """
    fsdp = software.framework in _FSDP_FRAMEWORKS
    zero_stage = software.default_zero_stage
    if software.framework == "deepspeed" and pp > 1:
        zero_stage = min(zero_stage, 1)
    of = f"default of {software.name}"
    reasons = {
        "micro_batch": "large runs mostly take one sequence",
        "zero_stage": of,
        "recompute": of,
        "sequence_parallel": of if tp > 1 else "needs tp > 1",
        "cp_kind": of,
        "reshard": of if not (fsdp and pp > 1) else "kept between microbatches of a pipeline",
    }
    return LayoutDefaults(
        micro_batch=MICRO_BATCH,
        zero_stage=zero_stage,
        recompute=software.default_recompute,
        sequence_parallel=software.default_sequence_parallel and tp > 1,
        reshard=not (fsdp and pp > 1),
        cp_kind="ring" if "ring" in software.cp_kinds else software.cp_kinds[0],
        reasons=reasons,
    )


def likely_chunks(
    software: Software, *, layers: int, pp: int, microbatches: int, interleaves: bool = False
) -> int:
    """Model chunks per GPU (vpp) of a measured run whose source does not say.

    For records alone: ``--layout`` without vpp means 1. Megatron and NeMo runs mostly interleave,
    where pp divides the microbatches: as many chunks as leave LAYERS_PER_CHUNK layers or more in
    each. A run of torchtitan that leaves the count open uses its default of two; others do not
    interleave, unless the source says so (``interleaves``); embedding and loss head may then stand
    in the place of a layer each, as in Llama 3.
    """
    if pp == 1:
        return 1
    if software.framework in _FSDP_FRAMEWORKS:
        return _LOOPED_STAGES_PER_RANK
    places = layers + 2 if interleaves and layers % pp else layers
    usual = interleaves or software.framework in _INTERLEAVING_FRAMEWORKS
    if not usual or microbatches % pp or places % pp:
        return 1
    most = max(1, places // pp // LAYERS_PER_CHUNK)
    return next(chunks for chunks in range(most, 0, -1) if (places // pp) % chunks == 0)
