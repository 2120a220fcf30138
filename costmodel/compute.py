"""Seconds of kernels: matrix products, attention, elementwise work, loss head, optimizer.

A matrix product costs its FLOPs at the architecture's rate plus the traffic of its operands: the
sum stands for prologue, epilogue and wave tails, which grow as 1/M + 1/N + 1/K (Williams 2009,
roofline, without perfect overlap) (A19). Everything is per GPU and per microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from layoutopt.costmodel.axes import FULL, SELECTIVE, Array, Flags, Ints
from layoutopt.costmodel.counts import mean_context_tokens
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import (
    Machine,
    attention_kernel,
    cuda_graphs,
    dispatcher,
    fused_norm,
)
from layoutopt.costmodel.shares import attention_share, blocks_share, dense_share, expert_share


@dataclass(frozen=True)
class Seconds:
    """Forward and backward seconds of a piece of work."""

    forward: Array
    backward: Array

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.forward + other.forward, self.backward + other.backward)

    def scaled(self, factor: float | Array) -> Seconds:
        """Both directions times ``factor``."""
        return Seconds(self.forward * factor, self.backward * factor)

    @property
    def total(self) -> Array:
        """Forward plus backward."""
        return self.forward + self.backward


ZERO = Seconds(np.zeros(1), np.zeros(1))

ALIGNMENT = 8
"""Elements in 16 bytes of 16-bit numbers: widths in multiples of it reach the tensor cores."""


UNFUSED_NORM_LAUNCHES = 12
"""Kernels more that a layer of two norms launches forward where they are not one kernel each."""

REFERENCE_CONTEXT = 8192
"""Tokens of causal context at which attention's rates are stated."""


def gemm(
    machine: Machine, rows: Array, inner: Array, columns: Array, accumulate: float | None
) -> Seconds:
    """One linear layer, (rows x inner) @ (inner x columns), forward and backward.

    Backward is two products of the same size; the weight gradient is accumulated in place, which
    reads and writes ``accumulate`` bytes a weight, every microbatch. A frozen weight
    (``accumulate`` None) has no gradient: one product backward. 8- and 4-bit products
    quantise their input forward and the output's gradient backward. Widths that are not a whole
    number of 16 bytes lose the tensor cores (NVIDIA, Matrix Multiplication Background, section 2).
    """
    aligned = (np.mod(inner, ALIGNMENT) == 0) & (np.mod(columns, ALIGNMENT) == 0)
    rate = machine.gemm_flops_per_s * np.where(aligned, 1.0, machine.reach.misaligned_rate)
    flops = 2.0 * rows * inner * columns / rate
    operands = rows * inner + inner * columns + rows * columns
    traffic = machine.gemm_bytes * operands / machine.memory_bytes_per_s
    once = flops + traffic + machine.gap_s
    cast = machine.reach.cast_bytes / machine.memory_bytes_per_s if machine.gemm_bytes < 2 else 0.0
    if accumulate is None:
        return Seconds(once + cast * rows * inner, once + cast * rows * columns)
    grads = 2.0 * accumulate * inner * columns / machine.memory_bytes_per_s
    return Seconds(once + cast * rows * inner, 2 * once + grads + cast * rows * columns)


def accumulated_bytes(job: Job) -> float | None:
    """Bytes a weight's gradient is accumulated in; None where the model's weights are frozen."""
    return None if job.training.lora else float(job.software.gradient_bytes)


def linear_layers(job: Job, machine: Machine, tokens: Array, tp: Ints) -> Seconds:
    """The four products of a dense layer: QKV, attention output, MLP in and out."""
    projections = attention_projections(job, machine, tokens, tp)
    return projections + dense_mlp(job, machine, tokens, tp)


def dense_mlp(job: Job, machine: Machine, tokens: Array, tp: Ints) -> Seconds:
    """Products into and out of a dense MLP."""
    model = job.model
    hidden = float(model.hidden)
    accumulate = accumulated_bytes(job)
    up_width = (2.0 if model.gated_mlp else 1.0) * model.ffn / tp
    work = gemm(machine, tokens, np.asarray(hidden), up_width, accumulate)
    return work + gemm(machine, tokens, model.ffn / tp, np.asarray(hidden), accumulate)


