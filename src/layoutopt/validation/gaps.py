"""What a measured run that leaves recompute or adapters unsaid most likely did."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.costmodel.estimate import memory_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.linears import Lora, target_names
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.software import Software
from layoutopt.costmodel.training import Training
from layoutopt.validation.records import Record

DOUBT = 1 / 8
"""Five of six measured peaks are predicted to within this share (docs/accuracy.md): nearer than
that to what is usable, a prediction does not say that a run took more recompute than usual."""


def likely_recompute(job: Job, layout: Layout) -> Layout:
    """``layout`` with its framework's usual recompute, or the least beyond that with which it fits.

    Recompute costs time and buys nothing but memory, so runs take as little of it as they can.
    Whether the run died is not looked at. Where nothing fits, the usual one stays.
    """
    first = RECOMPUTE.index(layout.recompute)
    for recompute in RECOMPUTE[first:]:
        tried = replace(layout, recompute=recompute)
        memory = memory_of(job, tried)
        if memory.fits or memory.worst.reserved <= (1 + DOUBT) * memory.usable_bytes:
            return tried
    return layout


MERGED_TARGETS, MERGED_RANK = ("q_proj", "k_proj", "v_proj"), 16
"""What NeMo's performance recipes adapt (nemo_toolkit 2.3.0, recipes/llama3_70b.py,
finetune_performance_optimizations: linear_qkv), with their rank (8 in llama3_8b.py)."""
OTHER_RANK = 8
"""torchtune 0.6.1, recipes/configs/llama3/8B_lora.yaml; there beside every linear layer."""


def tuned(
    training: Training, record: Record, model: Model, software: Software, filled: list[str]
) -> Training:
    """``training`` with what the record's task trains: all of a trained model, or adapters."""
    task = record.training.get("task")
    if task == "sft":
        return training.model_copy(update={"finetune": "full"})
    if task != "lora":
        return training
    names = target_names(model)
    if software.merged_adapters:
        targets = tuple(name for name in names if name in MERGED_TARGETS) or names
        lora = Lora(rank=MERGED_RANK, targets=targets)
        why = "what NeMo's performance recipes adapt"
    else:
        lora, why = Lora(rank=OTHER_RANK, targets=names), "torchtune's recipes"
    filled.append(f"training.lora = rank {lora.rank} of {', '.join(lora.targets)}: {why}")
    return training.model_copy(update={"finetune": "lora", "lora": lora})
