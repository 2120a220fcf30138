"""Selective recompute by named modules, as Megatron Core has them (``--recompute-modules``).

What each drops from memory and what running it again takes; a job that names none follows its
software profile's scope.
"""

from __future__ import annotations

import numpy as np

from layoutopt.costmodel import compute
from layoutopt.costmodel.axes import Array, Flags, Ints
from layoutopt.costmodel.compute import Seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import Machine
from layoutopt.costmodel.shares import attention_share, dense_share, expert_share
from layoutopt.costmodel.training import RecomputeModule

USUAL: tuple[RecomputeModule, ...] = ("core_attn", "mla_up_proj", "moe_act")
"""What is dropped where nothing is named: attention's inner tensors, expanded heads of latent
attention, activations of experts."""


def named(job: Job) -> tuple[RecomputeModule, ...]:
    """The modules that selective recompute drops."""
    said = job.training.recompute_modules
    return USUAL if said is None else said


def again_seconds(
    job: Job,
    machine: Machine,
    tokens: Array,
    tp: Ints,
    sp: Flags,
    core: Seconds,
    experts: Array,
) -> Array:
    """Seconds that one average layer's backward pass repeats of the named modules.

    ``core`` is attention's, ``experts`` the forward seconds of experts with their traffic, both of
    an average layer. Activations and norms are passes over memory, a dense MLP and the expansions
    of latent attention are products.
    """
    model, modules = job.model, named(job)
    again: Array = np.zeros(np.shape(tokens))
    if "core_attn" in modules:
        again = again + core.forward
    if "mla_up_proj" in modules and model.mla is not None:
        up = compute.latent_expansions(job, machine, tokens, tp).forward
        again = again + attention_share(model) * up
    if "layernorm" in modules:
        norm = model.norms_per_layer * machine.reach.norm_bytes * model.hidden
        again = again + tokens * norm / np.where(sp, tp, 1) / machine.memory_bytes_per_s
    if "mlp" in modules and model.dense_layers:
        mlp = compute.dense_mlp(job, machine, tokens, tp).forward
        again = again + dense_share(model) * mlp
    if model.moe is not None and "moe" in modules:
        again = again + experts
    elif model.moe is not None and "moe_act" in modules:
        inner = 6.0 * model.moe.top_k * model.moe.expert_ffn * tokens / np.asarray(tp)
        again = again + expert_share(model) * inner / machine.memory_bytes_per_s
    return again