def attention_projections(job: Job, machine: Machine, tokens: Array, tp: Ints) -> Seconds:
    """QKV and output projections (MLA: its low-rank chains), heads divided over tp."""
    model, accumulate = job.model, accumulated_bytes(job)
    hidden = np.asarray(float(model.hidden))
    if model.mla is None:
        qkv = (model.q_width + 2 * model.kv_width) / tp
        work = gemm(machine, tokens, hidden, qkv, accumulate)
        return work + gemm(machine, tokens, model.q_width / tp, hidden, accumulate)
    mla = model.mla
    latent = np.asarray(float(mla.kv_lora_rank))
    work = gemm(machine, tokens, hidden, latent + mla.qk_rope_head_dim, accumulate)
    work += latent_expansions(job, machine, tokens, tp)
    if mla.q_lora_rank:
        work += gemm(machine, tokens, hidden, np.asarray(float(mla.q_lora_rank)), accumulate)
    else:
        work += gemm(machine, tokens, hidden, model.q_width / tp, accumulate)
    return work + gemm(machine, tokens, model.heads * mla.v_head_dim / tp, hidden, accumulate)


def latent_expansions(job: Job, machine: Machine, tokens: Array, tp: Ints) -> Seconds:
    """Products from the latents of multi-head latent attention to its heads (DeepSeek-V2, section
    2.1): keys and values, and queries where they have a latent."""
    model, mla = job.model, job.model.mla
    if mla is None:
        return ZERO
    accumulate = accumulated_bytes(job)
    kv_up = model.heads * (mla.qk_nope_head_dim + mla.v_head_dim) / tp
    work = gemm(machine, tokens, np.asarray(float(mla.kv_lora_rank)), kv_up, accumulate)
    if mla.q_lora_rank:
        rank = np.asarray(float(mla.q_lora_rank))
        work += gemm(machine, tokens, rank, model.q_width / tp, accumulate)
    return work


def attention_core(job: Job, machine: Machine, sequences: Array, tp: Ints, cp: Ints) -> Seconds:
    """Scores, softmax and values for ``sequences`` sequences, heads over tp, queries over cp.

    Flash kernels: causal FLOPs 2 s^2 (d_qk + d_v) / 2 a head forward, 2.5 times that backward
    (Dao 2023, section 3.1), at the architecture's rates, which a short context does not reach
    (Efficiency.context_half). Other kernels compute the full square
    and move it through memory, where scale, mask and softmax are one kernel less often than where
    they are not; backward twice that.
    """
    model, seq = job.model, float(job.training.seq_len)
    heads = model.heads / tp
    score_dim, value_dim = head_dims(job)
    kernel = attention_kernel(job)
    # Kernels that are not flash compute the scores between documents too, and mask them.
    documents = job.training.documents if kernel.startswith("flash") else None
    seen = mean_context_tokens(model, job.training.seq_len, documents) * 2
    pairs = sequences * heads * seq * seen / cp
    if kernel.startswith("flash"):
        half = machine.reach.context_half
        slower = (1 + half / seen) / (1 + half / REFERENCE_CONTEXT)
        flops = pairs * (score_dim + value_dim) * slower
        forward = flops / machine.attention_forward_flops_per_s
        backward = 2.5 * flops / machine.attention_backward_flops_per_s
        return Seconds(forward + machine.gap_s, backward + 2 * machine.gap_s)
    fused = kernel == "fused_softmax"
    reach = machine.reach
    bytes_a_score = reach.fused_score_bytes if fused else reach.unfused_score_bytes
    aligned = score_dim % ALIGNMENT == 0 and value_dim % ALIGNMENT == 0
    rate = machine.gemm16_flops_per_s * (1.0 if aligned else reach.misaligned_rate)
    flops = 2 * pairs * (score_dim + value_dim) / rate
    traffic = pairs * bytes_a_score / machine.memory_bytes_per_s
    gaps = (4 if fused else 9) * machine.gap_s
    return Seconds(flops + traffic + gaps, 2 * (flops + traffic + gaps))


def head_dims(job: Job) -> tuple[int, int]:
    """Widths of one head's query/key and value."""
    mla = job.model.mla
    if mla is None:
        return job.model.head_dim, job.model.head_dim
    return mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim


