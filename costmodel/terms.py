"""The step's terms, each a function of the axes that it depends on and of no others.

The search builds one table per term from these functions; `step.py` adds the same terms up for
given layouts. Seconds are per GPU. Arrays broadcast against one another. What data parallelism
adds stands in `sharding.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel import adapters, collectives, compute, mamba, modules, placement
from layoutopt.costmodel.axes import FULL, RING, SELECTIVE, Array, Flags, Ints
from layoutopt.costmodel.compute import ZERO, Seconds
from layoutopt.costmodel.context import context_seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import Machine, dispatcher, expert_overlap, machine
from layoutopt.costmodel.shares import (
    attention_share,
    blocks_share,
    dense_share,
    expert_share,
    mamba_share,
)


@dataclass(frozen=True)
class LayerTerms:
    """One average layer, one microbatch, by part; forward and backward each."""

    compute: Seconds
    recompute: Array
    """Part of the backward pass."""
    tp_comm: Seconds
    cp_comm: Seconds
    ep_comm: Seconds
    weight: Array
    """Part of the compute's backward pass: gradients of the weights, which no other stage needs."""
    offload: Seconds = ZERO
    """What moving saved activations to the host and back does not hide (offload.py)."""

    @property
    def forward(self) -> Array:
        """Seconds of the forward pass."""
        return (
            self.compute.forward
            + self.tp_comm.forward
            + self.cp_comm.forward
            + self.ep_comm.forward
            + self.offload.forward
        )

    @property
    def backward(self) -> Array:
        """Seconds of the backward pass, recompute included."""
        return (
            self.compute.backward
            + self.recompute
            + self.tp_comm.backward
            + self.cp_comm.backward
            + self.ep_comm.backward
            + self.offload.backward
        )

    @property
    def total(self) -> Array:
        """Forward plus backward."""
        return self.forward + self.backward


def tokens_per_gpu(job: Job, cp: Ints, micro_batch: Ints) -> Array:
    """Tokens of one microbatch that pass through one GPU."""
    return micro_batch * (job.training.seq_len / cp)


def layer_terms(
    job: Job,
    tp: Ints,
    cp: Ints,
    ep: Ints,
    micro_batch: Ints,
    recompute: Ints,
    *,
    etp: Ints | int = 1,
    sp: Flags | bool = True,
    cp_kind: Ints | int = RING,
) -> LayerTerms:
    """One average layer: axes (tp, cp, ep, micro_batch, recompute); the rest are options.

    Layers with and without experts are averaged by their number (A1).
    """
    rates = machine(job)
    sp_flags, etp = np.asarray(sp), np.asarray(etp)
    tokens = tokens_per_gpu(job, cp, micro_batch)
    model = job.model
    attention = attention_share(model)
    core = compute.attention_core(job, rates, np.asarray(micro_batch, dtype=float), tp, cp)
    core = core if attention == 1 else core.scaled(attention)
    products, weights = _products(job, rates, tokens, tp, ep, etp)
    work = compute.elementwise(job, rates, tokens, tp, sp_flags) + products
    if model.mamba is not None:
        work += mamba.mixer(job, rates, tokens, tp).scaled(mamba_share(model))
    tp_comm = _tp_comm(job, rates, tokens, tp, recompute)
    floor = compute.host_floor(job, rates, ep)
    if job.training.lora:
        work += adapters.adapter_seconds(job, rates, tokens, tp, ep, etp)
        tp_comm += adapters.adapter_traffic(job, rates, tokens, tp, recompute)
        floor += adapters.launch_seconds(job, rates)
    cp_comm = context_seconds(job, tokens, tp, cp, core, recompute, cp_kind)
    if model.mamba is not None:
        exchange = mamba.exchange(job, rates, tokens, tp, cp).scaled(mamba_share(model))
        cp_comm = cp_comm.scaled(attention) + exchange
    ep_comm = _ep_comm(job, rates, tokens, tp, ep, etp, recompute).scaled(expert_share(model))
    # Collectives run on the device too: a layer waits for the host where both are over.
    comm = tp_comm.forward + cp_comm.forward + ep_comm.forward
    both = Seconds(
        np.maximum(work.forward + core.forward, floor.forward - comm),
        np.maximum(work.backward + core.backward, floor.backward - comm),
    )
    again_work, again_core = compute.recompute_share(job, recompute)
    again = again_work * work.forward + again_core * core.forward
    if job.training.recompute_modules is not None:
        experts = compute.expert_layers(job, rates, tokens, tp, ep, etp)
        dispatched = experts.scaled(expert_share(model)).forward + ep_comm.forward
        named = modules.again_seconds(job, rates, tokens, tp, sp_flags, core, dispatched)
        again = np.where(recompute == SELECTIVE, named, again)
    return LayerTerms(
        compute=both,
        # A layer that is run again launches its kernels again, so the floor holds here too.
        recompute=np.where(recompute == FULL, both.forward, again),
        tp_comm=tp_comm,
        cp_comm=cp_comm,
        ep_comm=ep_comm,
        weight=np.minimum(weights, both.backward),
    )


