"""Whole runs, failure by failure: a Monte-Carlo simulation, all runs side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from layoutopt.costmodel.axes import Array, Ints
from layoutopt.costmodel.planned import LEAST_WORK_SHARE
from layoutopt.hardware_profiles.schema import PlannedStops
from layoutopt.simulation.failures import KINDS, Failures, Spares
from layoutopt.simulation.tiers import SURVIVES, Calendar, Tier

HOPELESS_FACTOR = 1e3
"""A run that has taken so many times its ideal time is given up,"""
MOST_FAILURES = 20_000
"""and so is one that has failed so often,"""
PATIENCE_FAILURES = 1000
"""and one that so many failures have not brought any further."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class RunPlan:
    """What a run does and what may happen to it; all times in seconds."""

    step_s: float
    steps: int
    tiers: tuple[Tier, ...]
    failures: Failures
    detect_s: float
    restart_s: float
    """From a noticed failure to loading: scheduling, starting processes, joining."""
    spares: int | None = None
    """Nodes that wait; None: a spare is always at hand, at once."""
    repair_s: float = 0.0
    planned_per_failure: float = 0.0
    """Announced stops for each failure: a full save and a restart, nothing lost."""
    stops: PlannedStops | None = None
    """Those that the site announces."""

    @property
    def ideal_s(self) -> float:
        """Without failures and saves."""
        return self.steps * self.step_s


@dataclass(frozen=True)
class RunSimulation:
    """Every simulated run, by where its time went; arrays over runs, in seconds."""

    plan: RunPlan
    wall_s: Array
    checkpoint_s: Array
    lost_work_s: Array
    restart_s: Array
    """Detection, restart and loading, interrupted restarts included."""
    waiting_s: Array
    """For nodes, where no spare was ready."""
    planned_s: Array
    failures: Ints
    finished: int
    """Runs that were not given up (HOPELESS_FACTOR, MOST_FAILURES, PATIENCE_FAILURES)."""

    @property
    def goodput(self) -> Array:
        """Ideal time over wall time."""
        return self.plan.ideal_s / self.wall_s

    @property
    def mean_wall_s(self) -> float:
        """Mean wall time."""
        return float(np.mean(self.wall_s))

    @property
    def half_width_s(self) -> float:
        """Half of the 95% confidence interval of the mean wall time."""
        if len(self.wall_s) < 2:
            return float("inf")
        return float(1.96 * np.std(self.wall_s, ddof=1) / np.sqrt(len(self.wall_s)))

    def quantiles_s(self) -> dict[float, float]:
        """Wall time at QUANTILES."""
        found = np.quantile(self.wall_s, QUANTILES).tolist()
        return dict(zip(QUANTILES, map(float, found), strict=True))


@dataclass
class _State:
    """All runs that are still going. ``base[run, tier]`` is the newest durable position on each
    tier, -1 where there is none; ``at`` the position that training last started from."""

    now: Array
    at: Ints
    base: Ints
    restart: Array
    waiting: Array
    failures: Ints
    recovery: Array
    """Seconds from the last failure until training goes on; 0 at the start."""

    @staticmethod
    def of(runs: int, tiers: int) -> _State:
        def zeros() -> Array:
            return np.zeros(runs)

        def counts() -> Ints:
            return np.zeros(runs, dtype=np.int64)

        base = np.full((runs, tiers), -1, dtype=np.int64)
        return _State(zeros(), counts(), base, zeros(), zeros(), counts(), zeros())


