"""Traffic once a step where stages are not alike: the last one to have done its own decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.costmodel.axes import axes_of
from layoutopt.costmodel.gradient_sync import sync_seconds
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.once import head_start, held_once
from layoutopt.costmodel.stage_work import end_seconds, layer_kind, mixed_layers
from layoutopt.costmodel.stages import Stages, stages_of
from tests.costmodel.cases import job, one, soft

BARE = soft(overlap_grad_reduce=0.0, overlap_param_gather=0.0)
LAYOUT = Layout(pp=3, dp=16, microbatches=1, zero_stage=0)


def left_s(layout: Layout) -> float:
    """Exposed traffic of a layout."""
    asked, axes = job(software=BARE), axes_of([layout])
    stages = stages_of(layout, asked.model.layers)
    return float(held_once(asked, axes, stages, mixed_layers(asked, axes, stages))[0][0])


def wire_s(layers: int, *, first: bool) -> float:
    """All of one stage's gradients, on the wire."""
    axes = axes_of([LAYOUT])
    asked = job(software=BARE)
    sync = sync_seconds(
        asked, axes.tp, axes.pp, axes.zero_stage, one(layers), group=axes.group, first=first
    )
    return float(sync.reduce[0])


def test_a_later_stage_waits_by_what_it_has_less_the_passes_before_it() -> None:
    """1 + 8 + 3 layers, nothing hides: stage 1 has 8 layers' gradients, and one pass of stage 0."""
    asked, axes = job(software=BARE), axes_of([LAYOUT])
    kind, ends = layer_kind(asked, axes, axes.recompute), end_seconds(asked, axes)
    passed = float(kind.total[0] + ends.embedding[0])
    told = wire_s(8, first=False) - passed
    assert told > wire_s(1, first=True)
    assert left_s(replace(LAYOUT, layers_per_stage=(1, 8, 3))) == pytest.approx(told)


def test_of_an_even_split_the_first_stage_decides() -> None:
    assert left_s(LAYOUT) == pytest.approx(wire_s(4, first=True))
    assert left_s(replace(LAYOUT, layers_per_stage=(4, 4, 4))) == left_s(LAYOUT)


def test_recompute_of_a_part_hides_nothing_more() -> None:
    """Stages run at the slowest one's pace; what the first repeats does not lengthen its wait."""
    hiding = job(software=soft(overlap_grad_reduce=1.0))
    rows = []
    for again in (None, 0, 1, 3):
        code = "none" if again is None else "full"
        axes = axes_of([replace(LAYOUT, recompute=code)])  # type: ignore[arg-type]
        told = None if again is None else one(again)[:, None]
        stages = Stages(
            one(0)[:, None], one(4)[:, None], one(1)[:, None] > 0, one(0)[:, None] > 0, told
        )
        rows.append(
            float(held_once(hiding, axes, stages, mixed_layers(hiding, axes, stages))[0][0])
        )
    assert rows == pytest.approx([rows[0]] * 4)


def test_a_stage_is_ahead_by_a_chunk_of_the_stages_before_it() -> None:
    """Interleaved: by one of its chunks; not at all where weight gradients fill the wait."""
    shapes = [LAYOUT, replace(LAYOUT, vpp=4), replace(LAYOUT, schedule="zb-h1")]
    assert [float(head_start(axes_of([shape]))[0]) for shape in shapes] == [1.0, 0.25, 0.0]
