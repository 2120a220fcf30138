"""The solver's variables: one literal per value of an axis, one per row of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.costmodel.axes import Ints
from layoutopt.optimizer.domains import Values

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar, LinearExpr

BITS = 60
"""Expressions stay below 2^BITS; CP-SAT calls a model with larger ones invalid."""


@dataclass(frozen=True)
class Size:
    """How large a table is."""

    name: str
    axes: tuple[str, ...]
    rows: int


class Rows:
    """A table whose rows are literals, of which exactly one is true.

    The sum of the rows with a given value of an axis equals that value's literal, so a column of
    the table is a linear expression and needs no table constraint.
    """

    def __init__(self, degrees: Degrees, axes: tuple[str, ...], rows: Sequence[Sequence[int]]):
        self._degrees, self._model = degrees, degrees.model
        self.literals = [degrees.model.new_bool_var("") for _ in rows]
        self.axes = axes
        for place, axis in enumerate(axes):
            by_value: dict[int, list[IntVar]] = {value: [] for value in degrees[axis]}
            for row, literal in zip(rows, self.literals, strict=True):
                by_value[row[place]].append(literal)
            for value, literals in by_value.items():
                degrees.model.add(sum(literals) == degrees[axis][value])

    def at_least(self, values: Ints, name: str) -> LinearExpr | int:
        """A variable no smaller than the chosen row's entry; a constant where all are equal.

        One-sided, because cost presses it down onto the entry, and because CP-SAT takes an
        equality for an encoding of the variable and makes a literal of every value.
        """
        return self._bounded(values, name, least=True)

    def at_most(self, values: Ints, name: str) -> LinearExpr | int:
        """A variable no larger than the chosen row's entry, for what communication hides behind."""
        return self._bounded(values, name, least=False)

    def _bounded(self, values: Ints, name: str, *, least: bool) -> LinearExpr | int:
        from layoutopt.optimizer.cp_sat import cp_model

        low, high = int(values.min()), int(values.max())
        if low == high:
            return low
        bound = (self._degrees.cost if least else self._degrees.window)(low, high, name)
        entry = cp_model.LinearExpr.weighted_sum(self.literals, values.tolist())
        self._model.add(bound >= entry if least else bound <= entry)
        return bound

    def any_of(self, places: Iterable[int], name: str) -> IntVar:
        """A literal that is true where the chosen row is one of ``places``."""
        chosen = [self.literals[place] for place in places]
        if len(chosen) == 1:
            return chosen[0]
        literal = self._model.new_bool_var(name)
        self._model.add(sum(chosen) == literal)
        return literal


class Degrees:
    """One literal for each value of each axis; exactly one value of an axis is chosen."""

    def __init__(self, model: CpModel, values: Values) -> None:
        self.model, self.values = model, values
        self.sizes: list[Size] = []
        self._costs: list[IntVar] = []
        self._windows: list[IntVar] = []
        self._any: dict[tuple[str, tuple[int, ...]], IntVar] = {}
        self._literals = {
            axis: {value: model.new_bool_var(f"{axis}={value}") for value in domain}
            for axis, domain in values.items()
        }
        for literals in self._literals.values():
            model.add_exactly_one(literals.values())

    def __getitem__(self, axis: str) -> dict[int, IntVar]:
        return self._literals[axis]

    def cost(self, low: int, high: int, name: str) -> IntVar:
        """A variable that the objective presses down onto its largest lower bound."""
        self._costs.append(self.model.new_int_var(low, high, name))
        return self._costs[-1]

    def window(self, low: int, high: int, name: str) -> IntVar:
        """A variable that the objective lifts up to its least upper bound."""
        self._windows.append(self.model.new_int_var(low, high, name))
        return self._windows[-1]

    def decide(self, literals: Sequence[IntVar]) -> None:
        """Chooses ``literals`` in their order; then every cost is at its bound, so that nothing
        is left to search. Left to itself the solver halves the ranges of costs, without end."""
        from layoutopt.optimizer.cp_sat import cp_model

        add = self.model.add_decision_strategy
        add(literals, cp_model.CHOOSE_FIRST, cp_model.SELECT_MAX_VALUE)
        add(self._windows, cp_model.CHOOSE_FIRST, cp_model.SELECT_MAX_VALUE)
        add(self._costs, cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE)

    def rows(self, name: str, axes: tuple[str, ...], rows: Sequence[Sequence[int]]) -> Rows:
        """A table over ``axes`` of which one row is chosen."""
        self.sizes.append(Size(name, axes, len(rows)))
        return Rows(self, axes, rows)

    def any_value(self, axis: str, values: Sequence[int]) -> IntVar:
        """A literal that is true where ``axis`` takes one of ``values``; made once."""
        key = (axis, tuple(values))
        if key not in self._any:
            literal = self.model.new_bool_var(f"{axis} in {len(values)} values")
            self.model.add(sum(self[axis][value] for value in values) == literal)
            self._any[key] = literal
        return self._any[key]

    def forbid(self, **pair: int) -> None:
        """Not all of these values together."""
        self.model.add_bool_or([self[axis][value].negated() for axis, value in pair.items()])

    def read(self, solver: CpSolver) -> dict[str, int]:
        """The chosen value of each axis."""
        return {
            axis: next(v for v, literal in literals.items() if solver.boolean_value(literal))
            for axis, literals in self._literals.items()
        }

    def suggest(self, chosen: Mapping[str, int]) -> None:
        """Hints a starting point."""
        for axis, literals in self._literals.items():
            for value, literal in literals.items():
                self.model.add_hint(literal, value == chosen[axis])

    def exclude(self, chosen: Mapping[str, int]) -> None:
        """Any layout but this one. One with a value that no axis has is none of the model's."""
        if any(value not in self[axis] for axis, value in chosen.items()):
            return
        literals = [self[axis][value] for axis, value in chosen.items()]
        self.model.add_bool_or([literal.negated() for literal in literals])

    def place_in_order(self, axes: Sequence[str]) -> LinearExpr | int:
        """The layout's place when layouts are sorted by ``axes``, smaller values first."""
        place: LinearExpr | int = 0
        for axis in axes:
            domain = self.values[axis]
            rank = sum(rank * self[axis][value] for rank, value in enumerate(domain))
            place = len(domain) * place + rank
        return place
