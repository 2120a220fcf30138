"""Expected wall time, the save interval and the plan of a run, by hand, by force and by lot."""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.costmodel.reliability import (
    LARGEST_EXACT_S,
    best_interval_steps,
    daly_s,
    expected_wall_s,
    first_order_loss,
    interval_wall_s,
    job_mtbf_s,
    never_finishes,
    optimum_s,
    overheads,
    wall_time,
    young_s,
)

INF = float("inf")


def test_mtbf_of_a_job_is_that_of_a_gpu_over_the_gpus() -> None:
    """1e-5 an hour each, 1,000 GPUs: 0.01 an hour, one every 100 h."""
    assert job_mtbf_s(1e-5, 1000) == pytest.approx(100 * 3600)
    assert job_mtbf_s(0.0, 1000) == INF


def test_dalys_wall_time_by_hand() -> None:
    """M 10,000, R 500, tau 1,000, delta 100, 10,000 s of work: ten segments.

    10,000 e^0.05 (e^0.11 - 1) = 10,000 x 1.051271 x 0.116278 = 1,222.40 s each.
    """
    wall = expected_wall_s(10_000, 1_000, 100, mtbf_s=10_000, restart_s=500)
    assert float(wall) == pytest.approx(12_224.0, abs=0.1)


def test_a_background_save_falls_back_one_flush_further() -> None:
    """P = 300 beside R = 500 is e^0.08 in the place of e^0.05; to first order a/2 + P + R lost."""
    by_hand = 10 * 10_000 * math.exp(0.08) * math.expm1(0.11)
    wall = expected_wall_s(10_000, 1_000, 100, 10_000, restart_s=500, persist_s=300)
    assert float(wall) == pytest.approx(by_hand)
    rare = 1e9
    extra = float(expected_wall_s(1e6, 1_000, 100, rare, 500, 300)) - 1.1e6
    assert extra == pytest.approx(1.1e6 / rare * (1_100 / 2 + 500 + 300), rel=1e-3)


def test_youngs_and_dalys_intervals_by_hand() -> None:
    """delta 50, M 10,000: sqrt(1e6) = 1,000; ratio 0.0025, 1,000 (1 + .05/3 + .0025/9) - 50."""
    assert float(young_s(50, 10_000)) == pytest.approx(1_000)
    assert float(daly_s(50, 10_000)) == pytest.approx(966.944, abs=1e-3)
    assert float(daly_s(300, 100)) == 100, "from delta = 2 M on: M"


@pytest.mark.parametrize("save_s", [1e-6, 0.1, 50.0, 5_000.0, 40_000.0])
def test_the_exact_optimum_is_a_minimum(save_s: float) -> None:
    """No interval within a factor of 2 on a fine grid does better; Daly's series is close."""
    mtbf = 10_000.0
    best = float(optimum_s(save_s, mtbf))
    others = best * np.linspace(0.5, 2.0, 2_001)
    lowest = float(expected_wall_s(1.0, best, save_s, mtbf))
    assert lowest <= expected_wall_s(1.0, others, save_s, mtbf).min() * (1 + 1e-12)
    if save_s <= 50:
        assert best == pytest.approx(float(daly_s(save_s, mtbf)), rel=1e-3)


def test_first_order_loss_is_half_an_interval_per_failure() -> None:
    """1,800 s between saves, one failure in 9,000 s: 900 / 9,000."""
    assert float(first_order_loss(1_800, 9_000)) == pytest.approx(0.1)


RUNS = st.fixed_dictionaries(
    {
        "step": st.floats(0.05, 500),
        "steps": st.integers(1, 3_000),
        "stall": st.floats(0, 2_000),
        "hidden": st.one_of(st.just(0.0), st.floats(0, 5_000)),
        "mtbf": st.one_of(st.just(INF), st.floats(5, 1e8)),
        "restart": st.floats(0, 3_000),
    }
)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(run=RUNS)
def test_best_interval_equals_trying_every_interval(run: dict[str, Any]) -> None:
    step, steps, stall = run["step"], run["steps"], run["stall"]
    write = stall + run["hidden"]
    every = interval_wall_s(
        step, steps, np.arange(1, steps + 1), write, stall, run["mtbf"], run["restart"]
    )
    k = int(best_interval_steps(step, steps, write, stall, run["mtbf"]))
    assert 1 <= k <= steps
    assert every[k - 1] <= every.min() * (1 + 1e-12)
    best = wall_time(step, steps, write, stall, run["mtbf"], run["restart"])
    assert float(best) == pytest.approx(float(every.min()), rel=1e-12)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(run=RUNS, factor=st.floats(1.0, 3.0), planned=st.floats(0, 0.5))
def test_a_slower_step_never_shortens_the_run(
    run: dict[str, Any], factor: float, planned: float
) -> None:
    steps = np.sort(run["step"] * np.linspace(1, factor, 200))
    rest = (run["steps"], run["stall"] + run["hidden"], run["stall"], run["mtbf"], run["restart"])
    walls = wall_time(steps, *rest, planned)
    assert np.all(np.isfinite(walls))
    assert np.all(np.diff(walls) >= -1e-12 * walls[:-1])


@settings(derandomize=True, max_examples=200, deadline=None)
@given(run=RUNS)
def test_overheads_add_up_to_wall_minus_ideal(run: dict[str, Any]) -> None:
    save = (run["stall"] + run["hidden"], run["stall"], run["mtbf"])
    k = best_interval_steps(run["step"], run["steps"], *save)
    parts = overheads(run["step"], run["steps"], k, *save, run["restart"], 0.1)
    wall, ideal = float(parts.wall_s), float(parts.ideal_s)
    assert ideal == pytest.approx(run["step"] * run["steps"])
    assert sum(parts.by_cause().values()) == pytest.approx(wall - ideal, rel=1e-9, abs=wall * 1e-9)
    assert min(parts.by_cause().values()) >= 0