@dataclass
class _Simulator:
    plan: RunPlan
    random: Generator
    runs: int
    calendar: Calendar = field(init=False)
    state: _State = field(init=False)
    spares: Spares | None = field(init=False)
    finished: int = 0
    trained: Array = field(init=False)
    """Seconds of training, repeated work included."""

    def __post_init__(self) -> None:
        plan = self.plan
        self.calendar = Calendar.of(plan.tiers, plan.step_s)
        self.state = _State.of(self.runs, len(plan.tiers))
        self.trained = np.zeros(self.runs)
        wanted = plan.spares is not None
        self.spares = Spares.of(self.runs, plan.spares or 0, plan.repair_s) if wanted else None
        self.durable = [SURVIVES[tier.kind] for tier in plan.tiers]
        self.loads = np.array([tier.load_s for tier in plan.tiers])

    def run(self) -> RunSimulation:
        """One failure of every run that is still going at a time."""
        plan, state = self.plan, self.state
        end_s, last_s = self._end()
        going = np.arange(self.runs, dtype=np.int64)
        limit = HOPELESS_FACTOR * plan.ideal_s
        before = state.at.copy()
        for number in range(MOST_FAILURES):
            if not len(going):
                break
            if number and number % PATIENCE_FAILURES == 0:
                going = going[state.at[going] > before[going]]
                before = state.at.copy()
            until = plan.failures.next_s(self.random, state.now[going])
            need = end_s + last_s - self.calendar.at(state.at[going])
            through = until >= state.recovery[going] + need
            self._finish(going[through], need[through])
            going, until = going[~through], until[~through]
            self._fail(going, until, end_s)
            going = going[state.now[going] < limit]
        return self._result(end_s + last_s)

    def _end(self) -> tuple[float, float]:
        """Seconds of training to the last step, and of the save after it until it is durable."""
        whole, left = divmod(self.plan.steps, self.calendar.steps)
        final = max(self.plan.tiers, key=lambda tier: len(SURVIVES[tier.kind]))
        training = float(self.calendar.at(np.asarray(whole))) + left * self.plan.step_s
        if left or whole * self.calendar.steps % final.every_steps:
            return training, final.mean_write_s
        return training, final.mean_write_s - final.mean_stall_s

    def _finish(self, rows: Ints, need: Array) -> None:
        state = self.state
        self.finished += len(rows)
        state.restart[rows] += state.recovery[rows]
        state.now[rows] += state.recovery[rows] + need
        self.trained[rows] += need

    def _fail(self, rows: Ints, until: Array, end_s: float) -> None:
        """A failure ``until`` seconds after the last one: perhaps while recovering from it."""
        state, plan = self.state, self.plan
        worked = np.maximum(until - state.recovery[rows], 0.0)
        state.restart[rows] += np.minimum(until, state.recovery[rows])
        state.now[rows] += until
        state.failures[rows] += 1
        self.trained[rows] += worked
        elapsed = np.minimum(self.calendar.at(state.at[rows]) + worked, end_s)
        kinds = plan.failures.kinds(self.random, len(rows))
        self._fall_back(rows, elapsed, kinds)
        wait = np.zeros(len(rows))
        if self.spares is not None:
            lost = plan.failures.nodes_lost(kinds)
            wait = self.spares.wait_s(rows, state.now[rows], lost)
        state.waiting[rows] += wait
        state.now[rows] += wait
        state.recovery[rows] = plan.detect_s + plan.restart_s + self.loading

    def _fall_back(self, rows: Ints, elapsed: Array, kinds: Ints) -> None:
        """Every run to its newest copy that outlives the failure, the quickest of equals."""
        state = self.state
        found = np.empty((len(rows), len(self.plan.tiers)), dtype=np.int64)
        for number, tier in enumerate(self.plan.tiers):
            saved = self._saved(number, tier, elapsed, len(rows))
            newest = np.where(saved > state.at[rows], saved, -1)
            held = np.maximum(newest, state.base[rows, number])
            lives = np.isin(kinds, [KINDS.index(kind) for kind in self.durable[number]])
            found[:, number] = np.where(lives, held, -1)
        state.base[rows] = found
        best = found.max(axis=1)
        slow = np.where(found == best[:, None], self.loads[None, :], np.inf).min(axis=1)
        # with no copy at all the run starts over, and loads nothing
        self.loading = np.where(best < 0, 0.0, slow)
        state.at[rows] = np.maximum(best, 0)

    def _saved(self, number: int, tier: Tier, elapsed: Array, runs: int) -> Ints:
        """The newest position whose write on a tier has ended, and has not failed."""
        late = None
        if tier.late:
            is_late = self.random.random(runs) < tier.late
            late = np.where(is_late, tier.write_s * (tier.late_factor - 1), 0.0)
        saved = self.calendar.saved(number, elapsed, late)
        if tier.fails:
            back = self.random.geometric(1 - tier.fails, runs) - 1
            saved = saved - back * (tier.every_steps // self.calendar.steps)
        return saved

    def _result(self, training_s: float) -> RunSimulation:
        state, plan = self.state, self.plan
        wall = state.now
        planned = self._planned(wall)
        return RunSimulation(
            plan=plan,
            wall_s=wall + planned,
            checkpoint_s=np.full(self.runs, training_s - plan.ideal_s),
            lost_work_s=np.maximum(self.trained - training_s, 0.0),
            restart_s=state.restart,
            waiting_s=state.waiting,
            planned_s=planned,
            failures=state.failures,
            finished=self.finished,
        )

    def _planned(self, wall: Array) -> Array:
        """Announced stops, at random: a full save and a restart each."""
        plan = self.plan
        safest = max(plan.tiers, key=lambda tier: len(SURVIVES[tier.kind]))
        each = safest.write_s + plan.restart_s + safest.load_s
        if plan.stops is not None:
            return self._announced(plan.stops, wall, plan.stops.lasts_s + each)
        if not plan.planned_per_failure or not np.isfinite(plan.failures.mtbf_s):
            return np.zeros(self.runs)
        stops = self.random.poisson(plan.planned_per_failure * wall / plan.failures.mtbf_s)
        return np.asarray(stops * (each + plan.detect_s), dtype=np.float64)

    def _announced(self, stops: PlannedStops, wall: Array, each_s: float) -> Array:
        """Whole stops: as many as were said, or those on the calendar of a run that begins on any
        day between two of them."""
        if stops.every_s is None:
            return np.full(self.runs, stops.count * each_s)
        work_s = max(stops.every_s - each_s, LEAST_WORK_SHARE * stops.every_s)
        begun = self.random.random(self.runs)
        return np.asarray(np.floor(wall / work_s + begun) * each_s, dtype=np.float64)


def simulate_runs(plan: RunPlan, runs: int, seed: int = 0) -> RunSimulation:
    """``runs`` runs of ``plan``; the same seed, the same runs.

    A copy of the model is durable on a tier once its write has ended. A failure takes training back
    to the newest copy that outlives it, after detection, restart and loading, in which it can fail
    again. What was lost of other tiers is gone until they are saved to again.
    """
    return _Simulator(plan, np.random.default_rng(seed), runs).run()
