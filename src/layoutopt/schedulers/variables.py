"""A layout as LAYOUT_* variables: what a job script reads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from layoutopt.inputs.layout_text import recompute_text, stages_text
from layoutopt.launchers.plan import Plan


def variables(plan: Plan) -> dict[str, str]:
    """Names and values; values hold letters, digits and ``+*:-`` only, so no comma ever."""
    layout = plan.layout
    found: dict[str, object] = {
        "GPUS": plan.gpus,
        "NODES": plan.nodes,
        "GPUS_PER_NODE": plan.gpus_a_node,
        "TP": layout.tp,
        "CP": layout.cp,
        "PP": layout.pp,
        "DP": layout.dp,
        "EP": layout.ep,
        "ETP": layout.etp,
        "VPP": layout.vpp,
        "MICRO_BATCH": layout.micro_batch,
        "MICROBATCHES": layout.microbatches,
        "GLOBAL_BATCH": plan.training.global_batch,
        "SEQ_LEN": plan.training.seq_len,
        "ZERO_STAGE": layout.zero_stage,
        "RECOMPUTE": recompute_text(layout),
        "SEQUENCE_PARALLEL": int(layout.sequence_parallel and layout.tp > 1),
        "LAYERS_PER_STAGE": stages_text(plan.stages),
        "SAVE_INTERVAL": plan.interval_steps,
    }
    return {f"LAYOUT_{name}": str(value) for name, value in found.items()}


def exports(values: Mapping[str, str]) -> str:
    """``export NAME='value'`` lines for ``eval``."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items()) + "\n"
