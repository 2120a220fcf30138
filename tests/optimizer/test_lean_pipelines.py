"""What lacks least memory, what fits and what is fastest then: every split and recompute tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.memory import largest_allocation_kib
from layoutopt.costmodel.results import Estimate
from layoutopt.optimizer.every_pipeline import every_pipeline
from layoutopt.optimizer.lean_pipelines import leanest_pipeline
from layoutopt.optimizer.misses import memory_misses
from layoutopt.optimizer.question import USUAL, Question
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.ways import fastest, something_fits
from layoutopt.units import KIB
from tests.conftest import FULL
from tests.optimizer.drawn import drawn
from tests.optimizer.test_pipelining import pipelines

EXAMPLES = 200 if FULL else 20
MOST = 250 if FULL else 60


def over(one: Estimate) -> int:
    """Bytes that the worst stage lacks; less than zero where it fits."""
    return one.memory.worst.reserved - one.memory.usable_bytes


def listed(question: Question) -> list[Estimate]:
    """All layouts of a question with so few that they can be tried."""
    assume(space_of(replace(question, pipeline=USUAL)).candidates)
    layouts = []
    for layout in every_pipeline(question):
        layouts.append(layout)
        assume(len(layouts) <= MOST)
    assume(layouts)
    return [estimate(question.job, layout) for layout in layouts]


def test_ways_out_are_of_every_split_and_recompute() -> None:
    """What lacks least, whether anything fits, and the fastest that does."""
    seen: Counter[str] = Counter()

    @drawn(EXAMPLES)
    @given(pipelines())
    def check(question: Question) -> None:
        priced = listed(question)
        fitting = [one for one in priced if one.memory.fits]
        assert something_fits(question) == bool(fitting)
        best = fastest(question)
        assert (best is None) == (not fitting)
        if best is not None:
            walls = [one.run.wall_time_s for one in fitting]
            assert best.run.wall_time_s == pytest.approx(min(walls), rel=1e-6)
            seen["fits"] += 1
            return
        (miss,) = memory_misses(space_of(question), brief=True)
        assert miss.over_bytes == min(map(over, priced))
        assert over(estimate(question.job, miss.layout)) == miss.over_bytes
        seen["misses"] += 1
        seen["uneven misses"] += miss.layout.layers_per_stage is not None
        seen["partly"] += miss.layout.recompute_layers is not None

    check()
    for kind in ("fits", "misses", "uneven misses"):
        assert seen[kind] >= EXAMPLES / 40 or not FULL, (kind, seen)


def test_nothing_is_named_that_lacks_as_much_as_what_is_known() -> None:
    """From one KiB above the least it is found, at the least no more."""
    found: Counter[str] = Counter()

    @drawn(EXAMPLES // 2)
    @given(pipelines())
    def check(question: Question) -> None:
        assume(space_of(replace(question, pipeline=USUAL)).candidates)
        space = space_of(question)
        best = leanest_pipeline(space, 2**40)
        if best is None:
            return
        allocated = max(stage.allocated for stage in best.memory.stages) // KIB
        least = allocated - largest_allocation_kib(question.job)
        again = leanest_pipeline(space, least + 1)
        assert again is not None
        assert max(s.allocated for s in again.memory.stages) // KIB == allocated
        assert leanest_pipeline(space, least) is None
        found["tried"] += 1

    check()
    assert found["tried"]
