"""Small random questions, for the search and its judges.

Models of a few layers on a few GPUs, with every number that divides nothing well drawn as often as
powers of two, and with device memory between far too little and plenty.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory import CONTEXT_BYTES
from layoutopt.costmodel.model import Model, Moe
from layoutopt.costmodel.software import software
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.schema import Cluster, Gpu, Level, Storage
from layoutopt.optimizer.question import Limit, Question
from layoutopt.units import GIB

FRAMEWORKS = ("generic", "generic", "generic", "megatron-core", "torchtitan", "deepspeed")
_TIMES_STATE = tuple(2.0 ** (step / 6) for step in range(2, 20))


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
    return Question(job=job)


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
    # Around what fully sharded state takes (18 bytes a parameter), and up to nine times that: the
    # least that any layout needs lies between 1 and 6 times, the fastest one's between 1 and 50.
    state_gib = 18 * count(model).total / gpus / GIB
    cluster = small_cluster(
        memory_gib=CONTEXT_BYTES / GIB + state_gib * draw(st.sampled_from(_TIMES_STATE)),
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
    if draw(st.integers(0, 3)) == 0:
        axis, bound = draw(st.sampled_from((("tp", 2), ("pp", 2), ("cp", 1), ("zero_stage", 1))))
        question = replace(question, limits=(Limit(axis, "<=", bound),))
    if draw(st.integers(0, 3)) == 0:
        question = replace(question, fix={"recompute": draw(st.sampled_from(("none", "full")))})
    return replace(question, objective=draw(st.sampled_from(("time", "time", "cost", "energy"))))
