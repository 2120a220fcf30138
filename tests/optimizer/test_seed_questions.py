"""The questions that the project began with, each also with a width, a peak and a link moved by 3%.

The answers are not special-cased anywhere: a plan that does the expected thing in the middle and
something else next to it would be an accident.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.model import Model
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.search import search
from tests.optimizer.large import question

MOVES = [
    ("nothing", 1.0),
    *((what, by) for what in ("hidden", "peak", "bandwidth") for by in (0.97, 1.03)),
]
GBIT = 10**9 / 8


def moved(asked: Question, what: str, by: float) -> Question:
    """The question with one figure of the model or the machine scaled."""
    job = asked.job
    if what == "hidden":
        return replace(asked, job=replace(job, model=_wider(job.model, by)))
    if what == "peak":
        gpu = job.cluster.gpu
        peaks = {name: rate * by for name, rate in gpu.peak_flops_per_s.items()}
        gpu = gpu.model_copy(update={"peak_flops_per_s": peaks})
        return replace(asked, job=replace(job, cluster=job.cluster.model_copy(update={"gpu": gpu})))
    return replace(asked, job=replace(job, cluster=_faster_links(job.cluster, by)))


def _wider(model: Model, by: float) -> Model:
    """Hidden width and MLP width scaled, in whole multiples of 8 for each head."""
    head_dim = round(model.head_dim * by / 2) * 2
    if head_dim == model.head_dim:
        head_dim += 2 if by > 1 else -2
    hidden = model.hidden // model.head_dim * head_dim
    ffn = round(model.ffn * by / 256) * 256
    return model.model_copy(update={"hidden": hidden, "head_dim": head_dim, "ffn": ffn})


def _faster_links(cluster: Cluster, by: float) -> Cluster:
    levels = tuple(
        level.model_copy(
            update={"bytes_per_s_per_gpu_one_way": level.bytes_per_s_per_gpu_one_way * by}
        )
        for level in cluster.levels
    )
    return cluster.model_copy(update={"levels": levels})


def answer(asked: Question, what: str, by: float) -> Layout:
    outcome = search(replace(moved(asked, what, by), top=0))
    assert outcome.status == Status.OPTIMAL
    assert outcome.plan is not None
    return outcome.plan.layout


@pytest.mark.parametrize(("what", "by"), MOVES)
def test_10b_on_64_gpus_is_sharded_data_parallelism_alone(what: str, by: float) -> None:
    layout = answer(question("10B", 64, batch=512), what, by)
    assert (layout.tp, layout.cp, layout.pp) == (1, 1, 1)
    assert layout.dp == 64
    assert layout.zero_stage >= 1


@pytest.mark.parametrize(("what", "by"), MOVES)
def test_1t_on_3072_a100_keeps_tp_in_the_node_and_pipelines(what: str, by: float) -> None:
    asked = question("megatron-1t", 3072, batch=3072, seq_len=2048, gpu="a100-sxm-80gb")
    layout = answer(asked, what, by)
    assert 1 < layout.tp <= 8
    assert layout.pp > 1


@pytest.mark.parametrize(("what", "by"), MOVES)
def test_a_slow_network_moves_from_sharding_to_stages(what: str, by: float) -> None:
    fast, slow = (
        answer(
            question("70B", 64, batch=512, gpu="a100-sxm-80gb", network_bytes_per_s=rate * GBIT),
            what,
            by,
        )
        for rate in (400, 25)
    )
    assert fast.pp == 1
    assert fast.zero_stage >= 2
    assert slow.pp > 1


@pytest.mark.parametrize(("what", "by"), MOVES)
def test_a_long_sequence_brings_in_context_parallelism(what: str, by: float) -> None:
    layout = answer(question("llama-3.1-405b", 16384, batch=128, seq_len=131072), what, by)
    assert layout.cp > 1


@pytest.mark.parametrize(("what", "by"), MOVES)
@pytest.mark.parametrize(
    ("model", "gpus", "batch", "seq_len", "gpu"),
    [
        ("gpt3-175b", 1024, 1536, 2048, "a100-sxm-80gb"),
        ("mt-nlg-530b", 2240, 1920, 2048, "a100-sxm-80gb"),
        ("llama-3.1-405b", 16384, 2048, 8192, "h100-sxm-80gb"),
        ("llama-3.1-70b", 1024, 1024, 8192, "h100-sxm-80gb"),
    ],
)
def test_tp_does_not_leave_the_node(
    model: str, gpus: int, batch: int, seq_len: int, gpu: str, what: str, by: float
) -> None:
    """Published runs, at their sizes, on 400 Gb/s a GPU between nodes of 8."""
    asked = question(model, gpus, batch, seq_len, gpu, network_bytes_per_s=400 * GBIT)
    assert answer(asked, what, by).tp <= 8
