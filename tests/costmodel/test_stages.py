"""Layers per stage: splits by hand, and the three stages that stand for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel.axes import axes_of
from layoutopt.costmodel.estimate import estimate, step_seconds
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.memory import stage_bytes
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.stages import even_classes, even_split, given_stages
from layoutopt.costmodel.step import step_parts
from tests.builders import small_model, small_question
from tests.costmodel.cases import EXPERTS, SMALL, job, one, soft
from tests.costmodel.drawn import layouts


def test_llama_3_leaves_the_first_and_the_last_stage_one_layer_short() -> None:
    """126 = 7 + 14 x 8 + 7 (Llama Team 2024, section 3.3.2)."""
    assert even_split(126, 16) == (7, *[8] * 14, 7)


@pytest.mark.parametrize(
    ("layers", "pp", "split"),
    [
        (12, 1, (12,)),
        (12, 4, (3, 3, 3, 3)),
        (13, 4, (3, 3, 4, 3)),
        (14, 4, (3, 4, 4, 3)),
        (15, 4, (4, 4, 4, 3)),
        (5, 5, (1, 1, 1, 1, 1)),
        (3, 2, (2, 1)),
    ],
)
def test_spare_layers_go_to_the_middle_last_first(
    layers: int, pp: int, split: tuple[int, ...]
) -> None:
    assert even_split(layers, pp) == split


@given(st.integers(1, 300), st.data())
def test_a_split_holds_every_layer_as_evenly_as_it_goes(layers: int, data: st.DataObject) -> None:
    split = even_split(layers, data.draw(st.integers(1, layers)))
    assert sum(split) == layers
    assert max(split) - min(split) <= 1
    assert split[-1] == min(split), "the loss head's stage is never a long one"


@given(st.integers(1, 300), st.data())
def test_the_listed_stages_are_stages_of_the_split(layers: int, data: st.DataObject) -> None:
    pp = data.draw(st.integers(1, layers))
    split, listed = even_split(layers, pp), even_classes(layers, one(pp))
    for index, count, first, last in zip(
        listed.index[0], listed.layers[0], listed.first[0], listed.last[0], strict=True
    ):
        assert count == split[index]
        assert first == (index == 0)
        assert last == (index == pp - 1)
    assert listed.layers.max() == max(split)


def test_given_stages_list_every_stage() -> None:
    stages = given_stages((1, 3, 2))
    assert stages.index.tolist() == [[0, 1, 2]]
    assert stages.layers.tolist() == [[1, 3, 2]]
    assert stages.first.tolist() == [[True, False, False]]
    assert stages.last.tolist() == [[False, False, True]]


@given(
    layouts(),
    st.sampled_from([SMALL, EXPERTS]),
    st.sampled_from([64, 1024, 200_000]),
    st.booleans(),
    st.sampled_from([2, 4]),
)
def test_no_unlisted_stage_is_slower_or_fuller(
    layout: Layout, base: Model, vocab: int, tied: bool, weight_bytes: int
) -> None:
    """The slowest and the fullest stage of an even split are among the three that are listed."""
    model = base.model_copy(update={"vocab": vocab, "tied_embeddings": tied})
    asked = job(model, software=soft(weight_bytes=weight_bytes, microbatch_overhead_s=1e-5))
    axes = axes_of([layout])
    listed = even_classes(model.layers, axes.pp)
    every = given_stages(even_split(model.layers, layout.pp))
    fast, slow = step_parts(asked, axes, listed).total, step_parts(asked, axes, every).total
    assert fast == pytest.approx(slow, rel=1e-12)
    some = np.max(stage_bytes(asked, axes, listed).allocated)
    assert some == np.max(stage_bytes(asked, axes, every).allocated)


@pytest.mark.parametrize("layers", [4, 5, 7, 8, 11])
@pytest.mark.parametrize("vocab", [1000, 128256])
def test_three_stages_take_as_long_as_all_of_an_even_split(layers: int, vocab: int) -> None:
    """One after another, with few and many microbatches: among them splits whose first stage is as
    long as those that follow it (7 layers on 4 stages, 2 + 2 + 2 + 1)."""
    for pp in range(1, layers + 1):
        for microbatches in (1, 2, 3, pp, pp + 1, 2 * pp + 1):
            asked = small_question(
                small_model(layers=layers, vocab=vocab), gpus=pp, batch=microbatches
            ).job
            layout = Layout(pp=pp, microbatches=microbatches, sequence_parallel=False)
            alike = step_seconds(asked, axes_of([layout]))[0]
            assert alike == pytest.approx(estimate(asked, layout).step.time_s, rel=1e-12)
