"""Small random questions, for the search and its judges.

Models of a few layers on a few GPUs, with every number that divides nothing well drawn as often as
powers of two, and with device memory from less than the leanest layout needs to more than the
fastest one does.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from layoutopt.costmodel.axes import axes_of
from layoutopt.costmodel.estimate import allocated_kib, step_seconds
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.costmodel.model import Model, Moe
from layoutopt.costmodel.software import software
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.schema import Cluster, Gpu, Level, Storage
from layoutopt.optimizer.exhaustive import every_layout
from layoutopt.optimizer.question import USUAL, Limit, Question
from layoutopt.units import GIB, KIB

FRAMEWORKS = ("generic", "generic", "generic", "megatron-core", "torchtitan", "deepspeed")
NARROW: dict[str, object] = {
    "cp_kinds": ("ring",),
    "expert_tensor": False,
    "shard_group_stages": (),
    "reshard_choice": False,
    "offload_optimizer": False,
    "offload_activations": False,
}
"""A framework that can be told nothing of what widens the space; one of these is often lifted."""
_LIMITS = (
    Limit("tp", ">=", 2),
    Limit("tp", "<=", 2),
    Limit("cp", "<", 2),
    Limit("pp", ">", 1),
    Limit("dp", "<=", 2),
    Limit("micro_batch", "!=", 1),
    Limit("microbatches", "==", 2),
)
_MEMORY = (-0.4, -0.05, -0.01, 0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0, 1.5)
"""Memory on a scale where 0 is what the leanest layout needs and 1 what the fastest one does."""


def small_gpu(memory_gib: float = 8.0) -> Gpu:
    """A Hopper-like device with as much memory as asked for."""
    return Gpu(
        name="small",
        architecture="hopper",
        memory_bytes=int(memory_gib * GIB),
        memory_bytes_per_s=3.35e12,
        peak_flops_per_s={"bf16": 989.5e12, "fp8": 1979e12},
        link_bytes_per_s_one_way=450e9,
        link_domain_gpus=8,
        watts=700,
    )


def small_cluster(
    memory_gib: float = 8.0, per_node: int = 4, network_bytes_per_s: float = 50e9
) -> Cluster:
    """Nodes of ``per_node`` GPUs on a network, with checkpoint storage that is felt."""
    return Cluster(
        name="small",
        gpu=small_gpu(memory_gib),
        gpus_per_node=per_node,
        levels=(
            Level(name="node", gpus=per_node, bytes_per_s_per_gpu_one_way=450e9, latency_s=3e-6),
            Level(
                name="network",
                gpus=10**6,
                bytes_per_s_per_gpu_one_way=network_bytes_per_s,
                latency_s=6e-6,
            ),
        ),
        storage=Storage(write_bytes_per_s=20e9, write_bytes_per_s_per_node=2e9),
        failures_per_gpu_hour=2e-5,
        usd_per_gpu_hour=2.5,
        watts_per_gpu=1000.0,
    )


def small_model(
    layers: int = 6, heads: int = 8, head_dim: int = 64, vocab: int = 32000, **changes: object
) -> Model:
    """A dense transformer with round widths."""
    hidden = heads * head_dim
    model = Model(
        name="small",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=4 * hidden,
        gated_mlp=False,
        vocab=vocab,
        tied_embeddings=False,
    )
    return Model(**{**model.model_dump(), **changes})


def small_question(
    model: Model | None = None,
    gpus: int = 8,
    batch: int = 16,
    seq_len: int = 1024,
    cluster: Cluster | None = None,
    framework: str = "generic",
) -> Question:
    """A question about a small model; every part has a default."""
    job = Job(
        model=model or small_model(),
        cluster=cluster or small_cluster(),
        training=Training(seq_len=seq_len, global_batch=batch, tokens=10**9),
        software=software(framework),
        gpus=gpus,
    )
    return Question(job=job, pipeline=USUAL)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Dense models, and now and then one with experts."""
    heads = draw(st.sampled_from((4, 6, 8, 12, 16)))
    head_dim = draw(st.sampled_from((64, 128)))
    layers = draw(st.integers(1, 8))
    changes: dict[str, object] = {
        "kv_heads": draw(st.sampled_from([k for k in (1, 2, heads // 2, heads) if heads % k == 0])),
        "gated_mlp": draw(st.booleans()),
        "tied_embeddings": draw(st.booleans()),
        "ffn": heads * head_dim * draw(st.sampled_from((2, 3, 4))),
    }
    if draw(st.integers(0, 4)) == 4:
        moe_layers = draw(st.integers(1, layers))
        changes["moe"] = Moe(
            experts=draw(st.sampled_from((4, 6, 8))),
            top_k=draw(st.sampled_from((1, 2))),
            expert_ffn=heads * head_dim,
            layers=moe_layers,
            first_dense_layers=layers - moe_layers,
        ).model_dump()
    vocab = draw(st.sampled_from((1000, 32000, 128256)))
    return small_model(layers, heads, head_dim, vocab, **changes)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """A question with at most a few hundred layouts."""
    model = draw(models())
    gpus = draw(st.sampled_from((1, 2, 3, 4, 4, 5, 6, 6, 8, 8)))
    batch = gpus * draw(st.sampled_from((1, 1, 2))) // draw(st.sampled_from((1, 2, 2)))
    cluster = small_cluster(
        memory_gib=64.0,
        per_node=draw(st.sampled_from((2, 4, 8))),
        network_bytes_per_s=draw(st.sampled_from((3e9, 12.5e9, 50e9))),
    )
    question = small_question(
        model,
        gpus,
        max(1, batch),
        draw(st.sampled_from((512, 768, 2048, 8192))),
        cluster,
        draw(st.sampled_from(FRAMEWORKS)),
    )
    question = _told(question, draw(st.sampled_from(("", "", "", *NARROW))))
    fixed = draw(st.sampled_from(("", "recompute", "zero_stage", "zero_stage", "both")))
    fix: dict[str, int | str | bool] = {}
    if fixed in ("recompute", "both"):
        fix["recompute"] = draw(st.sampled_from(("none", "selective", "full")))
    if fixed in ("zero_stage", "both"):
        fix["zero_stage"] = draw(st.sampled_from((0, 1, 1, 3)))
    question = replace(question, fix=fix)
    if draw(st.integers(0, 2)) == 0:
        question = replace(question, limits=(draw(st.sampled_from(_LIMITS)),))
    question = with_memory(question, draw(st.sampled_from(_MEMORY)))
    return replace(question, objective=draw(st.sampled_from(("time", "time", "cost", "energy"))))


def narrow(question: Question) -> Question:
    """The question with a framework that can be told nothing of NARROW."""
    return _told(question, "")


def _told(question: Question, lifted: str) -> Question:
    """The question with a framework that has one of NARROW, or none."""
    job = question.job
    kept = {name: value for name, value in NARROW.items() if name != lifted}
    if lifted.startswith("offload"):
        kept[lifted] = True
    profile = job.software.model_copy(update=kept)
    return replace(question, job=replace(job, software=profile))


@st.composite
def extended(draw: st.DrawFn, lifted: str) -> Question:
    """A question of a few dozen layouts whose framework has what ``lifted`` names, on two or more
    servers, with the axes that it does not touch held fast."""
    moe = lifted == "expert_tensor"
    model = draw(mixtures() if moe else models())
    gpus = draw(st.sampled_from((4, 4, 6, 8)))
    cluster = small_cluster(
        memory_gib=64.0,
        per_node=draw(st.sampled_from((2, 4))),
        network_bytes_per_s=draw(st.sampled_from((3e9, 12.5e9, 50e9))),
    )
    length = draw(st.sampled_from((768, 2048, 8192, 65536)))
    framework = "torchtitan" if draw(st.integers(0, 3)) == 3 and not moe else "generic"
    batch = gpus // draw(st.sampled_from((1, 2)))
    question = _told(small_question(model, gpus, batch, length, cluster, framework), lifted)
    fix: dict[str, int | str | bool] = {"recompute": draw(st.sampled_from(("none", "full")))}
    fix["vpp"] = 1
    if lifted != "cp_kinds":
        fix["cp"] = 1
    if lifted in ("cp_kinds", "expert_tensor"):
        fix["zero_stage"] = draw(st.sampled_from((0, 1, 1, 3)))
    question = with_memory(replace(question, fix=fix), draw(st.sampled_from(_MEMORY)))
    return replace(question, objective=draw(st.sampled_from(("time", "cost"))))


@st.composite
def mixtures(draw: st.DrawFn) -> Model:
    """Models with experts, some behind dense first layers."""
    layers, heads = draw(st.integers(1, 4)), draw(st.sampled_from((4, 6, 8)))
    dense = draw(st.integers(0, layers - 1))
    moe = Moe(
        experts=draw(st.sampled_from((4, 6, 8))),
        top_k=draw(st.sampled_from((1, 2))),
        expert_ffn=64 * draw(st.sampled_from((6, 8))),
        shared_ffn=draw(st.sampled_from((0, 256))),
        layers=layers - dense,
        first_dense_layers=dense,
    )
    return small_model(layers, heads, 64, 32000, moe=moe.model_dump())


def with_memory(question: Question, share: float) -> Question:
    """The question on devices with that much memory; as it is where it has no legal layout."""
    layouts = list(every_layout(question))
    if not layouts:
        return question
    job, axes = question.job, axes_of(layouts)
    need = allocated_kib(job, axes)
    least, fastest = int(need.min()), int(need[step_seconds(job, axes).argmin()])
    room = least * (1 + min(share, 0.0)) + max(share, 0.0) * (fastest - least)
    usable = math.ceil(room * (1000 + shipped().fragmented_per_mille) / 1000) + 1
    gpu = job.cluster.gpu.model_copy(
        update={"memory_bytes": shipped().context_bytes + usable * KIB}
    )
    cluster = job.cluster.model_copy(update={"gpu": gpu})
    return replace(question, job=replace(job, cluster=cluster))
