"""A run in phases by hand: shares of a run, restarts between phases, what each of them changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.costmodel.checkpoint import RESTART_S, checkpoint_bytes, checkpoint_cost
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.phases import Phase, changes_between, phase_jobs, phased_run
from layoutopt.units import HOUR
from tests.builders import small_question

LAYOUT = Layout(tp=2, dp=4, micro_batch=1, microbatches=2)


def _job() -> Job:
    job = small_question(gpus=8, batch=8).job
    pauses = {"eval_interval_steps": 100, "eval_s": 30.0}
    return replace(job, training=job.training.model_copy(update=pauses))


def test_steps_and_pauses_are_those_of_the_whole_run() -> None:
    """Steps of 8 x 1,024 = 8,192 tokens: 1M tokens are 122.07, so 123; 7,616 of the last step's
    tokens are the next phase's, which needs (1,000,000 - 7,616) / 8,192 = 121.1, so 122: together
    245, as 2M tokens take. Pauses come after steps 100 and 200: one in each."""
    jobs = phase_jobs(_job(), [Phase(10**6, 1024, 8, 8), Phase(10**6, 1024, 8, 8)])
    assert [one.steps for one in jobs] == [123, 122]
    assert [one.job.training.steps for one in jobs] == [245, 245]
    assert [one.pauses_s for one in jobs] == [30.0, 30.0]
    assert jobs[0].share == 123 / 245


def test_a_phase_is_its_share_and_restarts_are_added() -> None:
    phases = [Phase(10**9, 1024, 8, 8), Phase(10**9, 2048, 8, 8)]
    job = _job()
    jobs = phase_jobs(job, phases)
    second = replace(LAYOUT, micro_batch=2, microbatches=1)
    plan = phased_run(jobs, [LAYOUT, second])
    whole = estimate(jobs[0].job, LAYOUT).run
    mine = plan.phases[0].run
    pauses = jobs[0].pauses_s
    assert mine.wall_time_s == pytest.approx(jobs[0].share * whole.wall_time_s + pauses, rel=1e-12)
    size = checkpoint_bytes(job)
    _, write, _ = checkpoint_cost(job, 2, 1, 1)
    (restart,) = plan.restarts
    assert restart.bytes == size
    # The storage of small_cluster writes 20 GB/s, and is taken to read as fast.
    assert restart.total_s == pytest.approx(float(write[0]) + RESTART_S + size / 20e9)
    walls = sum(one.run.wall_time_s for one in plan.phases)
    assert plan.run.wall_time_s == pytest.approx(walls + restart.total_s, rel=1e-12)
    causes = sum(plan.run.overhead_s.values())
    assert plan.run.ideal_s + causes == pytest.approx(plan.run.wall_time_s, rel=1e-9)
    # $2.50 a GPU-hour, restarts included.
    assert plan.run.cost_usd == pytest.approx(2.5 * 8 * plan.run.wall_time_s / HOUR)
    assert plan.run.steps == sum(one.steps for one in jobs)


@pytest.mark.parametrize(
    ("change", "named", "reshards"),
    [
        ({"microbatches": 4}, (), None),
        ({"micro_batch": 2}, ("micro_batch",), False),
        ({"recompute": "full"}, ("recompute",), False),
        ({"zero_stage": 3}, ("zero_stage",), True),
        ({"tp": 4, "dp": 2}, ("tp", "dp"), True),
        # The optimizer state stands on the same 4 ranks, whichever axis they belong to.
        ({"cp": 2, "dp": 2}, ("cp", "dp"), False),
    ],
)
def test_what_takes_a_restart_and_what_moves_state(
    change: dict[str, object], named: tuple[str, ...], reshards: bool | None
) -> None:
    jobs = phase_jobs(_job(), [Phase(10**9, 1024, 8, 8), Phase(10**9, 1024, 16, 8)])
    plan = phased_run(jobs, [LAYOUT, Layout(**{**vars(LAYOUT), **change})])
    assert changes_between(*plan.phases) == named
    assert [one.reshards for one in plan.restarts] == ([] if reshards is None else [reshards])


def test_an_even_split_said_or_not_is_the_same_layout() -> None:
    jobs = phase_jobs(_job(), [Phase(10**9, 1024, 8, 8), Phase(10**9, 1024, 16, 8)])
    first = Layout(pp=2, dp=4, microbatches=2)
    plan = phased_run(jobs, [first, replace(first, layers_per_stage=(3, 3), microbatches=4)])
    assert plan.restarts == ()
    longer = phase_jobs(_job(), [Phase(10**9, 1024, 8, 8), Phase(10**9, 2048, 8, 8)])
    assert phased_run(longer, [first, first]).restarts[0].changes == ("seq_len",)