def test_a_run_that_never_fails_saves_once_at_the_end() -> None:
    """100 steps of 2 s and one save of 30 s."""
    assert int(best_interval_steps(2.0, 100, 30.0, 30.0, INF)) == 100
    assert float(wall_time(2.0, 100, 30.0, 30.0, INF, 600.0)) == pytest.approx(230)
    parts = overheads(2.0, 100, 100, 30.0, 30.0, INF, 600.0, 0.1)
    assert parts.by_cause() == {
        "checkpoint": pytest.approx(30),
        "lost_work": 0,
        "restart": 0,
        "planned": 0,
    }
    assert float(parts.failures) == 0


def test_a_run_shorter_than_the_interval_saves_once() -> None:
    """The optimum of delta 50 and M 1e6 is about 10,000 s; the run has 60 steps of 10 s."""
    assert int(best_interval_steps(10.0, 60, 50.0, 50.0, 1e6)) == 60


def test_free_saves_are_made_after_every_step() -> None:
    assert int(best_interval_steps(3.0, 1000, 0.0, 0.0, 1e4)) == 1


def test_a_background_save_is_not_begun_before_the_last_one_is_durable() -> None:
    """Free stalls, 100 s to be durable, steps of 8 s: 12 steps and a wait, or 13 without one."""
    k = int(best_interval_steps(8.0, 10_000, 100.0, 0.0, 5e4))
    assert k == 13
    waiting = interval_wall_s(8.0, 10_000, 5, 100.0, 0.0, INF)
    assert float(waiting) == pytest.approx(2_000 * 100 + 100), "40 s of work, 60 s of waiting"


@pytest.mark.parametrize("mtbf_s", [1e-300, 1e-3, 1.0, 50.0])
def test_a_run_that_cannot_finish_is_finite_ordered_and_marked(mtbf_s: float) -> None:
    steps = np.array([1.0, 10.0, 100.0, 1_000.0])
    walls = wall_time(steps, 100_000, 6_000.0, 6_000.0, mtbf_s, 600.0, 0.1)
    assert np.all(np.isfinite(walls))
    assert np.all(np.diff(walls) >= 0)
    assert walls.min() > LARGEST_EXACT_S
    assert never_finishes(float(walls[0]), 1e5)
    parts = overheads(1.0, 100_000, 1, 6_000.0, 6_000.0, mtbf_s, 600.0, 0.1)
    assert all(math.isfinite(value) for value in parts.by_cause().values())
    assert not never_finishes(1.4e5, 1e5)


def test_absurdly_long_runs_stay_finite() -> None:
    for step, steps in ((1e12, 10**18), (1e-9, 10**18), (1e9, 1)):
        assert math.isfinite(float(wall_time(step, steps, 50.0, 50.0, 1e4, 600.0, 0.1)))


def _simulate(
    rng: np.random.Generator, intervals: int, cycle: float, persist: float, restart: float
) -> tuple[float, float, int]:
    """One run event by event, M = 1: wall time, time in restarts, failures."""
    clock, restarting, failures, durable = 0.0, 0.0, 0, 0
    while True:
        until_failure = rng.exponential()
        needed = (intervals - durable) * cycle + persist
        if until_failure >= needed:
            return clock + needed, restarting, failures
        clock += until_failure
        failures += 1
        durable += max(0, math.floor((until_failure - persist) / cycle))
        while (until_failure := rng.exponential()) < restart:
            restarting += until_failure
            failures += 1
        restarting += restart


@pytest.mark.parametrize("persist", [0.0, 0.1])
def test_expected_wall_time_agrees_with_runs_drawn_at_random(persist: float) -> None:
    """25 intervals of 0.2 M with restarts of 0.05 M, saved in the foreground or in 0.1 M more.

    8,000 runs: the mean wall time is good to 0.1%, that of the restarts to 0.6% (one standard
    error).
    """
    rng = np.random.default_rng(20_260_101)
    runs = np.array([_simulate(rng, 25, 0.2, persist, 0.05) for _ in range(8_000)])
    walls = runs[:, 0] + runs[:, 1]
    stall, step = 0.02, 0.18
    parts = overheads(step, 25, 1, stall + persist, stall, 1.0, 0.05)
    assert float(parts.wall_s) == pytest.approx(walls.mean(), rel=0.005)
    assert float(parts.restart_s) == pytest.approx(runs[:, 1].mean(), rel=0.02)
    assert float(parts.failures) == pytest.approx(runs[:, 2].mean(), rel=0.02)


def _facts() -> dict[str, dict[str, Any]]:
    text = resources.files("layoutopt.costmodel").joinpath("data/failures.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["id"]: row for row in rows}


def test_every_failure_record_names_its_source() -> None:
    facts = _facts()
    assert len(facts) == 37
    assert all(row["source"] for row in facts.values())


def test_published_failure_rates_are_the_arithmetic_of_their_counts() -> None:
    """Stops over days and nodes, where a record states all of them."""
    checked = 0
    for row in _facts().values():
        stops = row.get("unexpected_interruptions", row.get("interruptions"))
        if stops and {"period_days", "nodes", "failures_per_1000_node_days"} <= row.keys():
            rate = 1000 * stops / row["period_days"] / row["nodes"]
            assert row["failures_per_1000_node_days"] == pytest.approx(rate, rel=0.01), row["id"]
            checked += 1
    assert checked >= 5
