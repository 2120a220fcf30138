"""Runs in phases: the search against trying everything, and what must hold of any answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import Phase as Part
from hypothesis import strategies as st

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.phases import Phase
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.phases import PhasedQuestion, search_phases
from layoutopt.optimizer.question import USUAL, Limit, Pipeline, Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.verify import broken
from tests.builders import narrow, small_cluster, small_model, small_question, with_memory
from tests.conftest import FULL
from tests.optimizer.phase_twin import try_every_phase

EXAMPLES = 200 if FULL else 12
RESOLUTION = 3e-6
_MEMORY = (0.3, 0.6, 1.0, 1.5, 3.0, 6.0, 6.0)
"""As in tests/builders.py, of the first phase: a longer sequence may then not fit."""


@st.composite
def phased(draw: st.DrawFn) -> PhasedQuestion:
    """Two or three phases of a few layers on a few GPUs: a batch ramp, a longer sequence, or both;
    short phases too, where a restart weighs as much as what it buys."""
    layers, gpus = draw(st.sampled_from((3, 2, 4, 3))), draw(st.sampled_from((2, 2, 4)))
    model = small_model(layers, 4, 64, draw(st.sampled_from((1000, 128256))))
    cluster = small_cluster(
        memory_gib=64.0,
        per_node=draw(st.sampled_from((2, 8))),
        network_bytes_per_s=draw(st.sampled_from((3e9, 50e9))),
    )
    framework = draw(st.sampled_from(("generic", "generic", "megatron-core", "deepspeed")))
    seq_len = draw(st.sampled_from((16384, 2048, 8192)))
    batch = gpus * draw(st.sampled_from((1, 2)))
    question = small_question(model, gpus, batch, seq_len, cluster, framework)
    fix: dict[str, int | str | bool] = {"zero_stage": draw(st.sampled_from((0, 1)))}
    fix |= draw(st.sampled_from(({"tp": 1}, {"tp": 1, "pp": 2}, {"tp": 1, "pp": 2}, {"pp": 2})))
    if draw(st.integers(0, 2)) == 0:
        fix["recompute"] = draw(st.sampled_from(("none", "full")))
    limits = (Limit("cp", "<", 2), Limit("micro_batch", "<", 3), Limit("vpp", "<", 2))
    question = replace(narrow(question), fix=fix, limits=limits, pipeline=Pipeline())
    question = with_memory(question, draw(st.sampled_from(_MEMORY)))
    phases = []
    for _ in range(draw(st.sampled_from((2, 2, 2, 3)))):
        part = draw(st.sampled_from((10**9, 10**10, 10**12, 10**13)))
        phases.append(Phase(part, seq_len, batch, gpus))
        change = draw(st.sampled_from(("batch", "batch", "sequence", "both")))
        batch *= 2 if change in ("batch", "both") else 1
        seq_len *= 2 if change in ("sequence", "both") else 1
    return PhasedQuestion(question, tuple(phases))


def test_phases_equal_trying_everything() -> None:
    seen: Counter[str] = Counter()

    @settings(
        derandomize=True,
        database=None,
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Part.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(phased())
    def check(asked: PhasedQuestion) -> None:
        for phase in asked.phases:
            assume(space_of(_alone(asked, phase)).candidates)
        slow = try_every_phase(asked, 120)
        assume(slow is not None and slow.layouts)
        assert slow is not None
        fast = search_phases(asked)
        seen["asked"] += 1
        if max(slow.each_s) == float("inf"):
            assert fast.status is Status.INFEASIBLE
            seen["infeasible"] += 1
            return
        auto, one, each = (fast.ways[way] for way in ("auto", "one", "each"))
        assert auto.proved
        assert each.proved
        assert one.proved
        assert auto.plan is not None
        assert auto.bound_s is not None
        assert auto.wall_s == pytest.approx(slow.auto_s, rel=RESOLUTION)
        assert auto.bound_s <= slow.auto_s * (1 + 1e-9)
        assert one.wall_s == pytest.approx(slow.one_s, rel=RESOLUTION)
        assert each.wall_s <= sum(slow.each_s) * (1 + RESOLUTION)
        assert auto.wall_s <= min(one.wall_s, each.wall_s) * (1 + 1e-12)
        for found in auto.plan.phases:
            question = replace(asked.question, job=found.planned.job)
            assert broken(question, estimate(found.planned.job, found.layout)) == []
        seen["none for all"] += one.plan is None
        seen["changes"] += any(one.reshards for one in auto.plan.restarts)
        seen["stays"] += len(auto.plan.restarts) < len(auto.plan.phases) - 1
        seen["uneven"] += any(one.layers_per_stage is not None for one in auto.plan.layouts)

    check()
    assert seen["asked"] >= EXAMPLES * 0.6
    for kind in ("infeasible", "changes", "stays", "uneven"):
        assert seen[kind] >= 1 or not FULL, (kind, seen)


def _alone(asked: PhasedQuestion, phase: Phase) -> Question:
    training = asked.question.job.training.model_copy(
        update={"seq_len": phase.seq_len, "global_batch": phase.global_batch}
    )
    job = replace(asked.question.job, training=training)
    return replace(asked.question, job=job, pipeline=USUAL)


def test_one_phase_is_the_plain_search() -> None:
    question = small_question(gpus=8, batch=16)
    training = question.job.training
    phase = Phase(training.tokens, training.seq_len, training.global_batch, 8)
    plain, found = search(question), search_phases(PhasedQuestion(question, (phase,)))
    for way in found.ways.values():
        assert way.plan is not None
        assert plain.plan is not None
        assert way.plan.phases[0].estimate == plain.plan
        assert way.plan.run == plain.plan.run
        assert way.plan.restarts == ()


@pytest.mark.parametrize("cut", [10**8, 123_456_789, 999_900_000])
def test_a_phase_cut_in_two_costs_the_same(cut: int) -> None:
    question = small_question(gpus=8, batch=16)
    whole = search_phases(PhasedQuestion(question, (Phase(10**9, 1024, 16, 8),)))
    parts = tuple(Phase(tokens, 1024, 16, 8) for tokens in (cut, 10**9 - cut))
    halves = search_phases(PhasedQuestion(question, parts))
    mine, its = whole.ways["auto"].plan, halves.ways["auto"].plan
    assert mine is not None
    assert its is not None
    assert its.restarts == ()
    assert its.run.steps == mine.run.steps
    assert its.run.wall_time_s == pytest.approx(mine.run.wall_time_s, rel=1e-12)
    assert its.layouts == (mine.layouts[0],) * 2


def test_a_framework_of_even_stages_shares_none_that_are_uneven() -> None:
    """DeepSpeed takes no number of layers for each stage, whatever the loss head weighs."""
    model = small_model(4, 4, 64, 128256)
    question = small_question(model, 2, 8, 2048, small_cluster(64.0), "deepspeed")
    fix: dict[str, int | str | bool] = {"pp": 2, "tp": 1, "zero_stage": 0, "recompute": "none"}
    question = replace(question, fix=fix, pipeline=Pipeline())
    phases = (Phase(10**12, 2048, 8, 2), Phase(10**12, 2048, 16, 2))
    found = search_phases(PhasedQuestion(question, phases))
    for way in found.ways.values():
        assert way.plan is not None
        for one in way.plan.phases:
            asked = replace(question, job=one.planned.job)
            assert broken(asked, estimate(one.planned.job, one.layout)) == []
