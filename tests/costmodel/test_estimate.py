"""One layout priced whole: parts add up, arrays agree with single layouts, figures by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel import memory
from layoutopt.costmodel.axes import axes_of
from layoutopt.costmodel.counts import count, matmul_flops_per_token_forward
from layoutopt.costmodel.estimate import allocated_kib, estimate, step_seconds
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.results import BREAKDOWN
from layoutopt.costmodel.software import software
from layoutopt.costmodel.stages import even_split
from layoutopt.units import KIB
from tests.costmodel.cases import CLUSTER, EXPERTS, LATENT, SMALL, job, soft
from tests.costmodel.drawn import layouts

LAYOUT = Layout(tp=2, pp=2, dp=16, microbatches=4)
MODELS = st.sampled_from([SMALL, EXPERTS, LATENT])


@given(layouts(), MODELS)
def test_parts_add_up(layout: Layout, model: Model) -> None:
    asked = job(model, efficiency=None, software=software("megatron-core"))
    got = estimate(asked, layout)
    assert tuple(got.step.breakdown_s) == BREAKDOWN
    assert sum(got.step.breakdown_s.values()) == pytest.approx(got.step.time_s, rel=1e-12)
    for stage in got.memory.stages:
        named = (stage.weights, stage.gradients, stage.optimizer, stage.activations)
        assert stage.allocated == sum(named) + stage.logits + stage.buffers
        assert stage.reserved == stage.allocated + stage.reserve
        assert all(isinstance(part, int) and part % KIB == 0 for part in (*named, stage.reserve))
    assert [stage.layers for stage in got.memory.stages] == list(even_split(12, layout.pp))
    assert got.memory.worst.reserved == max(stage.reserved for stage in got.memory.stages)


@given(st.lists(layouts(), min_size=1, max_size=5), MODELS)
def test_arrays_agree_with_single_layouts(drawn: list[Layout], model: Model) -> None:
    """Step time to rounding, memory to the last KiB: the search and the report see one figure."""
    asked = job(model, efficiency=None, software=software("torchtitan"))
    axes = axes_of(drawn)
    seconds, kib = step_seconds(asked, axes), allocated_kib(asked, axes)
    for row, layout in enumerate(drawn):
        alone = estimate(asked, layout)
        assert seconds[row] == pytest.approx(alone.step.time_s, rel=1e-12)
        assert int(kib[row]) * KIB == alone.memory.worst.allocated
        assert (int(kib[row]) <= memory.largest_allocation_kib(asked)) == alone.memory.fits


@given(layouts(), st.integers(2, 400))
def test_more_memory_never_fits_less(layout: Layout, gib: int) -> None:
    def fits(size: int) -> bool:
        gpu = CLUSTER.gpu.model_copy(update={"memory_bytes": size * 2**30 // 100})
        asked = job(cluster=CLUSTER.model_copy(update={"gpu": gpu}))
        return estimate(asked, layout).memory.fits

    assert fits(gib) <= fits(gib + 1)


def test_the_same_question_has_the_same_answer() -> None:
    assert estimate(job(), LAYOUT) == estimate(job(), LAYOUT)


def test_utilisation_by_hand() -> None:
    """6 x 869,952 and 3 x 12 layers x 2 x 64 tokens x 8 heads x 16, a token; 64 x 100 TFLOP/s."""
    asked, got = job(), estimate(job(), LAYOUT).step
    tokens = 128 * 64
    assert count(SMALL).total == 869_952
    useful = (6 * 869_952 + 3 * 12 * 2 * 64 * 8 * 16) * tokens
    assert got.model_flops == useful
    assert got.model_flops_6nd == 6 * 869_952 * tokens
    peak = asked.gpus * 100e12 * got.time_s
    assert got.mfu == got.hfu == pytest.approx(useful / peak)
    assert got.mfu_6nd == pytest.approx(got.model_flops_6nd / peak)
    assert got.tflops_per_gpu == pytest.approx(useful / got.time_s / 64 / 1e12)
    assert got.tokens_per_s_per_gpu == pytest.approx(tokens / got.time_s / 64)


def test_hfu_counts_what_is_run_again() -> None:
    """full: a third of the model FLOPs; selective: attention's core, or half of the products."""
    core = 12 * 2 * 64 * 8 * 16 * 128 * 64
    full = estimate(job(), replace(LAYOUT, recompute="full")).step
    assert full.hardware_flops == pytest.approx(full.model_flops * 4 / 3)
    some = estimate(job(), replace(LAYOUT, recompute="selective")).step
    assert some.hardware_flops - some.model_flops == pytest.approx(core)
    per_op = job(software=soft(selective_scope="per_op"))
    listed = estimate(per_op, replace(LAYOUT, recompute="selective")).step
    products = matmul_flops_per_token_forward(SMALL) - 2 * 1024 * 64
    assert listed.hardware_flops - listed.model_flops == pytest.approx(products / 2 * 128 * 64)


