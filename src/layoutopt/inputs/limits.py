"""``--fix tp=8,pp=16`` and ``--limit 'tp<=8'``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from layoutopt.costmodel.layout import CP_KINDS, RECOMPUTE, Layout
from layoutopt.costmodel.placement import PRICED
from layoutopt.errors import InputError
from layoutopt.inputs.layout_text import read_flag, refuse_key, split_pairs
from layoutopt.inputs.numbers import MOST_BATCH, read_count
from layoutopt.inputs.pipeline import PIPELINE_KEYS
from layoutopt.inputs.words import choice
from layoutopt.optimizer.question import KEYS, Limit

_WORDS: dict[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "cp_kind": CP_KINDS,
    "axis_order": PRICED,
}
_FLAGS = ("reshard", "offload_optimizer", "offload_activations", "sequence_parallel")
_LIMITED = tuple(key for key in KEYS if key not in (*_WORDS, *_FLAGS))
FIXED = (*KEYS, "axis_order")
_LIMIT = re.compile(r"\s*(\w+)\s*(<=|>=|==|!=|<|>|=)\s*(\S+)\s*\Z", re.ASCII)
Fixed = int | str | bool
"""A value that a key is fixed to."""
_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


def read_fix(value: str | Iterable[str] | Mapping[str, Any] | None) -> dict[str, Fixed]:
    """Axes that are fixed, with their values."""
    fixed: dict[str, Fixed] = {}
    for axis, word in fix_pairs(value).items():
        if axis not in (*FIXED, *PIPELINE_KEYS):
            raise refuse_key(axis, (*FIXED, *PIPELINE_KEYS), "fix")
        if axis in FIXED:
            fixed[axis] = _axis_value(axis, word)
    return fixed


def fix_pairs(value: str | Iterable[str] | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The keys of ``--fix`` and what they are to be, as given."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    text = value if isinstance(value, str) else ",".join(value)
    return split_pairs(text, "fix") if text else {}


def read_limits(value: str | Iterable[str] | None) -> tuple[Limit, ...]:
    """Limits on axes: ``tp<=8``, several with commas."""
    texts = (value,) if isinstance(value, str) else tuple(value or ())
    parts = [part for text in texts for part in text.split(",") if part.strip()]
    return tuple(_read_limit(part) for part in parts)


def refuse_contradictions(fixed: Mapping[str, Fixed], limits: tuple[Limit, ...]) -> None:
    """Raises InputError where a fixed axis breaks a limit, or two limits leave nothing."""
    for limit in limits:
        value = fixed.get(limit.axis)
        if isinstance(value, int) and not _HOLDS[limit.op](value, limit.bound):
            raise InputError(
                f"fix {limit.axis}={value} contradicts limit {limit_text(limit)}",
                field="fix",
                value=f"{limit.axis}={value}",
                nearest=(limit.bound,),
            )
    for axis in {limit.axis for limit in limits}:
        _refuse_empty_range(axis, [limit for limit in limits if limit.axis == axis])


def outside(
    layout: Layout, fixed: Mapping[str, Fixed], limits: tuple[Limit, ...]
) -> tuple[str, ...]:
    """The fixed values and limits that ``layout`` does not keep to, as they were written."""
    other = [f"fix {axis}={value}" for axis, value in fixed.items() if _said(layout, axis) != value]
    broken = (
        limit for limit in limits if not _HOLDS[limit.op](_said(layout, limit.axis), limit.bound)
    )
    return (*other, *(f"limit {limit_text(limit)}" for limit in broken))


def _said(layout: Layout, key: str) -> Any:
    """What the layout says of a key; shards over all replicas are as many as those."""
    if key == "shard_degree":
        return layout.shard_degree or layout.dp * layout.cp
    return getattr(layout, key)


def limit_text(limit: Limit) -> str:
    """``tp<=8``."""
    return f"{limit.axis}{limit.op}{limit.bound}"


def _read_limit(part: str) -> Limit:
    match = _LIMIT.match(part)
    if not match:
        raise InputError(
            f"limit {part.strip()!r} is not axis, sign and number, as in 'tp<=8'",
            field="limit",
            value=part.strip(),
        )
    axis, sign, bound = match.groups()
    if axis not in _LIMITED:
        raise refuse_key(axis, _LIMITED, "limit")
    op = cast("Any", "==" if sign == "=" else sign)
    return Limit(axis, op, read_count(bound, f"limit.{axis}", least=0, most=MOST_BATCH))


def _axis_value(axis: str, word: object) -> Fixed:
    field = f"fix.{axis}"
    if axis in _WORDS:
        return choice(str(word), field, _WORDS[axis])
    if axis in _FLAGS:
        return read_flag(word, field)
    if axis == "zero_stage":
        return read_count(word, field, least=0, most=3)
    return read_count(word, field, most=MOST_BATCH)


def _refuse_empty_range(axis: str, limits: list[Limit]) -> None:
    """Lower bounds against upper bounds, by the two limits that clash."""
    least = 0 if axis == "zero_stage" else 1
    low, low_limit = least, None
    high, high_limit = (3 if axis == "zero_stage" else MOST_BATCH), None
    for limit in limits:
        lower, upper = _range(limit, least)
        if lower > low:
            low, low_limit = lower, limit
        if upper < high:
            high, high_limit = upper, limit
    if low > high:
        names = " and ".join(limit_text(limit) for limit in (low_limit, high_limit) if limit)
        raise InputError(
            f"limit {names} leave no value of {axis} (from {low} to {high})",
            field="limit",
            value=names,
            nearest=_widened(axis, (low, low_limit), (high, high_limit)),
        )


def _widened(
    axis: str, low: tuple[int, Limit | None], high: tuple[int, Limit | None]
) -> tuple[str, ...]:
    """The limits that would let one value through, for each side that a person gave."""
    upper = (f"{axis}<={low[0]}",) if high[1] else ()
    lower = (f"{axis}>={high[0]}",) if low[1] else ()
    return upper + lower


def _range(limit: Limit, least: int) -> tuple[int, int]:
    """Smallest and largest value that ``limit`` lets through."""
    if limit.op == "==":
        return limit.bound, limit.bound
    if limit.op in (">=", ">"):
        return limit.bound + (limit.op == ">"), MOST_BATCH
    if limit.op in ("<=", "<"):
        return least, limit.bound - (limit.op == "<")
    return least, MOST_BATCH
