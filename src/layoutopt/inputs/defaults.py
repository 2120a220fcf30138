"""Defaults that decide the answer, each with its reason. docs/defaults.md prints the table."""

from __future__ import annotations

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.model import Model

GPU = "h100-sxm-80gb"
GPU_REASON = "default GPU; name another with --gpu or --cluster"
FRAMEWORK = "generic"
FRAMEWORK_REASON = "default: no framework's own limits, middling overlap"
PRECISION = "bf16"
PRECISION_REASON = "default: what published runs train in"
SEQ_LEN = 8192
TOKENS_PER_PARAMETER = 20
"""Compute-optimal ratio. Source: Hoffmann et al. 2022, section 3.4 and table 3."""

BATCH_TOKENS = ((10**11, 2**24), (3 * 10**10, 2**23), (0, 2**22))
"""(parameters from, tokens per step): 16.8M, 8.4M, 4.2M.

Sources: 405B at 16M tokens a step for most of its run (Llama Team 2024, section 3.4.1); Llama 2,
7B to 70B, at 4M (Touvron et al. 2023, table 1). The middle step is the geometric mean: ours.
"""
GPUS_PER_SEQUENCE = 8
"""The batch holds at least one sequence for so many GPUs: below that most of them idle."""


FINETUNE_SEQ_LEN = 4096
FINETUNE_BATCH = 64
"""Sequences of a step. Source for both: Touvron et al. 2023 (arXiv 2307.09288), section 3.1."""
FINETUNE_STEPS = 8_750
"""Source: Llama Team 2024 (arXiv 2407.21783), section 4.1.3: 8,500 to 9,000; the middle is ours."""


def default_seq_len(model: Model, *, finetune: bool = False) -> tuple[int, str]:
    """Tokens per sequence, and the reason."""
    longest, usual = model.max_seq_len, FINETUNE_SEQ_LEN if finetune else SEQ_LEN
    if longest is not None and longest < usual:
        return longest, f"the longest sequence of {model.name}"
    if finetune:
        return FINETUNE_SEQ_LEN, "default: as Llama 2 was fine-tuned (Touvron 2023, section 3.1)"
    return SEQ_LEN, "default: the length that current models are pretrained at"


def default_tokens(model: Model, step_tokens: int | None = None) -> tuple[int, str]:
    """Tokens of the run, and the reason; of a fine-tuning run by the tokens of its step."""
    if step_tokens is not None:
        reason = f"{FINETUNE_STEPS:,} steps, as Llama 3's (Llama Team 2024, section 4.1.3)"
        return FINETUNE_STEPS * step_tokens, reason
    counts = count(model)
    active = counts.active
    kind = "active parameters" if active < counts.total else "parameters"
    reason = (
        f"compute-optimal: {TOKENS_PER_PARAMETER} tokens for each of "
        f"{active / 1e9:,.1f}B {kind} (Hoffmann 2022)"
    )
    return TOKENS_PER_PARAMETER * active, reason


def default_global_batch(
    model: Model, gpus: int, seq_len: int, *, finetune: bool = False
) -> tuple[int, str]:
    """Sequences per step, and the reason.

    odd(gpus) * 2^k nearest to the token target over seq_len, and at least gpus / 8; odd(n) is n
    without its factors of two, so that every division of the GPUs into replicas divides the batch.
    """
    parameters = count(model).total
    target_tokens = next(tokens for least, tokens in BATCH_TOKENS if parameters >= least)
    target = FINETUNE_BATCH if finetune else target_tokens / seq_len
    odd = gpus // (gpus & -gpus)
    least = -(-gpus // GPUS_PER_SEQUENCE)
    candidates = [odd << k for k in range(40) if odd << k >= least]
    batch = min(candidates, key=lambda size: (abs(size - target), size))
    wanted = f"{target_tokens / 1e6:.1f}M tokens a step for {parameters / 1e9:,.0f}B parameters"
    if finetune:
        wanted = f"{FINETUNE_BATCH}, Llama 2's in fine-tuning (Touvron 2023, section 3.1)"
    reason = (
        f"{odd} x {batch // odd} sequences: of the batches that {gpus:,} GPUs divide, the nearest "
        f"to {wanted}"
    )
    if batch == candidates[0] and batch > target:
        reason += f", and at least one sequence for {GPUS_PER_SEQUENCE} GPUs"
    return batch, reason
