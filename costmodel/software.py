"""Software profiles: what a training framework does with a machine.

A profile is a set of capabilities plus a few fitted efficiencies; data/software.yaml holds them.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any, Literal

import yaml

from layoutopt.costmodel.layout import CP_KINDS, PIPELINE_LAST, CpKind
from layoutopt.costmodel.model import Frozen
from layoutopt.costmodel.training import CudaGraphs, Dispatcher
from layoutopt.errors import InputError


class Release(Frozen):
    """An older release of a profile's framework that differs in a few capabilities."""

    matches: tuple[str, ...]
    """Lower-case fragments of a record's ``framework`` field."""
    capabilities: dict[str, Any]
    """Fields of Software and their values in that release; nothing fitted."""


class Software(Frozen):
    """One training framework at one epoch of its life."""

    name: str
    framework: str
    """megatron, nemo, torchtitan, fsdp, deepspeed: whose rules of layout apply."""
    describes: str
    matches: tuple[str, ...] = ()
    """Lower-case fragments of a record's ``framework`` field that this profile describes."""
    releases: tuple[Release, ...] = ()
    gradient_bytes: int = 4
    """Bytes a gradient is accumulated and reduced in."""
    weight_bytes: int = 2
    """Bytes of the working copy of a weight (4: parameters are kept in fp32 and cast)."""
    optimizer_bytes: int = 12
    """fp32 master weight and two moments (16: with an fp32 gradient; 8: moments in 16 bit)."""
    gradient_copy_bytes: int = 0
    """Bytes of a second gradient: the 16-bit one beside its fp32 sum."""
    fp16_gradient_bytes: int | None = None
    """Bytes a gradient is held in where training runs in fp16; None: as in bf16."""
    step_bytes: int = 0
    """Bytes a parameter of the optimizer's shard takes for the time of the step: fp32 gradients and
    temporaries of an optimizer that is not fused into one kernel."""
    keeps_whole_gradients: bool = False
    """With a pipeline, ZeRO-3 reduces gradients once a step and holds a stage's whole until then
    (FSDP2 under torch.distributed.pipelining)."""
    old_allocator: bool = False
    """PyTorch before 2, whose allocator caches more of what was freed (A10)."""
    bucket_bytes: int = 0
    """Communication buffers of the sharded optimizer inside the allocator."""
    keeps_logits: bool = False
    """What the loss holds lives until the microbatch's backward pass is over."""
    logit_bytes: float = 14.0
    """Bytes a logit takes at the loss. 6: 16-bit logits and an fp32 copy that turns into softmax
    and gradient in place (Megatron's vocabulary-parallel cross-entropy); 10: the exponentials stand
    beside them (Megatron-LM of 2021, mpu/cross_entropy.py); 14: softmax and gradient do; 18: 16-bit
    copies gathered from tp ranks as well; 4: no fp32 copy at all."""
    vocab_parallel_loss: bool = True
    """Logits and cross-entropy stay sharded over tp."""
    fused_loss: bool = False
    """Cross-entropy keeps no fp32 copy of the logits."""
    fused_norm: bool = True
    fused_activation: bool = True
    """The gated activation is one kernel, and keeps no copy of its gate."""
    attention_kernel: Literal["flash3", "flash2", "flash1", "fused_softmax", "unfused"] = "flash2"
    default_zero_stage: int = 1
    default_recompute: Literal["none", "selective", "full"] = "none"
    default_sequence_parallel: bool = True
    selective_scope: Literal["core_attention", "per_op"] = "core_attention"
    """What selective recompute runs again: attention's inner tensors (Megatron), or every second
    matrix product and all elementwise work (torchtitan)."""
    axis_orders: tuple[str, ...] = (PIPELINE_LAST,)
    """Orders in which the framework can number its ranks, innermost axis first."""
    cp_kinds: tuple[CpKind, ...] = CP_KINDS
    """Ways of context parallelism that the framework has."""
    expert_tensor: bool = True
    """Experts can be cut over etp tensor ranks."""
    shard_group_stages: tuple[int, ...] = (1, 2, 3)
    """ZeRO stages whose shards can be spread over a part of the replicas (HSDP)."""
    reshard_choice: bool = True
    """Weights that ZeRO-3 has gathered can be kept until the backward pass, or dropped."""
    offload_optimizer: bool = True
    """The optimizer's state can be kept, and stepped, in host memory."""
    offload_activations: bool = True
    """Saved activations can wait for their backward pass in host memory."""
    offload_activations_alone: bool = False
    """They can without a pipeline and without recomputation alone."""
    lora: bool = True
    """The framework trains low-rank adapters beside frozen weights."""
    merged_adapters: bool = False
    """q, k, v have one adapter where all three are adapted, gate and up have one."""
    packs_one_sequence: bool = False
    """In fine-tuning, packed documents come in microbatches of one sequence."""
    overlap_grad_reduce: float = 0.9
    """Share of the gradient reduction that can hide behind the last microbatch's backward pass."""
    overlap_param_gather: float = 0.5
    """Share of the ZeRO-1/2 weight gather that can hide behind the first forward pass."""
    overlap_fsdp: float = 0.9
    """Share of ZeRO-3 gathers and scatters that can hide behind compute."""
    overlap_tp: float = 0.0
    """Share of tensor-parallel traffic hidden behind GEMMs."""
    scatter_gather: bool = True
    """Each tp rank sends its own share of a stage's output, sequence parallel or not (Narayanan
    2021, section 4.1; DeepSpeed's pipe_partitioned, on by default in runtime/config.py)."""
    overlap_pp: float = 0.0
    """Share of point-to-point messages hidden behind compute."""
    dispatcher: Dispatcher = "alltoall"
    cuda_graphs: CudaGraphs = "none"
    expert_overlap: bool = False
    """Dispatch and combine run beside another microbatch's compute."""
    overlap_ep: float = 0.0
    """Share of expert dispatch and combine that is hidden where they run beside compute."""
    compute_factor: float = 1.0
    """Kernel time over that of the architecture's reference kernels."""
    elementwise_factor: float = 1.0
    """Bytes that elementwise work moves over those of fused kernels (eager frameworks: more)."""
    router_factor: float = 1.0
    """Launches and waits of an expert layer over the shared figures."""
    tp_factor: float = 1.0
    """Time of tensor-parallel collectives over that of large ones on the same link."""
    comm_factor: float = 1.0
    """Network time of data-parallel traffic over that of a clean fabric at the architecture's bus
    efficiency: many small or unbucketed collectives, copies to and from their buffers."""
    owner_s: float = 0.0
    """Seconds a step for each rank of the shard group: where whole tensors belong to one rank, each
    rank broadcasts its new weights in turn (InternEvo, HybridZeroOptimizer.broadcast_params)."""
    microbatch_overhead_s: float = 0.0
    """Seconds a microbatch costs a stage, whatever its size."""
    step_overhead_s: float = 0.0
    """Seconds a step costs, whatever its size (data, logging, clipping, optimizer launch)."""
    async_save: bool = False
    """Checkpoints are written in the background; training stops for the copy to host memory."""


