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


def default_seq_len(model: Model) -> tuple[int, str]:
    """Tokens per sequence, and the reason."""
    longest = model.max_seq_len
    if longest is not None and longest < SEQ_LEN:
        return longest, f"the longest sequence of {model.name}"
    return SEQ_LEN, "default: the length that current models are pretrained at"


def default_tokens(model: Model) -> tuple[int, str]:
    """Tokens of the run, and the reason."""
    counts = count(model)
    active = counts.active
    kind = "active parameters" if active < counts.total else "parameters"
    reason = (
        f"compute-optimal: {TOKENS_PER_PARAMETER} tokens for each of "
        f"{active / 1e9:,.1f}B {kind} (Hoffmann 2022)"
    )
    return TOKENS_PER_PARAMETER * active, reason


def default_global_batch(model: Model, gpus: int, seq_len: int) -> tuple[int, str]:
    """Sequences per step, and the reason.

    odd(gpus) * 2^k nearest to the token target over seq_len, and at least gpus / 8; odd(n) is n
    without its factors of two, so that every division of the GPUs into replicas divides the batch.
    """
    parameters = count(model).total
    target_tokens = next(tokens for least, tokens in BATCH_TOKENS if parameters >= least)
    target = target_tokens / seq_len
    odd = gpus // (gpus & -gpus)
    least = -(-gpus // GPUS_PER_SEQUENCE)
    candidates = [odd << k for k in range(40) if odd << k >= least]
    batch = min(candidates, key=lambda size: (abs(size - target), size))
    reason = (
        f"{odd} x {batch // odd} sequences: of the batches that {gpus:,} GPUs divide, the nearest "
        f"to {target_tokens / 1e6:.1f}M tokens a step for {parameters / 1e9:,.0f}B parameters"
    )
    if batch == candidates[0] and batch > target:
        reason += f", and at least one sequence for {GPUS_PER_SEQUENCE} GPUs"
    return batch, reason
