"""Whole runs: against the closed form, by hand, and in the order that common sense has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutopt.costmodel.reliability import best_interval_steps, interval_wall_s
from layoutopt.errors import InputError
from layoutopt.simulation import runs as runs_module
from layoutopt.simulation.failures import Failures, Spares
from layoutopt.simulation.runs import RunPlan, RunSimulation, simulate_runs
from layoutopt.simulation.tiers import Calendar, Tier
from tests.conftest import FULL

STEP_S, RESTART_S = 5.0, 300.0
MTBF_S = (600.0, 3600.0, 11124.0, 86400.0, 30 * 86400.0)
SAVES_S = ((1.0, 1.0), (120.0, 6.0), (300.0, 300.0), (1200.0, 1200.0))
MORE_SAVES_S = ((20.0, 20.0), (1200.0, 6.0)) if FULL else ()
"""(written in, stall): 1 s to 20 minutes, synchronous and in the background."""
SHARED = Tier("shared", every_steps=10, write_s=10.0, stall_s=10.0, load_s=0.0)
PLAN = RunPlan(1.0, 1000, (SHARED,), Failures(2000.0), 20.0, 100.0)


def run(plan: RunPlan, runs: int = 400, seed: int = 1) -> RunSimulation:
    return simulate_runs(plan, runs, seed)


@pytest.mark.parametrize("mtbf_s", MTBF_S)
@pytest.mark.parametrize(("write_s", "stall_s"), SAVES_S + MORE_SAVES_S)
def test_closed_form_and_simulation_agree(mtbf_s: float, write_s: float, stall_s: float) -> None:
    """Within 0.5% of wall time, with so many runs that a 95% interval is under 0.2%. Where a save
    takes half as long as the time between failures that many runs take a minute: they are of the
    full count, and the sample allows for its own interval."""
    hard = write_s >= mtbf_s / 2
    many = 16_000 if stall_s == write_s else 24_000
    periods, runs = (100, many) if hard and FULL else (30, 1000) if hard else (250, 2000)
    k = int(best_interval_steps(STEP_S, 10**9, write_s, stall_s, mtbf_s))
    steps = k * max(1, int(periods * mtbf_s / (k * STEP_S)))
    tier = Tier("shared", k, write_s, stall_s, load_s=0.0)
    plan = RunPlan(STEP_S, steps, (tier,), Failures(mtbf_s), 0.0, RESTART_S)
    seen = run(plan, runs)
    told = float(interval_wall_s(STEP_S, steps, k, write_s, stall_s, mtbf_s, RESTART_S))
    spared = hard and not FULL
    assert spared or seen.half_width_s < 0.002 * told
    within = 0.005 * told + (seen.half_width_s if spared else 0.0)
    assert seen.mean_wall_s == pytest.approx(told, abs=within)


def test_every_second_is_accounted_for() -> None:
    seen = run(replace(PLAN, spares=1, repair_s=3000.0, planned_per_failure=0.1))
    parts = (
        seen.checkpoint_s
        + seen.lost_work_s
        + seen.restart_s
        + seen.waiting_s
        + seen.planned_s
        + seen.plan.ideal_s
    )
    np.testing.assert_allclose(parts, seen.wall_s)


def test_a_run_without_failures_is_steps_and_saves() -> None:
    """1,000 steps of 1 s and 100 saves of 10 s."""
    seen = run(replace(PLAN, failures=Failures(float("inf"))), runs=3)
    assert seen.wall_s.tolist() == [2000.0] * 3
    assert seen.goodput.tolist() == [0.5] * 3


def test_a_trace_is_followed_to_the_second() -> None:
    """Saves end at 20, 40, 60, ... A failure at 45 loses 5 s; noticed and restarted after 120 s, at
    165, from 40; the next at 1,000 comes at 40 + 835 = 875 of training, 15 s after the save at
    860. It then restarts at 1,120 and has 2,000 - 860 to go: 2,260."""
    plan = replace(PLAN, failures=Failures(2500.0, trace_s=(45.0, 1000.0, 5000.0)))
    seen = run(plan, runs=2)
    assert seen.wall_s.tolist() == [2260.0] * 2
    assert seen.lost_work_s.tolist() == [20.0] * 2
    assert seen.restart_s.tolist() == [240.0] * 2
    assert seen.failures.tolist() == [2, 2]


def test_a_failure_while_restarting_starts_the_restart_again() -> None:
    """Failures at 45 and 100: training goes on at 220 from 40."""
    plan = replace(PLAN, failures=Failures(2500.0, trace_s=(45.0, 100.0, 9000.0)))
    assert run(plan, runs=1).wall_s.tolist() == [220.0 + 1960.0]


def test_a_trace_repeats() -> None:
    """Failures at 2,500, 5,000, ...: the run of 2,000 s meets none, one of 3,000 s meets one."""
    plan = replace(PLAN, failures=Failures(2500.0, trace_s=(2500.0,)))
    assert run(plan, runs=1).failures.tolist() == [0]
    longer = run(replace(plan, steps=1500), runs=1)
    assert longer.failures.tolist() == [1]
    assert longer.wall_s.tolist() == [3000.0 + 120.0]


def test_the_same_seed_is_the_same_run() -> None:
    assert run(PLAN, 20, 3).wall_s.tolist() == run(PLAN, 20, 3).wall_s.tolist()
    assert run(PLAN, 20, 3).wall_s.tolist() != run(PLAN, 20, 4).wall_s.tolist()


def test_weibull_failures_keep_the_mean_and_come_in_bursts() -> None:
    failures, random = Failures(1000.0, shape=0.7), np.random.default_rng(0)
    times = failures.next_s(random, np.zeros(200_000))
    assert float(np.mean(times)) == pytest.approx(1000.0, rel=0.01)
    assert float(np.mean(times < 100)) > 1.5 * -np.expm1(-0.1)


def test_a_peers_memory_saves_work_unless_the_switch_goes() -> None:
    """Saves of 0.1 s to a peer every 10 steps, to storage every 100."""
    shared = replace(SHARED, every_steps=100)
    peer = Tier("peer", 10, write_s=0.1, stall_s=0.1, load_s=0.0)
    alone = run(replace(PLAN, tiers=(shared,)))
    both = run(replace(PLAN, tiers=(shared, peer)))
    assert both.mean_wall_s < alone.mean_wall_s - 10
    switches = Failures(2000.0, shares=(0.0, 0.0, 1.0))
    gone = run(replace(PLAN, tiers=(shared, peer), failures=switches))
    assert gone.mean_wall_s == pytest.approx(alone.mean_wall_s + 10.0, rel=0.02)


def test_a_hosts_memory_outlives_processes_alone() -> None:
    shared = replace(SHARED, every_steps=100)
    host = Tier("host", 10, write_s=0.1, stall_s=0.1, load_s=0.0)
    processes = replace(PLAN, tiers=(shared, host), failures=Failures(2000.0, shares=(1, 0, 0)))
    nodes = replace(processes, failures=Failures(2000.0, shares=(0, 1, 0)))
    assert run(processes).lost_work_s.mean() < 0.3 * run(nodes).lost_work_s.mean()


def test_writes_that_fail_or_are_late_cost_time() -> None:
    base = run(PLAN, 2000).mean_wall_s
    failing = replace(PLAN, tiers=(replace(SHARED, fails=0.5),))
    late = replace(PLAN, tiers=(replace(SHARED, late=0.5, late_factor=2.0),))
    # half of the writes fail: one more interval of 20 s is lost in the mean, 1.1 times a run
    assert run(failing, 2000).mean_wall_s == pytest.approx(base + 23, abs=12)
    assert run(late, 2000).mean_wall_s > base * 1.2  # a synchronous save of 15 s, not 10


def test_fewer_spares_wait_longer() -> None:
    walls = [run(replace(PLAN, spares=n, repair_s=4000.0)).mean_wall_s for n in (0, 1, 4)]
    assert walls[0] > walls[1] > walls[2]
    assert walls[2] == pytest.approx(run(PLAN).mean_wall_s, rel=0.02)
    assert run(replace(PLAN, spares=0, repair_s=4000.0)).waiting_s.mean() > 4000.0


def test_spares_come_back_after_repair() -> None:
    """Two spares; three nodes fail at 0, 10 and 20: the third waits for the first's repair at 100.
    A switch with three nodes has two spares at hand at 1,000, and waits for its own repair."""
    spares, row = Spares.of(1, 2, 100.0), np.array([0])

    def wait(now: float, lost: int) -> float:
        return float(spares.wait_s(row, np.array([now]), np.array([lost]))[0])

    assert [wait(0.0, 1), wait(10.0, 1), wait(20.0, 1)] == [0.0, 0.0, 80.0]
    assert wait(1000.0, 3) == 100.0
    assert wait(2000.0, 0) == 0.0


def test_a_hopeless_run_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures every 5 s, restarts of 120 s: never."""
    monkeypatch.setattr(runs_module, "MOST_FAILURES", 300)
    seen = run(replace(PLAN, failures=Failures(5.0), steps=1000), runs=5)
    assert seen.finished == 0
    assert np.all(seen.failures == 300)