@lru_cache(maxsize=1)
def _table() -> dict[str, Software]:
    can = {
        name: {key: fact["value"] for key, fact in facts.items()}
        for name, facts in framework_facts().items()
    }
    rows = _data("software.yaml")["profiles"]
    return {row["name"]: Software(**{**_own(can, row), **row}) for row in rows}


def _own(can: dict[str, dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    """What a profile can be told: its own row of the frameworks' table, else its framework's."""
    return can.get(row["name"], can.get(row["framework"], {}))


@lru_cache(maxsize=1)
def framework_facts() -> dict[str, dict[str, dict[str, Any]]]:
    """What each framework, or one profile of it, can be told: its name, then a capability (a field
    of Software), then ``value`` and ``source``."""
    return _data("frameworks.yaml")


def _data(name: str) -> dict[str, Any]:
    text = resources.files("layoutopt.costmodel").joinpath(f"data/{name}").read_text("utf-8")
    table: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return table


def software_names() -> tuple[str, ...]:
    """Names of the shipped profiles, in the file's order."""
    return tuple(_table())


def software(name: str) -> Software:
    """The shipped profile called ``name``, or the newest one of the framework so called.

    Raises InputError for an unknown name, with the names there are.
    """
    table = _table()
    if name in table:
        return table[name]
    for profile in table.values():
        if profile.framework == name:
            return profile
    raise InputError(
        f"unknown framework {name!r}; known: {', '.join(table)}",
        field="framework",
        value=name,
        nearest=tuple(table),
    )


def software_for_record(framework: str) -> Software:
    """The profile that describes a record's framework: the one with the longest matching fragment.

    Text that no profile matches is taken as ``generic``.
    """
    text = framework.lower()
    found = [
        (len(fragment), -order, profile)
        for order, profile in enumerate(_releases())
        for fragment in profile.matches
        if fragment in text
    ]
    return max(found, key=lambda row: row[:2])[2] if found else software("generic")


@lru_cache(maxsize=1)
def _releases() -> tuple[Software, ...]:
    """All profiles, each followed by its older releases."""
    found: list[Software] = []
    for profile in _table().values():
        found.append(profile)
        for release in profile.releases:
            changed = {**profile.model_dump(), **release.capabilities, "matches": release.matches}
            found.append(Software(**changed))
    return tuple(found)
