"""What kernels and links reach of their datasheet peaks: fitted figures, kept as data.

`data/efficiency.yaml` has a row per GPU architecture and a block of figures that all share; its
head says on which records and when `benchmarks/fit_time.py` fitted them.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from layoutopt.costmodel.model import Frozen


class Efficiency(Frozen):
    """Shares of peaks that an architecture's kernels and links reach, and costs of its kernels."""

    architecture: str
    gemm16: float
    """Large bf16/fp16 matrix products, share of the dense 16-bit peak."""
    gemm8: float
    """The same in fp8, share of the fp8 peak."""
    gemm4: float
    attention_forward: float
    """FlashAttention 2 at head width 128, causal FLOPs, share of the 16-bit peak."""
    attention_backward: float
    flash3_speed: float
    """FlashAttention 3 or cuDNN over FlashAttention 2 (Shah 2024, arXiv 2407.08608, figure 5)."""
    memory: float
    """Streaming kernels, share of memory bandwidth."""
    scaleup: float
    """Bus bandwidth of large collectives, share of the scale-up link's one-way rate."""
    scaleout: float
    """The same for network adapters."""
    watts: float
    """Power limit at which the architecture's measured part reaches its rates."""
    watts_flops_per_s: float
    """That part's dense 16-bit peak (A12)."""
    launch_s: float
    """Host seconds to launch one kernel."""
    gap_s: float
    """Device seconds between two kernels (drain, fill, tail)."""

    # Shared by all architectures.
    jitter: float
    """Share of a step that stragglers take for each doubling of GPUs beyond a node (A8)."""
    collective_s: float
    """Seconds of any collective, whatever its size: the ramp of the measured bus-bandwidth curves
    (an H100 node reaches half its rate at 16 MiB)."""
    norm_bytes: float
    """Bytes a fused norm moves per element, forward."""
    unfused_norm_bytes: float
    """The same for a norm written in the framework's own operators, in fp32."""
    fused_score_bytes: float
    """Bytes a score moves, forward, where scale, mask and softmax are one kernel."""
    unfused_score_bytes: float
    """The same where they are not."""
    entropy_bytes: float
    """Bytes that cross-entropy moves per logit, both ways, written in the framework's own
    operators; one fused kernel moves half."""
    flash1_speed: float
    """FlashAttention 1 over FlashAttention 2 (Dao 2023, arXiv 2307.08691, figures 4 and 5)."""
    optimizer_s: float
    """Seconds of an optimizer step, whatever its size: its launches, and the host's waits for the
    gradients' norm and the loss."""
    head_dim_half: float
    """Attention rate falls as d / (d + this) with the head width d."""
    context_half: float
    """Attention rate rises as c / (c + this) with the tokens c that a query can see (Shah 2024,
    figure 5: 335, 450, 550, 610 and 648 TFLOP/s at 1k, 2k, 4k, 8k and 16k, causal, on an H100)."""
    misaligned_rate: float
    """Rate of a product with a width that is not a multiple of 16 bytes, over an aligned one."""
    expert_rate: float
    """Rate of grouped expert products over that of one product of the same size."""
    router_s: float
    """Seconds that a MoE layer waits, forward, where the host has to read the experts' counts."""
    biased_expert_bytes: float
    """Bytes that an inner element of an expert moves, forward, where experts have biases: bias and
    activation are then the framework's own operators."""
    layer_launches: float
    """Host operations of a dense layer's forward pass, each as long as a launch: launches, and what
    the framework does around them. 1,440 runs of small GPTs on A100 (Bang et al. 2024, vTrain,
    ground_truth_single.csv) take 3.03 ms a layer, microbatch and full recompute, where kernels are
    too small to matter (hidden 1,024, 1,024 tokens, tp 1): four such passes of 151 times 5 us."""
    expert_launches: float
    """Kernels that a MoE layer launches forward beside a dense layer's, whatever it holds."""
    grouped_launches: float
    """The same for each expert that a GPU holds."""
    graphed_share: float
    """Share of the two that is left where graphs capture attention, router and preparation."""
    scan_rate: float
    """Rate of Mamba-2's scan, its operands' traffic included, over that of a large product. On an
    A100 it takes as long as FlashAttention 2 at 2,048 tokens, which has 5.3 times the FLOPs
    (Dao and Gu 2024, arXiv 2405.21060, figure 10: state 64, chunks of 256): 0.14."""
    cast_bytes: float
    """Bytes moved per operand element to quantise it for an 8- or 4-bit product."""
    power_exponent: float
    """Rates follow the power limit to this power: P ~ f V^2 with V ~ f gives 1/3 (A12)."""


@lru_cache(maxsize=1)
def efficiencies() -> dict[str, Efficiency]:
    """The shipped efficiencies by architecture."""
    path = resources.files("layoutopt.costmodel").joinpath("data/efficiency.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table: dict[str, Any] = yaml.load(path.read_text("utf-8"), Loader=loader)
    return {
        row["architecture"]: Efficiency(**table["shared"], **row) for row in table["architectures"]
    }


def efficiency_of(architecture: str) -> Efficiency:
    """The row of ``architecture``; an unknown one is taken as hopper (A9)."""
    table = efficiencies()
    return table.get(architecture, table["hopper"])