def _products(
    job: Job, rates: Machine, tokens: Array, tp: Ints, ep: Ints, etp: Ints
) -> tuple[Seconds, Array]:
    """Matrix products of the average layer but a state-space mixer's, and the seconds of all their
    weights' gradients.

    Those are half of the products' backward pass; attention's core and elementwise work have none
    (Qi et al. 2023, table 1). Frozen weights have no gradients, and those of adapters are left in
    the pass.
    """
    model = job.model
    dense, attention = dense_share(model), attention_share(model)
    products = compute.linear_layers(job, rates, tokens, tp)
    if dense < 1 or attention < 1:
        projections = compute.attention_projections(job, rates, tokens, tp)
        experts = compute.expert_layers(job, rates, tokens, tp, ep, etp)
        products = products.scaled(dense) + projections.scaled(attention - dense)
        products = products + experts.scaled(expert_share(model))
    trained = products.backward
    if model.mamba is not None:
        mixer = mamba.products(job, rates, tokens, tp).scaled(mamba_share(model))
        trained = trained + mixer.backward
    return products, trained * (0.0 if job.training.lora else 0.5)


def _tp_comm(job: Job, rates: Machine, tokens: Array, tp: Ints, recompute: Ints) -> Seconds:
    """Two gathers and two scatters (or two all-reduces) a direction, of the hidden state.

    Source: Korthikanti 2022, section 4.2.2: sequence parallelism moves the same bytes as the
    all-reduces it replaces. Full recompute repeats the forward ones. Routed experts take a rank's
    own tokens, so that a layer of them needs the second pair for its shared experts alone. What
    hides behind products hides inside the scale-up domain alone (user buffers over NVLink).
    """
    ranks = collectives.group(rates.levels, tp, np.asarray(1))
    one = collectives.all_reduce(ranks, 2.0 * tokens * job.model.hidden)
    pairs = blocks_share(job.model)
    if job.model.moe is not None and not job.model.moe.shared_ffn:
        pairs = pairs - expert_share(job.model)
    hidden = np.where(tp <= rates.levels[0].domain_gpus, job.software.overlap_tp, 0.0)
    once = pairs * one * job.software.tp_factor * (1 - hidden)
    return Seconds(once, once * np.where(recompute == FULL, 2, 1))


def _ep_comm(
    job: Job, rates: Machine, tokens: Array, tp: Ints, ep: Ints, etp: Ints, recompute: Ints
) -> Seconds:
    """Dispatch and combine: two all-to-alls of top_k copies of the hidden state a direction.

    Copies for one domain travel as one where the dispatcher does so. Of what runs beside another
    microbatch's compute a share is hidden.

    Expert tensor parallelism gathers the copies of its etp ranks, and scatters their sums.
    """
    moe = job.model.moe
    if moe is None:
        return compute.ZERO
    copies = moe.top_k if dispatcher(job) == "deduplicated" else None
    ranks = collectives.group(rates.levels, ep, etp, copies=copies)
    sent = 2.0 * tokens / tp * moe.top_k * job.model.hidden
    inner = collectives.group(rates.levels, etp, np.asarray(1))
    wire = 2 * collectives.all_to_all(ranks, sent) + collectives.all_reduce(inner, sent * etp)
    once = wire * (1 - expert_overlap(job))
    return Seconds(once, once * np.where(recompute == FULL, 2, 1))


@dataclass(frozen=True)
class EndTerms:
    """Embedding or loss head of one microbatch: kernels, and traffic among tensor ranks."""

    compute: Seconds
    tp_comm: Seconds

    @property
    def total(self) -> Array:
        """Forward plus backward, both parts."""
        return self.compute.total + self.tp_comm.total


LOSS_REDUCTIONS = 3
"""All-reduces of one fp32 number a token in a vocabulary-parallel loss: greatest logit, own logit,
sum of exponentials (Megatron-LM, tensor_parallel/cross_entropy.py)."""


