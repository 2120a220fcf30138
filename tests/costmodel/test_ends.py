"""Embedding, loss head and prediction blocks: traffic among tensor ranks, and blocks by hand."""

from __future__ import annotations

import pytest

from layoutopt.costmodel import gradient_sync, terms
from layoutopt.costmodel.axes import axes_of
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.stage_work import Ends, end_seconds
from layoutopt.costmodel.stages import stages_of
from layoutopt.costmodel.step import step_parts
from tests.costmodel.cases import NVLINK, NVLINK_S, SMALL, job, one, soft

HIDDEN_BYTES = 2 * 128 * 64
"""128 tokens of 64 elements."""


def gather_s(size: float) -> float:
    """Seven of eight parts over the link, and seven hops."""
    return 7 * NVLINK_S + 7 / 8 * size / NVLINK


PREDICTING = SMALL.model_copy(update={"mtp_layers": 2})


def test_the_embedding_is_summed_over_its_tensor_ranks() -> None:
    """A scatter forward, a gather backward; alone there is nothing to sum."""
    got = terms.embedding_seconds(job(), one(8), one(1), one(1)).tp_comm
    assert got.forward[0] == got.backward[0] == pytest.approx(gather_s(HIDDEN_BYTES))
    assert terms.embedding_seconds(job(), one(1), one(1), one(1)).tp_comm.total[0] == 0


def test_the_head_gathers_its_input_and_sums_the_loss() -> None:
    """Three all-reduces of 128 fp32 numbers beside the pair of the hidden state."""
    got = terms.head_seconds(job(), one(8), one(1), one(1)).tp_comm
    sums = 3 * 2 * gather_s(128 * 4)
    assert got.forward[0] == pytest.approx(gather_s(HIDDEN_BYTES) + sums)
    assert got.backward[0] == pytest.approx(gather_s(HIDDEN_BYTES))


def test_a_loss_of_whole_logits_gathers_them() -> None:
    """128 tokens of 1,024 16-bit logits."""
    whole = job(software=soft(vocab_parallel_loss=False))
    got = terms.head_seconds(whole, one(8), one(1), one(1)).tp_comm
    assert got.forward[0] == pytest.approx(gather_s(HIDDEN_BYTES) + gather_s(2 * 128 * 1024))


def test_slow_collectives_slow_the_ends() -> None:
    slow = job(software=soft(tp_factor=3.0))
    for end in (terms.embedding_seconds, terms.head_seconds):
        plain = end(job(), one(8), one(1), one(1)).tp_comm.total[0]
        assert end(slow, one(8), one(1), one(1)).tp_comm.total[0] == pytest.approx(3 * plain)


def test_a_block_has_a_head_a_look_up_and_a_product_of_its_own() -> None:
    """Alone on its GPU: 128 x 128 by 128 x 64, forward and twice backward, with fp32 sums of the
    weight's gradient; two norms of 4 bytes; 6 bytes of the look-up."""
    bare = terms.head_seconds(job(), one(1), one(1), one(1))
    lookup = terms.embedding_seconds(job(), one(1), one(1), one(1)).compute.total[0]
    got = terms.head_seconds(job(PREDICTING), one(1), one(1), one(1))
    product = 2 * 128 * 128 * 64 / 100e12 + 2 * (128 * 128 + 128 * 64 + 128 * 64) / 1e12
    product = 3 * product + 2 * 4 * 128 * 64 / 1e12
    norms = 3 * 2 * 4 * 128 * 64 / 1e12
    more = bare.compute.total[0] + lookup + product + norms
    assert got.compute.total[0] == pytest.approx(bare.compute.total[0] + 2 * more)


def test_a_block_exchanges_what_a_head_an_embedding_and_a_product_do() -> None:
    bare = terms.head_seconds(job(), one(8), one(1), one(1)).tp_comm.total[0]
    got = terms.head_seconds(job(PREDICTING), one(8), one(1), one(1)).tp_comm.total[0]
    assert got == pytest.approx(3 * bare + 2 * 2 * 2 * gather_s(HIDDEN_BYTES))


def test_the_last_stage_runs_the_blocks_layers() -> None:
    """Two layers on each of 6 stages and two blocks on the last: it sets the pace, and what the
    other stages wait for is their own work."""
    layout = Layout(pp=6, dp=8, microbatches=8, vpp=1)
    asked = job(PREDICTING, gpus=48)
    axes = axes_of([layout])
    layer = terms.layer_terms(asked, one(1), one(1), one(1), one(1), one(0)).total[0]
    ends: Ends = end_seconds(asked, axes)
    got = step_parts(asked, axes, stages_of(layout, 12)).parts
    assert got["compute"][0] == pytest.approx(8 * (4 * layer + ends.head[0]))
    message = got["pp_comm"][0] / 8
    others = 10 * layer + ends.embedding[0] + 5 * message
    assert got["pipeline_bubble"][0] == pytest.approx(others)


def test_an_only_stage_reduces_and_steps_the_blocks_too() -> None:
    """As much as two layers more; a first stage of several knows nothing of them."""
    asked, plain = job(PREDICTING), job()
    for pp, more in ((1, 2), (2, 0)):
        here = gradient_sync.optimizer_seconds(asked, one(1), one(pp), one(0), one(6))
        there = gradient_sync.optimizer_seconds(plain, one(1), one(pp), one(0), one(6 + more))
        assert here[0] == pytest.approx(there[0])
        sent = gradient_sync.sync_seconds(asked, one(1), one(pp), one(1), one(6)).reduce
        same = gradient_sync.sync_seconds(plain, one(1), one(pp), one(1), one(6 + more)).reduce
        assert sent[0] == pytest.approx(same[0])


def test_the_breakdown_names_the_traffic_of_the_ends() -> None:
    layout = Layout(tp=8, dp=8, microbatches=8)
    asked = job()
    axes = axes_of([layout])
    layers = terms.layer_terms(asked, one(8), one(1), one(1), one(1), one(0)).tp_comm.total[0]
    both = end_seconds(asked, axes).parts
    ends = sum(float(part.tp_comm.total[0]) for part in both)
    got = step_parts(asked, axes, stages_of(layout, 12)).parts
    assert got["tp_comm"][0] == pytest.approx(8 * (12 * layers + ends))
