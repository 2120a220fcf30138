"""The training job: what is asked of the machine."""

from __future__ import annotations

from typing import Literal

from layoutopt.costmodel.model import Frozen

Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"]


class Training(Frozen):
    """One pretraining run. ``global_batch`` counts sequences per optimizer step."""

    seq_len: int
    global_batch: int
    tokens: int
    precision: Precision = "bf16"
    attention_kernel: Literal["flash3", "flash2", "flash1", "fused_softmax", "unfused"] | None = (
        None
    )
    """None: what the software profile and the GPU use."""
    fused_norm: bool | None = None
    """None: what the software profile does."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step consumes."""
        return self.seq_len * self.global_batch

    @property
    def steps(self) -> int:
        """Optimizer steps of the run, rounded up."""
        return -(-self.tokens // self.tokens_per_step)
