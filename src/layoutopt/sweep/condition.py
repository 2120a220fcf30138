"""Filters such as ``gpus >= 64 and model != '8B'``: comparisons, and, or, not.

Text is parsed with Python's own parser and then read node by node; what is not on the list is
refused. Nothing is evaluated as code. The same tree holds for a point's options and, as SQL with
bound parameters, for stored rows.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from layoutopt.errors import InputError
from layoutopt.nearest import did_you_mean, nearest_names
from layoutopt.units import parse_count

MOST_TEXT = 2_000
"""Characters of a filter; no real one is near it."""

Value = str | int | float | bool | None

_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_SQL_SIGN = {"==": "IS", "!=": "IS NOT"}


@dataclass(frozen=True)
class Comparison:
    """``name sign value``, or ``name sign other name`` where ``of`` is given."""

    name: str
    sign: str
    value: Value = None
    of: str | None = None

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it is true of ``values``; an ordering with a missing value never is."""
        left = _plain(values.get(self.name))
        right = _plain(values.get(self.of)) if self.of is not None else self.value
        left, right = _comparable(left, right)
        if self.sign in ("==", "!="):
            return _HOLDS[self.sign](left, right)
        if isinstance(left, str) != isinstance(right, str) or left is None or right is None:
            return False
        return _HOLDS[self.sign](left, right)

    def sql(self) -> tuple[str, tuple[Value, ...]]:
        """The same as SQL with its bound values; names have been checked by ``parse``."""
        sign = _SQL_SIGN.get(self.sign, self.sign)
        if self.of is not None:
            return f'"{self.name}" {sign} "{self.of}"', ()
        text = f'"{self.name}" {sign} ?'
        if self.sign in ("==", "!="):
            return text, (self.value,)
        # SQLite orders any text after any number: only like is compared with like.
        kind = "=" if isinstance(self.value, str) else "<>"
        return f"({text} AND typeof(\"{self.name}\") {kind} 'text')", (self.value,)

    def names(self) -> set[str]:
        """What it is about."""
        return {self.name} | ({self.of} if self.of is not None else set())


@dataclass(frozen=True)
class Joined:
    """Conditions joined by ``and`` or ``or``."""

    word: str
    parts: tuple[Condition, ...]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether all, or any, of the parts hold."""
        found = (part.holds(values) for part in self.parts)
        return all(found) if self.word == "and" else any(found)

    def sql(self) -> tuple[str, tuple[Value, ...]]:
        """The same as SQL with its bound values."""
        texts, values = zip(*(part.sql() for part in self.parts), strict=True)
        joined = f" {self.word.upper()} ".join(texts)
        return f"({joined})", tuple(value for mine in values for value in mine)

    def names(self) -> set[str]:
        """What the parts are about."""
        return set().union(*(part.names() for part in self.parts))


@dataclass(frozen=True)
class Not:
    """The opposite of a condition."""

    part: Condition

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether the part does not hold."""
        return not self.part.holds(values)

    def sql(self) -> tuple[str, tuple[Value, ...]]:
        """The same as SQL: what is unknown (a missing value) counts as not holding."""
        text, values = self.part.sql()
        return f"(NOT coalesce({text}, 0))", values

    def names(self) -> set[str]:
        """What the part is about."""
        return self.part.names()


Condition = Comparison | Joined | Not


def parse(text: object, known: Iterable[str], field: str = "filter") -> Condition:
    """The condition that ``text`` states about names of ``known``; raises InputError."""
    if not isinstance(text, str) or not text.strip() or len(text) > MOST_TEXT:
        raise _refusal(field, text, "write comparisons, as in \"gpus >= 64 and model != '8B'\"")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or "it cannot be read"
        raise _refusal(field, text, str(reason)) from None
    return _Reader(text, tuple(known), field).read(tree.body)


@dataclass(frozen=True)
class _Reader:
    """Walks the tree of one filter."""

    text: str
    known: tuple[str, ...]
    field: str

    def read(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp(op=op, values=parts):
                word = "and" if isinstance(op, ast.And) else "or"
                return Joined(word, tuple(self.read(part) for part in parts))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return Not(self.read(part))
            case ast.Compare():
                return self._comparison(node)
        raise self._no(node, "is no comparison; and, or, not and comparisons are allowed")

    def _comparison(self, node: ast.Compare) -> Condition:
        """One comparison; ``64 <= gpus < 512`` is two, ``model in ('8B', '70B')`` any of two."""
        sides = [node.left, *node.comparators]
        found = [
            self._pair(left, op, right)
            for left, op, right in zip(sides, node.ops, sides[1:], strict=False)
        ]
        return found[0] if len(found) == 1 else Joined("and", tuple(found))

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Condition:
        if isinstance(op, ast.In | ast.NotIn):
            return self._membership(left, op, right)
        sign = _SIGNS.get(type(op))
        if sign is None:
            raise self._no(right, "is compared by a sign that is not <, <=, >, >=, ==, != or in")
        if not self._is_name(left):
            if not self._is_name(right):
                raise self._no(left, "is compared with a value: one side has to be a name")
            left, right, sign = right, left, _MIRRORED[sign]
        if self._is_name(right):
            return Comparison(self._name(left), sign, of=self._name(right))
        return Comparison(self._name(left), sign, self._value(right))

    def _membership(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Condition:
        if not isinstance(right, ast.Tuple | ast.List) or not right.elts:
            raise self._no(right, "is no list of values, as in model in ('8B', '70B')")
        name = self._name(left)
        some = Joined("or", tuple(Comparison(name, "==", self._value(one)) for one in right.elts))
        return Not(some) if isinstance(op, ast.NotIn) else some

    def _is_name(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name | ast.Attribute) and not self._suffixed(node)

    def _suffixed(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in ("true", "false", "null")

    def _name(self, node: ast.expr) -> str:
        name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        if not name:
            raise self._no(node, "is no name")
        if name not in self.known:
            close = nearest_names(name, self.known)
            hint = did_you_mean(close) or f"; names are {', '.join(self.known[:12])}"
            raise InputError(
                f"{self.field}: nothing is called {name[:60]!r}{hint}",
                field=self.field,
                value=name[:200],
                nearest=close,
            )
        return name

    def _value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Name) and self._suffixed(node):
            return {"true": True, "false": False, "null": None}[node.id]
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node, sign = node.operand, -1
        if isinstance(node, ast.Constant):
            value = node.value
            if value is None or isinstance(value, bool | str):
                return value
            if isinstance(value, int | float):
                return sign * value
        raise self._no(node, "is no name, number or text")

    def _no(self, node: ast.AST, why: str) -> InputError:
        return _refusal(self.field, self.text, f"{ast.unparse(node)[:60]!r} {why}")


def _refusal(field: str, value: object, why: str) -> InputError:
    return InputError(f"{field}: {why}", field=field, value=str(value)[:200])


def _plain(value: Any) -> Value:
    """Text with a suffix as the number that it is (``"64k"``); lists and mappings as text."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)


def _comparable(left: Value, right: Value) -> tuple[Value, Value]:
    """A number written as text beside a number counts as one: gpus may be ``"16k"``."""
    if isinstance(left, str) and isinstance(right, int | float):
        return _number(left), right
    if isinstance(right, str) and isinstance(left, int | float):
        return left, _number(right)
    return left, right


def _number(text: str) -> Value:
    try:
        return parse_count(text, allow_fraction=True)
    except ValueError:
        return text
