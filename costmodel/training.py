"""The training job: what is asked of the machine."""

from __future__ import annotations

import math
from typing import Literal

from layoutopt.costmodel.documents import Documents
from layoutopt.costmodel.linears import Lora
from layoutopt.costmodel.model import Frozen

Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"]

Dispatcher = Literal["alltoall", "deduplicated"]
"""alltoall: every copy of a token travels (Megatron's all-to-all). deduplicated: copies for one
domain travel as one, in fused kernels (DeepEP, HybridEP)."""
CudaGraphs = Literal["none", "layers", "full"]
"""layers: attention, router and what prepares dispatch; full: the whole iteration."""


RecomputeModule = Literal["core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe"]
"""Parts of a layer that selective recompute runs again, by Megatron Core's names."""


class Training(Frozen):
    """One training run. ``global_batch`` counts sequences per optimizer step."""

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
    dispatcher: Dispatcher | None = None
    """How tokens reach their experts; None: what the software profile does."""
    cuda_graphs: CudaGraphs | None = None
    """What is launched as a captured graph; None: what the software profile does."""
    expert_overlap: bool | None = None
    """Whether dispatch and combine run beside another microbatch's compute; None: what the software
    profile does."""

    recompute_modules: tuple[RecomputeModule, ...] | None = None
    """What selective recompute runs again; None: what the software profile's scope says."""
    finetune: Literal["full", "lora"] | None = None
    """What a run that starts from trained weights trains of them; None: pretraining."""
    lora: Lora | None = None
    """The adapters that alone are trained; None: all weights are."""
    documents: Documents | None = None
    """What the sequences are made of; None: each is one document as long as it is."""

    eval_interval_steps: int | None = None
    """Steps between pauses for evaluation; None: there are none."""
    eval_s: float = 0.0
    """Seconds that a pause for evaluation lasts; training stands still."""
    closing_saves: float = 0.0
    """Full saves that the run waits for at its end, before the job starts anew (phases.py)."""

    @property
    def pauses_s(self) -> float:
        """Seconds of the run in which training stands still for evaluation."""
        if self.eval_interval_steps is None:
            return 0.0
        return self.steps // self.eval_interval_steps * self.eval_s

    @property
    def tokens_per_step(self) -> int:
        """Positions that one optimizer step computes, padding included."""
        return self.seq_len * self.global_batch

    @property
    def filled_share(self) -> float:
        """Share of those positions that hold tokens: 1 but for documents that are not packed."""
        return 1.0 if self.documents is None else self.documents.filled_share(self.seq_len)

    @property
    def steps(self) -> int:
        """Optimizer steps that the run's tokens take, rounded up; padding is no token."""
        if self.filled_share == 1.0:
            return -(-self.tokens // self.tokens_per_step)
        return math.ceil(self.tokens / (self.tokens_per_step * self.filled_share))
