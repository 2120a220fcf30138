"""One call of CP-SAT, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.errors import InternalError
from layoutopt.optimizer.question import Budget
from layoutopt.optimizer.variables import Degrees

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, CpSolverStatus


@dataclass(frozen=True)
class Solved:
    """``chosen`` is None without a solution; ``bound`` is the objective's, in its own unit."""

    proved: bool
    chosen: dict[str, int] | None
    value: int | None
    bound: int | None
    """None where nothing is known, or where it is proved that there is no solution."""

    @property
    def none(self) -> bool:
        """Proved that there is no solution."""
        return self.proved and self.chosen is None


def solve(model: CpModel, degrees: Degrees, budget: Budget, seconds: float) -> Solved:
    """Minimises the model's objective within ``seconds``."""
    from layoutopt.optimizer.cp_sat import cp_model

    solver, status = run(model, budget, seconds)
    if status == cp_model.INFEASIBLE:
        return Solved(True, None, None, None)
    bound = _rounded_up(solver.best_objective_bound)
    if status == cp_model.UNKNOWN:
        return Solved(False, None, None, bound)
    value = round(solver.objective_value)
    return Solved(status == cp_model.OPTIMAL, degrees.read(solver), value, bound)


def run(
    model: CpModel, budget: Budget, seconds: float, *, in_order: bool = True
) -> tuple[CpSolver, CpSolverStatus]:
    """The solver after ``seconds`` at most, and its status. ``in_order``: it chooses by the model's
    own order alone.

    Raises InternalError where CP-SAT calls the model invalid: never an answer.
    """
    from layoutopt.optimizer.cp_sat import cp_model

    message = model.validate()
    if message:
        raise InternalError(f"the solver's model is invalid: {message[:300]}")
    solver = _solver(budget, seconds)
    if not in_order:
        solver.parameters.search_branching = cp_model.AUTOMATIC_SEARCH
    status = solver.solve(model)
    if status == cp_model.MODEL_INVALID:
        raise InternalError("the solver calls its model invalid")
    return solver, status


def _rounded_up(bound: float) -> int:
    """The bound on whole numbers that ``bound`` implies; a float holds them exactly to 2^53."""
    return -int(-bound // 1)


def _solver(budget: Budget, seconds: float) -> CpSolver:
    from layoutopt.optimizer.cp_sat import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = budget.workers
    parameters.random_seed = budget.seed
    parameters.max_time_in_seconds = max(seconds, 0.01)
    parameters.max_deterministic_time = budget.effort
    # The model is written as it is to be searched: presolve saves no time on it, and its variable
    # substitution (OR-tools 9.15) proved wrong optima of models like these with some seeds.
    parameters.cp_model_presolve = False
    parameters.cp_model_probing_level = 0
    parameters.symmetry_level = 0
    # Choose by the model's own order of literals (Degrees.decide); the relaxation prunes.
    parameters.search_branching = cp_model.PARTIAL_FIXED_SEARCH
    parameters.linearization_level = 1
    parameters.cut_level = 0
    return solver