def test_the_calendar_of_two_tiers() -> None:
    """Every 10 steps of 1 s to a peer (1 s), every 20 to storage (5 s): 11, then 15."""
    peer, shared = Tier("peer", 10, 1.0, 1.0, 0.0), Tier("shared", 20, 5.0, 5.0, 0.0)
    calendar = Calendar.of((shared, peer), 1.0)
    assert calendar.at(np.arange(5)).tolist() == [0, 11, 26, 37, 52]
    elapsed = np.array([10.9, 11.0, 22.0, 25.9, 26.0, 40.0])
    assert calendar.saved(1, elapsed).tolist() == [0, 1, 2, 2, 2, 3]
    assert calendar.saved(0, elapsed).tolist() == [0, 0, 0, 0, 2, 2]


def test_a_save_waits_for_the_one_before_it() -> None:
    """10 s of work, 30 s to write in the background: an interval of 30 s."""
    calendar = Calendar.of((Tier("shared", 10, 30.0, 1.0, 0.0),), 1.0)
    assert calendar.at(np.arange(3)).tolist() == [0, 30, 60]


def test_intervals_have_to_nest() -> None:
    tiers = (Tier("peer", 10, 1.0, 1.0, 0.0), Tier("shared", 25, 5.0, 5.0, 0.0))
    with pytest.raises(InputError, match="no multiple") as caught:
        Calendar.of(tiers, 1.0)
    assert caught.value.nearest == (20, 30)


def test_a_thousand_runs_of_54_days_take_seconds() -> None:
    """Llama 3's failures; the budget is 10 s, and this machine may be busy."""
    import time

    tier = Tier("shared", 130, 20.8, 20.8, 5.7)
    steps = int(54 * 86400 / 5.7)
    plan = RunPlan(5.7, steps, (tier,), Failures(11124.0), 86.0, 600.0, spares=16, repair_s=86400.0)
    began = time.process_time()
    seen = simulate_runs(plan, 1000)
    assert time.process_time() - began < 10
    assert seen.finished == 1000
