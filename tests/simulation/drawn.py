"""Random jobs and layouts of real models on real machines, for the step simulator's tests."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.models.catalog import load_model
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.software import software
from layoutopt.costmodel.stages import even_split
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.catalog import load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "gpt3-175b",
    "mixtral-8x7b",
    "llama-2-13b",
)
GPUS = ("h100-sxm-80gb", "a100-sxm-80gb")
FRAMEWORKS = ("generic", "megatron-core", "torchtitan", "megatron-2021")

_APART = {"overlap_grad_reduce": 0.0, "overlap_param_gather": 0.0}


@dataclass(frozen=True)
class Drawn:
    """One job with one legal layout."""

    job: Job
    layout: Layout

    @property
    def text(self) -> str:
        """For messages."""
        layout = self.layout
        return (
            f"{self.job.model.name} {self.job.software.name} {self.job.cluster.gpu.name} {layout}"
        )


def draw(random: Random, kind: str) -> Drawn:
    """A legal layout of ``kind``: 1f1b and gpipe, whose data-parallel traffic does not overlap;
    overlapped (1F1B), interleaved, uneven (1F1B), zb-h1 or zbv, as the software profile says."""
    while True:
        found = _try(random, kind)
        if found is not None and not broken_rules(found.job, found.layout):
            return found


def _try(random: Random, kind: str) -> Drawn | None:
    model = load_model(random.choice(MODELS))
    layers = model.layers
    even = [p for p in (2, 3, 4, 5, 6, 8, 12, 16, 18) if layers % p == 0]
    pp = random.choice(even if kind != "uneven" else (2, 3, 4, 5, 6, 7, 8, 10))
    vpp = 1
    if kind in ("interleaved", "zbv"):
        legal = [v for v in (2, 3, 4, 5, 6, 8) if layers % (pp * v) == 0]
        if not legal or (kind == "zbv" and layers % (2 * pp)):
            return None
        vpp = random.choice(legal) if kind == "interleaved" else 1
    tp, cp = random.choice((1, 2, 4, 8)), random.choice((1, 1, 1, 2))
    dp = random.choice((1, 2, 4, 8, 16))
    zero = random.choice((0, 1, 1))
    microbatches = random.randint(1, 6 * pp)
    if kind == "interleaved":
        microbatches = pp * random.randint(1, 6)
    layout = Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        ep=random.choice((1, 2)) if model.moe else 1,
        vpp=vpp,
        micro_batch=random.choice((1, 1, 2, 4)),
        microbatches=microbatches,
        zero_stage=zero,
        recompute=random.choice(("none", "selective", "full")),
        schedule={"uneven": "1f1b", "overlapped": "1f1b"}.get(kind, kind),  # type: ignore[arg-type]
        layers_per_stage=_uneven(random, layers, pp) if kind == "uneven" else None,
    )
    job = Job(
        model=model,
        cluster=default_cluster(load_gpu(random.choice(GPUS))),
        training=Training(
            seq_len=random.choice((2048, 4096, 8192)),
            global_batch=dp * layout.micro_batch * microbatches,
            tokens=10**12,
        ),
        software=software(random.choice(FRAMEWORKS)).model_copy(
            update=_APART if kind in ("1f1b", "gpipe") else {}
        ),
        gpus=layout.gpus,
    )
    return Drawn(job, layout)


def _uneven(random: Random, layers: int, pp: int) -> tuple[int, ...]:
    """An even split with a few layers moved between stages."""
    split = list(even_split(layers, pp))
    for _ in range(random.randint(1, 3)):
        take, give = random.sample(range(pp), 2)
        if split[take] > 1:
            split[take] -= 1
            split[give] += 1
    return tuple(split)
