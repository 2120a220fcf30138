"""The step simulator and the closed form where weights and gradients are sharded over many GPUs,
so that gathers and scatters nearly fill what compute leaves them (or overflow it), and where state
or activations go to the host."""

from __future__ import annotations

from random import Random

import pytest

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.models.catalog import load_model
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.software import software
from layoutopt.costmodel.stages import even_split
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.catalog import load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster
from layoutopt.simulation.step import simulate_step
from tests.conftest import FULL
from tests.simulation.drawn import Drawn

DRAWN = 150 if FULL else 20
WITHIN = {"llama-3.1-8b": 0.08, "llama-3.1-70b": 0.03, "mixtral-8x7b": 0.03}
"""Of a small model's step the tables of embedding and loss head are a large part, and when they can
hide is a matter of their place: at the end of the backward pass, and before the first."""

PIPED = 0.1
"""Where nearly all of a step is traffic, the waits of a pipeline hide some more of it than the
passes beside it: the closed form is the longer one."""
HOST = 0.12
"""Copies to the host go on in a pipeline's bubble, and the last layers' never have to leave: the
closed form counts neither."""


def _draw(random: Random) -> Drawn:
    while True:
        found = _try(random)
        if not broken_rules(found.job, found.layout):
            return found


def _split(random: Random, layers: int, pp: int) -> tuple[int, ...] | None:
    """An even split, or one whose first stage may be far shorter than the others."""
    if pp == 1 or random.random() < 0.5:
        return None
    first = random.randint(1, layers // pp)
    return (first, *even_split(layers - first, pp - 1))


def _try(random: Random) -> Drawn:
    model, pp = load_model(random.choice(list(WITHIN))), random.choice((1, 1, 2, 4))
    layout = Layout(
        tp=random.choice((1, 2, 4, 8)),
        cp=random.choice((1, 1, 2)),
        pp=pp,
        axis_order=random.choice(("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")),
        layers_per_stage=_split(random, model.layers, pp),
        dp=random.choice((8, 32, 128, 1024)),
        ep=random.choice((1, 2, 8)) if model.moe else 1,
        micro_batch=random.choice((1, 2, 4)),
        microbatches=random.choice((1, 2, 5, 8)),
        zero_stage=random.choice((1, 2, 3, 3)),
        offload_activations=random.choice((True, False, False)),
        offload_optimizer=random.choice((True, False, False)),
        recompute=random.choice(("none", "selective", "full")),
        reshard=random.choice((True, False)),
        shard_degree=random.choice((None, None, 8, 64)),
    )
    batch = layout.dp * layout.micro_batch * layout.microbatches
    job = Job(
        model=model,
        cluster=default_cluster(load_gpu(random.choice(("h100-sxm-80gb", "h800-sxm-80gb")))),
        training=Training(seq_len=random.choice((2048, 8192)), global_batch=batch, tokens=10**12),
        software=software(random.choice(("generic", "torchtitan", "megatron-core"))),
        gpus=layout.gpus,
    )
    return Drawn(job, layout)


@pytest.mark.parametrize("number", range(DRAWN))
def test_closed_form_and_simulator_agree(number: int) -> None:
    drawn = _draw(Random(number))
    told, seen = estimate(drawn.job, drawn.layout), simulate_step(drawn.job, drawn.layout)
    within = HOST if drawn.layout.offload_activations else WITHIN[drawn.job.model.name]
    if drawn.layout.pp > 1:
        within = max(within, PIPED)
    near = pytest.approx(told.step.time_s, rel=within)
    assert seen.step_s == near, drawn.text
    for ours, theirs in zip(seen.stages, told.memory.stages, strict=True):
        if theirs.peak_moment != "optimizer step":  # what that needs, only the closed form has
            assert ours.held.peak_bytes == theirs.allocated, drawn.text


def test_sums_across_groups_hold_no_backward_pass_up() -> None:
    """HSDP of experts behind a pipeline: a scatter inside a group does not wait for the sums."""
    model = load_model("deepseek-v3")
    layout = Layout(
        tp=1,
        pp=4,
        dp=768,
        ep=64,
        microbatches=4,
        zero_stage=3,
        shard_degree=64,
        reshard=False,
        layers_per_stage=(16, 16, 16, 13),
    )
    job = Job(
        model=model,
        cluster=default_cluster(load_gpu("gb200-nvl72")),
        training=Training(seq_len=2048, global_batch=3072, tokens=10**12),
        software=software("torchtitan"),
        gpus=layout.gpus,
    )
    assert simulate_step(job, layout).step_s == pytest.approx(
        estimate(job, layout).step.time_s, rel=0.02
    )
