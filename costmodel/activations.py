"""What a stage's work keeps in memory beside its state: activations, working space, logits.

Whole KiB, rounded up, for one layer and microbatch (memory.py adds them up over a stage).
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel import adapters, mamba, sharding, terms
from layoutopt.costmodel.adapters import InputsKept, inputs_kept
from layoutopt.costmodel.axes import FULL, SELECTIVE, Array, Flags, Ints
from layoutopt.costmodel.compute import lists_products
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import attention_kernel, fused_norm
from layoutopt.costmodel.memory_fit import memory_fit
from layoutopt.costmodel.modules import named
from layoutopt.costmodel.shares import (
    attention_share,
    blocks_share,
    dense_share,
    expert_share,
    mamba_share,
)
from layoutopt.units import KIB


def to_kib(size: Array | float) -> Ints:
    """Bytes as KiB, rounded up."""
    return np.ceil(np.asarray(size) / KIB).astype(np.int64)


def activation_kib(
    job: Job,
    tp: Ints,
    cp: Ints,
    ep: Ints,
    micro_batch: Ints,
    recompute: Ints,
    *,
    etp: Ints | int = 1,
    sp: Flags | bool = True,
) -> Ints:
    """One average layer's saved activations of one microbatch.

    Axes (tp, cp, ep, micro_batch, recompute). Source: Korthikanti 2022 (arXiv 2205.05198), table 2
    and section 4, with grouped queries, gated MLPs, flash kernels and experts counted the same way:
    every tensor that backward needs, in 2 bytes. full keeps the layer's input alone.
    """
    tokens = terms.tokens_per_gpu(job, cp, micro_batch)
    share = np.where(np.asarray(sp), tp, 1)
    whole = tokens * _saved_bytes_a_token(job, tp, share, etp)
    core = tokens * _score_bytes_a_token(job, tp)
    if job.software.selective_scope == "per_op":
        selective = tokens * _per_op_bytes_a_token(job, tp, share)
    else:
        selective = whole - tokens * _module_bytes_a_token(job, tp, share, etp)
    kept = np.select(
        [recompute == FULL, recompute == SELECTIVE],
        [2.0 * tokens * job.model.hidden / share, selective],
        whole + core,
    )
    return to_kib(kept)


MASK_BYTES = 2.0
"""Two one-byte masks a layer, per hidden element, of hidden dropout (Korthikanti 2022, table 2)."""


def _saved_bytes_a_token(job: Job, tp: Ints, share: Ints, etp: Ints | int) -> Array:
    """Everything but attention scores, bytes a token and layer.

    Residual stream before each norm (2h each) and norm outputs; q, k, v and attention output; MLP
    input product (one tensor, two where gated) and activation output; log-sum-exp of the flash
    kernel (4 a head). What feeds a linear layer is kept in that layer's precision: one byte in 8
    bit; attention output then is kept twice (Transformer Engine). Beside frozen weights adapters
    alone need the inputs of linear layers (adapters.inputs_kept).
    """
    model, kept, lora = job.model, inputs_kept(job), job.training.lora
    unfused = 0.0 if fused_norm(job) else memory_fit(job).unfused_norm_bytes
    if lora:
        # An adapter's first product keeps its input as it was gathered from the tensor ranks.
        gathered = attention_share(model) * kept.attention
        gathered += (dense_share(model) + expert_share(model)) * kept.mlp
        hidden = blocks_share(model) * (2.0 + unfused) * model.hidden / share
        hidden = hidden + gathered * model.hidden
    else:
        norm = 2.0 + kept.mlp + unfused
        hidden = blocks_share(model) * norm * model.hidden / share
    attention = attention_share(model) * _attention_bytes_a_token(job, tp, kept)
    if model.mamba is not None:
        mixer = mamba.saved_bytes_a_token(model.mamba, tp, 0.0 if lora else kept.mlp_out)
        attention = attention + mamba_share(model) * mixer
    dropout = _dropout_bytes(job) * model.hidden / share
    mlp = dense_share(model) * _mlp_bytes(job, model.ffn / tp, kept.mlp_out)
    if model.moe is not None:
        each = _expert_bytes_a_token(job, tp, etp, kept.mlp, kept.mlp_out)
        mlp = mlp + expert_share(model) * each
    found = hidden + attention + dropout + mlp
    return found + adapters.saved_bytes_a_token(job, tp, etp) if lora else found


def _dropout_bytes(job: Job) -> float:
    """Bytes a hidden element that masks and copies take: none in the stacks of today."""
    if not job.software.fused_activation:
        return memory_fit(job).eager_hidden_bytes
    return 0.0 if attention_kernel(job).startswith("flash") else MASK_BYTES


def _mlp_bytes(job: Job, width: Array | float, kept: float) -> Array:
    """Input product(s) in 16 bit and the activation's output in the linear layer's precision.

    Eager frameworks keep the activation of the gate beside its product with the other half.
    """
    products = 4.0 if job.model.gated_mlp else 2.0
    eager = 2.0 if job.model.gated_mlp and not job.software.fused_activation else 0.0
    return np.asarray((products + kept + eager) * width)


def _attention_bytes_a_token(job: Job, tp: Ints, kept: InputsKept) -> Array:
    """q, k, v, output, and what the latent projections of MLA keep."""
    model, again = job.model, kept.attention_out
    if model.mla is None:
        rotary = 0.0 if job.software.fused_activation else memory_fit(job).eager_rotary_bytes
        queries = (4.0 + again + rotary) * model.q_width + 4.0 * model.heads
        # With more tp ranks than key and value heads, a head has copies.
        keys = (4.0 + rotary) * model.kv_width / np.minimum(tp, model.kv_heads)
        return np.asarray(queries / tp + keys)
    score = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
    value = model.mla.v_head_dim
    heads = model.heads * (2.0 * (2 * score + 2 * value) + again * value + 4.0) / tp
    latents = (model.mla.q_lora_rank or 0) + model.mla.kv_lora_rank
    return np.asarray(heads + (2.0 + kept.latents) * latents)


def _score_bytes_a_token(job: Job, tp: Ints) -> Array | float:
    """Attention scores kept by kernels that are not flash: 5 a s (Korthikanti 2022, equation 1),
    of which 3 are dropout's, which models with gated MLPs train without; 9 a s where softmax is
    computed apart in fp32."""
    kernel = attention_kernel(job)
    if kernel.startswith("flash"):
        return 0.0
    dropout = 0.0 if job.model.gated_mlp and job.software.fused_activation else 3.0
    return attention_share(job.model) * (
        (2.0 + dropout if kernel == "fused_softmax" else 9.0)
        * job.model.heads
        * job.training.seq_len
        / tp
    )


def _module_bytes_a_token(job: Job, tp: Ints, share: Ints, etp: Ints | int) -> Array:
    """What selective recompute drops beside the core, module by module (modules.named): expanded
    heads of latent attention, what experts' activations put out, norms' outputs, whole MLPs."""
    model, names, inputs = job.model, named(job), inputs_kept(job)
    kept = inputs.mlp_out
    dropped: Array = np.zeros(np.shape(tp))
    if model.mla is not None and "mla_up_proj" in names:
        score = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
        dropped = dropped + 2.0 * model.heads * (2 * score + model.mla.v_head_dim) / tp
    if "layernorm" in names:
        norms = 0.0 if job.training.lora else inputs.mlp
        dropped = dropped + blocks_share(model) * norms * model.hidden / share
    if "mlp" in names:
        dropped = dropped + dense_share(model) * _mlp_bytes(job, model.ffn / tp, kept)
    if model.moe is not None and "moe" in names:
        each = _expert_bytes_a_token(job, tp, etp, inputs.mlp, kept)
        return dropped + expert_share(model) * each
    if model.moe is not None and "moe_act" in names:
        copies = model.moe.top_k * np.asarray(etp) / tp
        act = copies * kept * model.moe.expert_ffn / np.asarray(etp)
        dropped = dropped + expert_share(model) * act
    return dropped


def _expert_bytes_a_token(
    job: Job, tp: Ints, etp: Ints | int, kept_in: float, kept_out: float
) -> Array:
    """Copies of routed tokens with their experts' inner tensors, and shared experts'."""
    moe = job.model.moe
    if moe is None:
        return np.zeros(1)
    copies = moe.top_k * np.asarray(etp) / tp
    inner = _mlp_bytes(job, moe.expert_ffn / np.asarray(etp), kept_out)
    shared = _mlp_bytes(job, moe.shared_ffn / tp, kept_out)
    return np.asarray(copies * ((2.0 + kept_in) * job.model.hidden + inner) + shared)


def _per_op_bytes_a_token(job: Job, tp: Ints, share: Ints) -> Array:
    """torchtitan's per-operator list: block input, attention output, every second product.

    The products of a layer are q, k, v, attention's sum, the MLP's inner one or two and its sum:
    q, v and the first inner one are kept (the last one's output nothing needs). Products that the
    list does not name are not.
    """
    model, attention = job.model, attention_share(job.model)
    kept = attention * (2.0 * model.q_width + 4.0 * model.heads)
    if lists_products(job):
        kept += 2.0 * (attention * (model.q_width + model.kv_width) + model.ffn)
        if model.mamba is not None:
            kept += mamba_share(model) * 2.0 * (model.mamba.projected + model.mamba.inner)
    return 2.0 * model.hidden / share + kept / np.asarray(tp)


def working_kib(
    job: Job,
    tp: Ints,
    cp: Ints,
    ep: Ints,
    micro_batch: Ints,
    recompute: Ints,
    *,
    etp: Ints | int = 1,
    sp: Flags | bool = True,
) -> Ints:
    """What one layer's backward pass needs beside saved activations. Axes as activation_kib.

    Gradients of the widest pair of tensors; with recomputation also what the layer would have
    saved, computed again; where gradients are summed in fp32, the layer's in 16 bit before that.
    """
    model = job.model
    tokens = terms.tokens_per_gpu(job, cp, micro_batch)
    share = np.where(np.asarray(sp), tp, 1)
    wide = 2.0 * (2 if model.gated_mlp else 1) * _widest_mlp(job, tp)
    gradients = tokens * (wide + 4.0 * model.hidden)
    again = tokens * (_saved_bytes_a_token(job, tp, share, etp) + _score_bytes_a_token(job, tp))
    if job.software.selective_scope == "per_op":
        selective = again
    else:
        modules = _module_bytes_a_token(job, tp, share, etp)
        selective = tokens * (_score_bytes_a_token(job, tp) + modules)
    extra = np.select([recompute == FULL, recompute == SELECTIVE], [again, selective], 0.0)
    return to_kib(gradients + extra + _unsummed_bytes(job, tp, ep, etp))


def _unsummed_bytes(job: Job, tp: Ints, ep: Ints, etp: Ints | int) -> Array:
    """One layer's 16-bit gradients, which the backward pass leaves before they are added to fp32
    sums; FSDP's stand in its buffers."""
    if job.software.weight_bytes > 2 or job.software.gradient_bytes <= 2:
        return np.zeros(1)
    no = np.asarray(False)
    layer = sharding.trained_parameters(job, tp, 1.0, no, no)
    if job.model.moe is not None:
        layer = layer + sharding.trained_experts(job, 1.0, np.asarray(ep), etp)
    return 2.0 * layer


def _widest_mlp(job: Job, tp: Ints) -> Array:
    """Inner elements a token of the widest MLP: the dense one, or a token's copies in experts."""
    model, moe = job.model, job.model.moe
    dense = model.ffn if dense_share(model) > 0 else 0
    mixer = model.mamba.projected / 2 if model.mamba else 0
    return np.asarray(max(dense, mixer, moe.top_k * moe.expert_ffn if moe else 0) / tp)


def logits_kib(job: Job, tp: Ints, cp: Ints, micro_batch: Ints) -> Ints:
    """Logits and cross-entropy of one microbatch on the last stage: axes (tp, cp, micro_batch).

    Where the loss is not vocabulary-parallel, every rank holds all logits. Each multi-token-
    prediction block has a loss of its own, and holds its layer's activations at that moment.
    """
    vocab = job.model.vocab / np.where(job.software.vocab_parallel_loss, tp, 1)
    each = vocab * job.software.logit_bytes
    blocks = job.model.mtp_layers
    if blocks:
        share = np.where(job.software.default_sequence_parallel, tp, 1)
        layer = _saved_bytes_a_token(job, tp, share, 1) + _score_bytes_a_token(job, tp)
        each = each * (1 + blocks) + blocks * layer
    return to_kib(terms.tokens_per_gpu(job, cp, micro_batch) * each)
