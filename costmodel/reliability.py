"""How long a run takes when the machine fails: expected wall time and the best save interval.

Failures arrive at random with a constant rate (exponential model of Young 1974 and Daly 2006;
A16). Every function takes floats or numpy arrays and returns numpy values of the broadcast
shape; all times are seconds. Symbols:

    T        time of one optimizer step           M      mean time between failures of the job
    k        steps between saves                  R      detection and restart after a failure
    delta    time a save stops training (stall)   P      rest of the save, written in the background
    a        one interval: kT + delta

A save is durable ``write_s`` after it began, of which training stands still for ``stall_s``:
P = write - stall, 0 for a synchronous save. The next save waits for the one before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from layoutopt.costmodel.axes import Array, Ints
from layoutopt.units import HOUR

Seconds = float | Array

LARGEST_EXACT_S = 1e30
"""Expected wall times up to here are exact; beyond, they rise with their logarithm and stay finite.
"""
NEVER_FACTOR = 1e3
"""A run whose expected wall time is over so many times its ideal time never finishes."""
_LARGEST_COUNT = 2.0**53


@dataclass(frozen=True)
class Overheads:
    """Expected wall time of a run, and what stands between it and the failure-free ideal."""

    wall_s: Array
    ideal_s: Array
    checkpoint_s: Array
    """Saves: stalls, waits for the save before, and the last flush."""
    lost_work_s: Array
    """Work done twice because a failure came before it was saved."""
    restart_s: Array
    """Detection and restart, restarts that fail themselves included."""
    planned_s: Array
    """Announced stops (maintenance, upgrades): one save and one restart each, no lost work."""
    failures: Array
    """Expected number of unplanned failures during the run."""

    def by_cause(self) -> dict[str, float]:
        """Overheads of one run in seconds; they add up to wall - ideal."""
        return {
            "checkpoint": float(self.checkpoint_s),
            "lost_work": float(self.lost_work_s),
            "restart": float(self.restart_s),
            "planned": float(self.planned_s),
        }


def job_mtbf_s(failures_per_gpu_hour: float, gpus: int) -> float:
    """Mean time between failures of a job on ``gpus`` GPUs; infinite where nothing fails."""
    per_hour = failures_per_gpu_hour * gpus
    return HOUR / per_hour if per_hour > 0 else float("inf")


def first_order_loss(interval_s: Seconds, mtbf_s: Seconds) -> Array:
    """Share of time lost to repeated work, first order: half an interval per failure.

    interval / 2 / M. Source: Young 1974, "A first order approximation to the optimum checkpoint
    interval", CACM 17(9). Good while the
    interval is far below M.
    """
    loss: Array = np.asarray(interval_s, dtype=float) / 2 / mtbf_s
    return loss


def young_s(save_s: Seconds, mtbf_s: Seconds) -> Array:
    """Young's interval between saves: sqrt(2 delta M). Source: Young 1974.

    Finite (1e150 s and more) where nothing fails.
    """
    interval: Array = np.sqrt(2 * np.asarray(save_s, dtype=float)) * np.sqrt(
        np.minimum(mtbf_s, 1e300)
    )
    return interval


def daly_s(save_s: Seconds, mtbf_s: Seconds) -> Array:
    """Daly's higher-order interval between saves.

    sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta below delta = 2 M, else
    M. Source: Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", FGCS 22, equation 37.
    """
    save, mtbf = np.asarray(save_s, dtype=float), np.asarray(mtbf_s, dtype=float)
    ratio = save / (2 * mtbf)
    series = young_s(save, mtbf) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - save
    return np.where(ratio < 1, series, mtbf)


def optimum_s(save_s: Seconds, mtbf_s: Seconds) -> Array:
    """Productive time between saves that minimises Daly's expected wall time, exactly.

    x = tau / M solves x + exp(-x - delta / M) = 1, where the derivative of Daly's expected wall
    time is 0 (a branch of Lambert's W). It depends on neither R nor the step time. Newton's
    method from above: the left side is convex, min(1, sqrt(2 delta / M)) never below the root.
    """
    save, mtbf = np.asarray(save_s, dtype=float), np.asarray(mtbf_s, dtype=float)
    cost = save / mtbf
    x = np.minimum(1.0, np.sqrt(2 * cost))
    for _ in range(8):
        slope = -np.expm1(-(x + cost))
        x = x - np.divide(x - slope, slope, out=np.zeros_like(x), where=slope > 0)
    finite = np.isfinite(mtbf)
    return np.where(finite, np.where(finite, mtbf, 0.0) * x, np.inf)


def expected_wall_s(
    productive_s: Seconds,
    interval_s: Seconds,
    save_s: Seconds,
    mtbf_s: Seconds,
    restart_s: Seconds = 0.0,
    persist_s: Seconds = 0.0,
) -> Array:
    """Expected wall time of ``productive_s`` of work, saved after every ``interval_s`` of it.

    M e^(R'/M) (e^((tau + delta)/M) - 1) T_s / tau, with R' = R + P. Source: Daly 2006 (the
    expected-wall formula), for P = 0. A save that is durable only P after training goes on makes
    a failure fall back tau/2 + delta/2 + P on average; the renewal argument of
    docs/reliability.md gives the same formula with R + P for R, exactly.
    """
    interval = np.asarray(interval_s, dtype=float)
    count = np.asarray(productive_s) / interval
    return _expected_s(count, interval + save_s, mtbf_s, np.asarray(restart_s) + persist_s)


def interval_wall_s(
    step_s: Seconds,
    steps: float,
    interval_steps: Seconds | Ints,
    write_s: Seconds,
    stall_s: Seconds,
    mtbf_s: Seconds,
    restart_s: Seconds = 0.0,
) -> Array:
    """Expected wall time of ``steps`` steps with a save after every ``interval_steps``.

    Unplanned failures only. A last interval that is shorter counts as its fraction, as in Daly's
    T_s / tau. Quasi-convex in the interval, never falling in the step time. With background
    saves the run ends when the last one is durable: M e^(R/M) (e^(P/M) - 1), whatever k.
    """
    k = np.asarray(interval_steps, dtype=float)
    persist = persist_time_s(write_s, stall_s)
    cycle = np.maximum(k * step_s + stall_s, write_s)
    intervals = _expected_s(steps / k, cycle, mtbf_s, np.asarray(restart_s) + persist)
    return intervals + _expected_s(1.0, persist, mtbf_s, restart_s)


def persist_time_s(write_s: Seconds, stall_s: Seconds) -> Array:
    """Time between the end of a save's stall and its being durable: write - stall, at least 0."""
    return np.maximum(np.asarray(write_s, dtype=float) - stall_s, 0.0)


def best_interval_steps(
    step_s: Seconds, steps: float, write_s: Seconds, stall_s: Seconds, mtbf_s: Seconds
) -> Ints:
    """Whole number of steps between saves that minimises the expected wall time.

    Between 1 and ``steps``: a run shorter than the optimum, or one that never fails, saves once,
    at the end. The wall time is quasi-convex in k, so that the best whole k is the floor or the
    ceiling of the continuous optimum; equal wall times take the smaller k. The restart time
    scales every k alike and does not matter.
    """
    step = np.asarray(step_s, dtype=float)
    last = min(float(steps), _LARGEST_COUNT)
    target = np.maximum(optimum_s(stall_s, mtbf_s), persist_time_s(write_s, stall_s))
    lower = np.clip(np.floor(target / step), 1.0, last)
    upper = np.minimum(lower + 1, last)
    wall_lower, wall_upper = (
        interval_wall_s(step, steps, k, write_s, stall_s, mtbf_s) for k in (lower, upper)
    )
    return np.asarray(np.where(wall_upper < wall_lower, upper, lower), dtype=np.int64)


def wall_time(
    step_s: Seconds,
    steps: float,
    write_s: Seconds,
    stall_s: Seconds,
    mtbf_s: Seconds,
    restart_s: Seconds = 0.0,
    planned_per_failure: float = 0.0,
) -> Array:
    """Expected wall time of a run with its best interval. Never falls when the step time rises.

    For a given save the layout with the fastest step therefore has the fastest run: the solver
    leans on it, and a property test holds it.
    """
    k = best_interval_steps(step_s, steps, write_s, stall_s, mtbf_s)
    wall = interval_wall_s(step_s, steps, k, write_s, stall_s, mtbf_s, restart_s)
    return wall * (1 + _planned_share(write_s, mtbf_s, restart_s, planned_per_failure))


def overheads(
    step_s: Seconds,
    steps: float,
    interval_steps: Seconds | Ints,
    write_s: Seconds,
    stall_s: Seconds,
    mtbf_s: Seconds,
    restart_s: Seconds = 0.0,
    planned_per_failure: float = 0.0,
) -> Overheads:
    """Where the time of a run with a given interval goes; the parts add up to wall - ideal.

    Wald's identity gives wall / M failures in the mean, each of which opens a restart that lasts
    M (1 - e^(-R/M)) in the mean, because a restart can fail too. Lost work is what is left.
    """
    k = np.asarray(interval_steps, dtype=float)
    step, mtbf = np.asarray(step_s, dtype=float), np.asarray(mtbf_s, dtype=float)
    wall = interval_wall_s(step, steps, k, write_s, stall_s, mtbf, restart_s)
    ideal = steps * step
    persist = persist_time_s(write_s, stall_s)
    checkpoint = steps / k * (np.maximum(k * step + stall_s, write_s) - k * step) + persist
    restart = wall * -np.expm1(-_ratio(restart_s, mtbf))
    planned = wall * _planned_share(write_s, mtbf, restart_s, planned_per_failure)
    return Overheads(
        wall_s=wall + planned,
        ideal_s=ideal,
        checkpoint_s=checkpoint,
        lost_work_s=np.maximum(wall - ideal - checkpoint - restart, 0.0),
        restart_s=restart,
        planned_s=planned,
        failures=_ratio(wall, mtbf),
    )


def never_finishes(wall_s: float, ideal_s: float) -> bool:
    """True where failures come faster than work is saved, so that no plan should rest on the run.

    The wall time is then a large finite number that still ranks layouts, and means nothing else.
    """
    return wall_s > NEVER_FACTOR * ideal_s


def _planned_share(
    write_s: Seconds, mtbf_s: Seconds, restart_s: Seconds, planned_per_failure: float
) -> Array:
    """Planned stops as extra time on the rest of the run: one full save and one restart each."""
    return planned_per_failure * _ratio(np.asarray(write_s) + restart_s, mtbf_s)


def _expected_s(count: Seconds, segment_s: Seconds, mtbf_s: Seconds, restart_s: Seconds) -> Array:
    """Expected time of ``count`` segments that each need ``segment_s`` without a failure.

    n M e^(R/M) (e^x - 1), with x = a/M, written as n a e^(R/M) (e^x - 1)/x: that is n a where
    nothing fails (M infinite), and keeps its digits where x is tiny. Beyond LARGEST_EXACT_S the
    result grows with its logarithm, so that no value is infinite and their order is kept.
    """
    work: Array = np.asarray(count, dtype=float) * segment_s
    x, r = _ratio(segment_s, mtbf_s), _ratio(restart_s, mtbf_s)
    log_growth = r + _log_phi(x)
    log_wall = np.log(np.maximum(work, 1e-300)) + log_growth
    excess = np.maximum(log_wall - math.log(LARGEST_EXACT_S), 0.0)
    exact = work * np.exp(np.where(excess > 0, 0.0, log_growth))
    return np.where(excess > 0, LARGEST_EXACT_S * (1 + excess), exact)


def _log_phi(x: Array) -> Array:
    """log((e^x - 1) / x), 0 at x = 0; for any x that is not negative."""
    safe = np.where(x > 0, x, 1.0)
    return np.where(x > 0, safe + np.log(-np.expm1(-safe) / safe), 0.0)


def _ratio(time_s: Seconds, mtbf_s: Seconds) -> Array:
    """time / M, bounded so that products of it stay finite."""
    with np.errstate(over="ignore"):
        bounded: Array = np.minimum(np.asarray(time_s, dtype=float) / mtbf_s, 1e60)
    return bounded