def elementwise(job: Job, machine: Machine, tokens: Array, tp: Ints, sp: Flags) -> Seconds:
    """Norms, residuals, rotary, a dense MLP's activation function: bound by memory.

    Bytes a token forward: a fused norm reads and writes the hidden state, an unfused one passes
    over it in fp32 several times; a residual sum 6h; rotary 4 (q + k); the activation
    reads its inputs and writes its output. Backward moves twice as much.
    """
    model = job.model
    fused = fused_norm(job)
    norm = machine.reach.norm_bytes if fused else machine.reach.unfused_norm_bytes
    hidden_share = np.where(sp, tp, 1)
    norms = model.norms_per_layer * norm * model.hidden / hidden_share
    residuals = blocks_share(model) * 6.0 * model.hidden / hidden_share
    rotary = attention_share(model) * 4.0 * (model.q_width + model.kv_width) / tp
    activation = dense_share(model) * (6.0 if model.gated_mlp else 4.0) * model.ffn / tp
    others = job.software.elementwise_factor * (residuals + rotary + activation)
    seconds = tokens * (norms + others) / machine.memory_bytes_per_s
    kernels = model.norms_per_layer * (1 if fused else 5) + 2 * blocks_share(model)
    forward = seconds + kernels * machine.gap_s
    return Seconds(forward, 2 * forward)


def recompute_share(job: Job, recompute: Ints) -> tuple[Array, Array]:
    """Shares of (linear and elementwise work, attention core) that the backward pass repeats.

    full: everything once more. selective: attention's core alone (Korthikanti 2022, section 6),
    or half of the matrix products and all elementwise work where the scope is per operator
    (torchtitan's list saves every second product and the attention output; `lists_products`).
    """
    per_op = job.software.selective_scope == "per_op"
    repeated = 0.5 if lists_products(job) else 1.0
    work = np.select(
        [recompute == FULL, recompute == SELECTIVE], [1.0, repeated if per_op else 0.0], 0.0
    )
    core = np.select(
        [recompute == FULL, recompute == SELECTIVE], [1.0, 0.0 if per_op else 1.0], 0.0
    )
    return work, core


def lists_products(job: Job) -> bool:
    """Whether a list of operators to keep (torchtitan's) names the job's matrix products: 4-bit
    ones are operators of their own that it does not know, so that all are run again."""
    return job.training.precision != "nvfp4"


def loss_head(job: Job, machine: Machine, tokens: Array, tp: Ints) -> Seconds:
    """Final norm, output product in 16 bit and cross-entropy.

    The product is cut over tp; cross-entropy as well where the loss is vocabulary-parallel, else
    every rank passes over all gathered logits, half as often where it is one fused kernel. Frozen,
    it has no weight gradient.
    """
    model = job.model
    own = model.vocab / tp
    flops = 2.0 * tokens * model.hidden * own / machine.gemm16_flops_per_s
    operands = tokens * model.hidden + model.hidden * own + tokens * own
    once = flops + 2.0 * operands / machine.memory_bytes_per_s
    seen = own if job.software.vocab_parallel_loss else model.vocab
    each = machine.reach.entropy_bytes * (0.5 if job.software.fused_loss else 1.0)
    entropy = tokens * seen * each
    both_ways = entropy / machine.memory_bytes_per_s
    products = 1 if job.training.lora else 2
    return Seconds(once + both_ways / 2, products * once + both_ways / 2)


def embedding(job: Job, machine: Machine, tokens: Array) -> Seconds:
    """Look-up and its scattered gradient, which a frozen table does not need: reads and writes of
    the hidden state."""
    seconds = 6.0 * tokens * job.model.hidden / machine.memory_bytes_per_s
    return Seconds(seconds, 0 * seconds if job.training.lora else 2 * seconds)


def prediction_input(job: Job, machine: Machine, tokens: Array, tp: Ints) -> Seconds:
    """What a multi-token-prediction block does before its layer: look up the next token, norm it
    and the hidden state, and join both by a product of 2h by h (DeepSeek-V3 technical report 2024,
    section 2.2)."""
    model = job.model
    hidden = float(model.hidden)
    work = embedding(job, machine, tokens)
    norms = 2 * tokens * machine.reach.norm_bytes * hidden / machine.memory_bytes_per_s
    work += Seconds(norms, 2 * norms)
    accumulate = accumulated_bytes(job)
    return work + gemm(machine, tokens, np.asarray(2 * hidden), hidden / tp, accumulate)