def head_seconds(job: Job, tp: Ints, cp: Ints, micro_batch: Ints) -> EndTerms:
    """Loss head of one microbatch: axes (tp, cp, micro_batch).

    Its input is gathered and the input's gradient scattered, or all-reduced without sequence
    parallelism: the bytes of one all-reduce of the hidden state (Korthikanti 2022, section 4.2.2),
    taken as half each way. Sums of the loss run over the tensor ranks (Shoeybi 2019, section 3);
    a loss that is not vocabulary-parallel gathers the 16-bit logits instead. A prediction block
    (terms of its layer aside) has a head of its own, an embedding of the next token, norms, and a
    product of both, 2h wide, into h, which is gathered (DeepSeek-V3 technical report 2024,
    section 2.2; Megatron Core, multi_token_prediction.py: eh_proj).
    """
    rates, tokens = machine(job), tokens_per_gpu(job, cp, micro_batch)
    work = compute.loss_head(job, rates, tokens, tp)
    pair = _end_pair(job, rates, tokens, tp)
    ranks = collectives.group(rates.levels, tp, np.asarray(1))
    if job.software.vocab_parallel_loss:
        sums = LOSS_REDUCTIONS * collectives.all_reduce(ranks, 4.0 * tokens)
    else:
        sums = collectives.all_gather(ranks, 2.0 * tokens * job.model.vocab)
    factor, blocks = job.software.tp_factor, job.model.mtp_layers
    comm = Seconds(pair.forward + factor * sums, pair.backward)
    if blocks:
        work = work.scaled(1.0 + blocks) + compute.prediction_input(job, rates, tokens, tp).scaled(
            float(blocks)
        )
        # The head once more; the embedding's sum and the gathered product, a pair each.
        comm = comm.scaled(1.0 + blocks) + pair.scaled(2.0 * blocks)
    return EndTerms(work, comm)


def embedding_seconds(job: Job, tp: Ints, cp: Ints, micro_batch: Ints) -> EndTerms:
    """Embedding look-up of one microbatch: axes (tp, cp, micro_batch).

    The table is cut over tp by rows: the ranks' outputs are summed, by a scatter whose gradient is
    gathered, or by an all-reduce (Shoeybi 2019, section 3); taken as half each way. A frozen table
    needs no gradient.
    """
    rates, tokens = machine(job), tokens_per_gpu(job, cp, micro_batch)
    pair = _end_pair(job, rates, tokens, tp)
    if job.training.lora:
        pair = Seconds(pair.forward, 0 * pair.backward)
    return EndTerms(compute.embedding(job, rates, tokens), pair)


def _end_pair(job: Job, rates: Machine, tokens: Array, tp: Ints) -> Seconds:
    """A gather of the hidden state one way and a scatter the other; nothing to hide behind."""
    ranks = collectives.group(rates.levels, tp, np.asarray(1))
    half = collectives.all_gather(ranks, 2.0 * tokens * job.model.hidden) * job.software.tp_factor
    return Seconds(half, half)


def message_seconds(
    job: Job, tp: Ints, cp: Ints, pp: Ints, micro_batch: Ints, *, sp: Flags | bool = True
) -> Array:
    """Exposed seconds of one stage boundary, one microbatch and chunk, both directions.

    Axes (tp, cp, pp, micro_batch); zero where pp is 1. The pair of stages that stand farthest
    apart sets the pace (placement.boundary). With sequence parallelism, or where the framework
    scatters and gathers, each tp rank sends its own share (Narayanan 2021, section 4.1).
    """
    return (1 - job.software.overlap_pp) * 2 * _sent(job, tp, cp, pp, micro_batch, sp)


def travel_seconds(
    job: Job, tp: Ints, cp: Ints, pp: Ints, micro_batch: Ints, *, sp: Flags | bool = True
) -> Array:
    """The rest of it, which hides where a stage has other work (`pipeline.late_messages`)."""
    return job.software.overlap_pp * 2 * _sent(job, tp, cp, pp, micro_batch, sp)


def _sent(job: Job, tp: Ints, cp: Ints, pp: Ints, micro_batch: Ints, sp: Flags | bool) -> Array:
    """One message over the slowest stage boundary, on the wire."""
    link = placement.boundary(job, tp, cp, pp)
    size = message_bytes(job, tp, cp, micro_batch, sp=sp)
    return np.where(np.asarray(pp) > 1, collectives.send(link, size), 0.0)


def message_bytes(
    job: Job, tp: Ints, cp: Ints, micro_batch: Ints, *, sp: Flags | bool = True
) -> Array:
    """What one GPU sends to the next stage for one microbatch: its share of the hidden state."""
    share = np.where(np.asarray(sp) | job.software.scatter_gather, tp, 1)
    return 2.0 * tokens_per_gpu(job, cp, micro_batch) * job.model.hidden / share
