"""Announced stops: counted on the calendar by hand, read from words, and part of the wall time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutopt.costmodel.checkpoint import checkpoint_bytes, run_plan, run_wall_s
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.planned import expected_stops, stop_s
from layoutopt.hardware_profiles.planned import read_stops
from layoutopt.hardware_profiles.schema import PlannedStops
from layoutopt.units import DAY, HOUR
from tests.builders import small_question


def job_with(text: str | None, failures: float = 1e-4) -> Job:
    """A small job whose cluster announces these stops."""
    job = small_question().job
    stops = None if text is None else read_stops(text)
    told = {"planned_stops": stops, "failures_per_gpu_hour": failures}
    return replace(job, cluster=job.cluster.model_copy(update=told))


def test_a_window_a_month() -> None:
    """Six hours of every 30 days are gone; 59.5 days of work are two months less twice 6 h, that is
    two whole cycles, and take 60 days."""
    stops = read_stops("4h every 30d")
    each = stop_s(stops, 0.5 * HOUR, 1.5 * HOUR)
    assert float(each) == 6 * HOUR
    found = float(expected_stops(stops, 59.5 * DAY, each))
    assert found == pytest.approx(2.0)
    assert 59.5 * DAY + found * float(each) == pytest.approx(60 * DAY)


def test_the_mean_over_the_days_on_which_a_run_may_begin() -> None:
    """20 days of work, a stop of 5 days every 15: there are 10 days between stops, and a run that
    begins anywhere between two of them meets two."""
    stops = PlannedStops(lasts_s=5 * DAY, every_s=15 * DAY)
    met = [2 for _ in range(10)]
    assert float(expected_stops(stops, 20 * DAY, 5 * DAY)) == np.mean(met)
    # 25 days: three where the first comes within 5 of the 10 days, else two.
    assert float(expected_stops(stops, 25 * DAY, 5 * DAY)) == np.mean([3] * 5 + [2] * 5)


def test_so_many_stops_are_so_many() -> None:
    stops = read_stops("3 x 90min")
    assert (stops.count, stops.lasts_s, stops.every_s) == (3, 5400.0, None)
    assert expected_stops(stops, np.array([1.0, 1e9]), 7000.0).tolist() == [3.0, 3.0]


def test_stops_that_leave_no_time_to_work_never_end_the_run() -> None:
    """Saves and restarts take longer than there is between two stops: long, and finite."""
    stops = PlannedStops(lasts_s=50.0, every_s=60.0)
    assert float(expected_stops(stops, 3600.0, 80.0)) == pytest.approx(3600 / 0.006)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("soon", "does not say"),
        ("4h", "does not say"),
        ("30d every 4h", "no time"),
        ("0 x 4h", "not between"),
        ("3 x 0h", "write 'none'"),
        ("3 x 4", "no unit"),
        ("4h every month", "unit"),
        ("99999 x 1h", "not between"),
    ],
)
def test_what_is_no_stop_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_stops(text)


@pytest.mark.parametrize("text", ["4h every 30d", "3 x 4h", "none", None])
def test_the_plan_of_a_run_adds_up(text: str | None) -> None:
    """On arrays as for one run; parts of the planned overhead are all of it."""
    job = job_with(text)
    size = checkpoint_bytes(job)
    _, run = run_plan(job, 3.0, 30.0, 10.0, size)
    array = run_wall_s(job, np.array([3.0, 3.1]), 30.0, 10.0, size)
    assert run.wall_time_s == pytest.approx(array[0], rel=1e-12)
    assert array[1] > array[0]
    assert sum(run.overhead_s.values()) == pytest.approx(run.wall_time_s - run.ideal_s)
    assert sum(run.planned_s.values()) == pytest.approx(run.overhead_s["planned"])
    if text == "3 x 4h":
        job = job_with("none")
        _, without = run_plan(job, 3.0, 30.0, 10.0, size)
        anew = job.cluster.storage
        load = size / (anew.read_bytes_per_s or anew.write_bytes_per_s)
        assert run.planned_stops == 3.0
        more = 3 * (4 * HOUR + 30.0 + 600.0 + load)
        assert run.wall_time_s - without.wall_time_s == pytest.approx(more)


def test_none_takes_the_usual_share_away() -> None:
    size = checkpoint_bytes(job_with(None))
    _, usual = run_plan(job_with(None), 3.0, 30.0, 10.0, size)
    _, none = run_plan(job_with("none"), 3.0, 30.0, 10.0, size)
    assert usual.planned_stops > 0
    assert none.overhead_s["planned"] == 0.0
    assert usual.wall_time_s - none.wall_time_s == pytest.approx(usual.overhead_s["planned"])