def optimizer_seconds(job: Job, machine: Machine, parameters_held: Array) -> Array:
    """Adam over ``parameters_held`` parameters: reads gradient, master weight and two moments,
    writes the last three and the working copy (16 + 14 bytes), after a pass for the norm; with
    launches and waits that do not depend on its size (Efficiency.optimizer_s)."""
    software = job.software
    # fp32 weights are their own master copy: read and written beside the moments.
    working = 2.0 if software.weight_bytes < 4 else 2.0 * software.weight_bytes
    bytes_a_parameter = 2.0 * software.optimizer_bytes + 2 * software.gradient_bytes + working
    moved = parameters_held * bytes_a_parameter / machine.memory_bytes_per_s
    return moved + machine.reach.optimizer_s


def host_floor(job: Job, machine: Machine, ep: Ints) -> Seconds:
    """Least seconds of one layer, set by launching its kernels (Efficiency.layer_launches forward,
    twice that backward).

    A layer of experts launches more: routing, permutation and dispatch, and products for each
    expert that the GPU holds (Transformer Engine's GroupedLinear calls cuBLAS expert by expert).
    What is captured in a CUDA graph is not launched: attention and router, or everything.
    """
    graphs = cuda_graphs(job)
    if graphs == "full":
        return ZERO
    model, moe, reach = job.model, job.model.moe, machine.reach
    dense = reach.layer_launches + (0 if fused_norm(job) else UNFUSED_NORM_LAUNCHES)
    launches = np.asarray(0.0 if graphs == "layers" else dense) * blocks_share(model) / 2
    if moe is not None:
        experts = reach.expert_launches + reach.grouped_launches * moe.experts / ep
        left = reach.graphed_share if graphs == "layers" else 1.0
        launches = launches + expert_share(model) * left * job.software.router_factor * experts
    seconds = launches * reach.launch_s
    return Seconds(seconds, 2 * seconds)


def expert_layers(
    job: Job, machine: Machine, tokens: Array, tp: Ints, ep: Ints, etp: Ints
) -> Seconds:
    """Routed and shared experts of one MoE layer, balanced over the experts a GPU holds (A2).

    Sequence parallelism leaves tokens / tp on a GPU, expert tensor parallelism gathers etp such
    shares; their top_k copies spread over experts / ep experts, each product as narrow as one
    expert. Router, permutation and combination are passes over memory; biases of experts, and the
    activation after them, are the framework's own operators. Shared experts are cut over tp like a
    dense MLP.
    """
    model, moe = job.model, job.model.moe
    if moe is None:
        return ZERO
    accumulate = accumulated_bytes(job)
    hidden = np.asarray(float(model.hidden))
    held = moe.experts / ep
    gated = 2.0 if model.gated_mlp else 1.0
    own = tokens / tp * etp
    rows = own * moe.top_k / held
    width = moe.expert_ffn / etp
    reach = machine.reach
    grouped = replace(machine, gemm_flops_per_s=machine.gemm_flops_per_s * reach.expert_rate)
    one = gemm(grouped, rows, hidden, gated * width, accumulate)
    one += gemm(grouped, rows, width, hidden, accumulate)
    routed = one.scaled(held)
    # 5 passes: route, permute, activation, unpermute, weighted sum (reads and writes, 2 bytes).
    moved = own * moe.top_k * (10.0 * model.hidden + 6.0 * width)
    if moe.expert_bias:
        moved = moved + own * moe.top_k * gated * width * reach.biased_expert_bytes
    passes = moved / machine.memory_bytes_per_s + 8 * machine.gap_s
    work = routed + Seconds(passes + _count_wait(job, machine), 2 * passes)
    if moe.shared_ffn:
        shared = moe.shared_ffn / tp
        work += gemm(machine, tokens, hidden, gated * shared, accumulate)
        work += gemm(machine, tokens, shared, hidden, accumulate)
    return work


def _count_wait(job: Job, machine: Machine) -> float:
    """Seconds that a layer waits, forward, for the host to read how many tokens each expert got.

    An all-to-all of every copy needs the counts on the host; fused dispatch keeps them on the
    device (DeepEP), and what a graph has captured cannot ask.
    """
    if dispatcher(job) != "alltoall" or cuda_graphs(job) == "full":
        return 0.0
    return machine.reach.router_s * job.software.router_factor
