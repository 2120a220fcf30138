"""The step simulator and the closed form, which share no formula, on random layouts.

`LAYOUTOPT_TESTS=full` draws 750 layouts; otherwise 60 (tests/conftest.py).
"""

from __future__ import annotations

from random import Random

import pytest

from layoutopt.costmodel.estimate import estimate
from layoutopt.simulation.step import simulate_step
from tests.conftest import FULL
from tests.simulation.drawn import draw

DRAWN = 150 if FULL else 12
"""Layouts of each kind."""
WITHIN = {"1f1b": 0.01, "gpipe": 0.01, "overlapped": 0.03, "interleaved": 0.03, "uneven": 0.03}


@pytest.mark.parametrize("number", range(DRAWN))
@pytest.mark.parametrize("kind", WITHIN)
def test_closed_form_and_simulator_agree(kind: str, number: int) -> None:
    drawn = draw(Random(number), kind)
    told, seen = estimate(drawn.job, drawn.layout), simulate_step(drawn.job, drawn.layout)
    assert told.step.time_s == pytest.approx(seen.step_s, rel=WITHIN[kind]), drawn.text
    # and what is in flight: peak memory, to the byte, on every stage
    assert [stage.held.peak_bytes for stage in seen.stages] == [
        stage.allocated for stage in told.memory.stages
    ], drawn.text


@pytest.mark.parametrize("number", range(DRAWN // 3))
def test_zero_bubble_h1_holds_what_the_closed_form_says(number: int) -> None:
    drawn = draw(Random(number), "zb-h1")
    told, seen = estimate(drawn.job, drawn.layout), simulate_step(drawn.job, drawn.layout)
    assert [stage.held.peak_bytes for stage in seen.stages] == [
        stage.allocated for stage in told.memory.stages
    ], drawn.text


@pytest.mark.parametrize("number", range(DRAWN // 3))
def test_a_v_holds_what_the_closed_form_says(number: int) -> None:
    drawn = draw(Random(number), "zbv")
    told, seen = estimate(drawn.job, drawn.layout), simulate_step(drawn.job, drawn.layout)
    worst = max(stage.held.peak_bytes for stage in seen.stages)
    assert worst == pytest.approx(told.memory.worst.allocated, rel=0.001), drawn.text
