"""Helpers: parts of the solver's model on their own."""

from __future__ import annotations

from collections.abc import Callable

from ortools.sat.python.cp_model import FEASIBLE, OPTIMAL, CpModel, CpSolver

from layoutopt.optimizer.program import build
from layoutopt.optimizer.question import Budget, Question
from layoutopt.optimizer.solver import solve
from layoutopt.optimizer.space import Space, space_of
from layoutopt.optimizer.tables import Tables, tables_of
from layoutopt.optimizer.variables import Degrees

Rule = Callable[[Degrees, Space], object]


def possible(question: Question, rule: Rule, **chosen: int) -> bool:
    """Whether ``rule``, with no other, lets these axis values stand together."""
    space = space_of(question)
    model = CpModel()
    degrees = Degrees(model, space.values)
    rule(degrees, space)
    for axis, value in chosen.items():
        model.add(degrees[axis][value] == 1)
    solver = CpSolver()
    solver.parameters.num_workers = 1
    return solver.solve(model) in (OPTIMAL, FEASIBLE)


def bare_answer(space: Space, tables: Tables | None = None) -> dict[str, int] | None:
    """What the solver's model says by itself: no warm start, floors, cuts or second round."""
    program = build(space, tables or tables_of(space))
    return solve(program.model, program.degrees, Budget(), 30.0).chosen


def few_layouts(question: Question) -> bool:
    """Whether trying everything takes well under a second."""
    return space_of(question).candidates <= 400