def test_fp8_is_measured_against_the_fp8_peak() -> None:
    got = estimate(job(precision="fp8"), LAYOUT).step
    assert got.mfu == pytest.approx(got.model_flops / (64 * 200e12 * got.time_s))


def test_a_given_split_is_priced_as_given() -> None:
    """2, 3, 4 and 3 layers: memory stage by stage, time by the longest."""
    layout = replace(LAYOUT, pp=4, dp=8, microbatches=8, layers_per_stage=(2, 3, 4, 3))
    asked = job(SMALL.model_copy(update={"vocab": 8}))
    got = estimate(asked, layout)
    assert [stage.layers for stage in got.memory.stages] == [2, 3, 4, 3]
    even = estimate(asked, replace(layout, layers_per_stage=None))
    assert got.step.breakdown_s["compute"] > even.step.breakdown_s["compute"]


def test_memory_is_that_of_the_datasheet_less_the_context() -> None:
    got = estimate(job(), LAYOUT).memory
    assert got.capacity_bytes == 80 * 2**30
    assert got.usable_bytes == 80 * 2**30 - shipped().context_bytes
    assert got.fits


def test_a_layout_that_does_not_fit_is_priced_all_the_same() -> None:
    gpu = CLUSTER.gpu.model_copy(update={"memory_bytes": shipped().context_bytes + 2**20})
    got = estimate(job(cluster=CLUSTER.model_copy(update={"gpu": gpu})), LAYOUT)
    assert not got.memory.fits
    assert got.step.time_s > 0
    assert got.run.wall_time_s > 0


def test_the_worst_moment_is_told() -> None:
    got = estimate(job(), replace(LAYOUT, microbatches=4)).memory
    assert got.stages[0].peak_moment == "backward of microbatch 1, 2 in flight"
    piped = estimate(job(), replace(LAYOUT, schedule="gpipe")).memory
    assert piped.stages[0].peak_moment == "backward of microbatch 1, 4 in flight"
    mixed = replace(LAYOUT, vpp=3, schedule="interleaved")
    moments = [stage.peak_moment for stage in estimate(job(), mixed).memory.stages]
    # 2 x (2 - 0 - 1) + 2 x 2 + 1 = 7 chunks on the first stage, of 12; 5 on the last.
    assert moments[0] == "backward of microbatch 1, 7 chunks in flight"
    wide = job(SMALL.model_copy(update={"vocab": 100_000}))
    assert estimate(wide, LAYOUT).memory.stages[1].peak_moment == "loss of microbatch 1"


def test_the_run_is_steps_of_that_length_and_more() -> None:
    """1e9 tokens in steps of 8,192: 122,071 steps."""
    got = estimate(job(), LAYOUT)
    assert got.run.steps == 122_071
    assert got.run.ideal_s == pytest.approx(122_071 * got.step.time_s)
    assert got.run.wall_time_s > got.run.ideal_s
    assert got.run.wall_time_s - got.run.ideal_s == pytest.approx(sum(got.run.overhead_s.values()))
    assert got.checkpoint.interval_s == pytest.approx(
        got.checkpoint.interval_steps * got.step.time_s
    )


@given(layouts())
def test_figures_are_finite(layout: Layout) -> None:
    got = estimate(job(), layout)
    figures = [got.step.time_s, got.step.mfu, got.step.hfu, got.run.wall_time_s]
    assert np.all(np.isfinite(figures))
    assert got.step.mfu <= got.step.hfu
