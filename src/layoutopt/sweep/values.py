"""The values of one axis: a list, or a rule that makes one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from layoutopt.errors import InputError
from layoutopt.inputs.numbers import MOST_TOKENS, read_count
from layoutopt.nearest import did_you_mean, nearest_names

MOST_VALUES = 100_000
"""Values of one axis; more is a slip of the hand."""

Scalar = str | int | float | bool

_RULES = ("range", "pow2", "logspace", "per_gpu")


def read_values(given: object, axis: str) -> tuple[Any, ...]:
    """The values of ``axis``: ``[64, 128]``, ``{range: [a, b, step]}``, ``{pow2: [a, b]}``,
    ``{logspace: [a, b, n], multiple: m}``, ``{per_gpu: [0.5, 1]}``, or one value.

    Each value once, in the order given. Raises InputError naming the axis.
    """
    if isinstance(given, Mapping):
        values = _by_rule(given, axis)
    elif isinstance(given, list | tuple):
        values = tuple(_scalar(value, axis) for value in given)
    else:
        values = (_scalar(given, axis),)
    if not values:
        raise _refusal(axis, given, "has no values")
    if len(values) > MOST_VALUES:
        raise _refusal(axis, given, f"has {len(values):,} values; at most {MOST_VALUES:,} are")
    return tuple(dict.fromkeys(values))


def _scalar(value: object, axis: str) -> Scalar | PerGpu:
    if isinstance(value, Mapping) and set(value) == {"per_gpu"}:
        return _per_gpu(value["per_gpu"], axis)[0]
    if not isinstance(value, str | int | float | bool):
        raise _refusal(axis, value, f"holds {str(value)[:40]!r}, which is no number or text")
    return value


class PerGpu(float):
    """Sequences per optimizer step for each GPU: a batch that grows with the cluster."""

    def batch(self, gpus: int) -> int:
        """The global batch on ``gpus`` GPUs; raises InputError where it is no whole number."""
        batch = self * gpus
        if batch < 1 or not batch.is_integer():
            least = next((n for n in range(gpus, gpus + 10_000) if (self * n).is_integer()), None)
            raise InputError(
                f"global_batch: {float(self):g} sequences per GPU on {gpus:,} GPUs are "
                f"{batch:g}, which is no whole batch",
                field="global_batch",
                value=float(self),
                nearest=(least,) if least and self * least >= 1 else (),
            )
        return int(batch)

    def __repr__(self) -> str:
        return f"{float(self):g} per GPU"


def _by_rule(given: Mapping[Any, Any], axis: str) -> tuple[Any, ...]:
    rules = [str(key) for key in given if key != "multiple"]
    if len(rules) != 1 or rules[0] not in _RULES:
        close = nearest_names(rules[0], _RULES) if rules else ()
        hint = did_you_mean(close) or f"; rules are {', '.join(_RULES)}"
        raise InputError(
            f"axis {axis}: {' and '.join(rules) or 'nothing'} is no rule for values{hint}",
            field=axis,
            value=", ".join(rules),
            nearest=close or _RULES,
        )
    rule, arguments = rules[0], given[rules[0]]
    if "multiple" in given and rule != "logspace":
        raise _refusal(axis, given, f"has a multiple, which {rule} does not take")
    if rule == "per_gpu":
        return _per_gpu(arguments, axis)
    if rule == "range":
        return _range(_counts(arguments, axis, rule, ("from", "to", "step")), axis)
    if rule == "pow2":
        low, high = _counts(arguments, axis, rule, ("from", "to"))
        return _pow2(low, high, axis)
    low, high, number = _counts(arguments, axis, rule, ("from", "to", "how many"))
    multiple = read_count(given.get("multiple", 1), axis, most=high)
    return _logspace(low, high, number, multiple, axis)


def _counts(arguments: object, axis: str, rule: str, names: tuple[str, ...]) -> list[int]:
    if not isinstance(arguments, list | tuple) or len(arguments) != len(names):
        raise _refusal(axis, arguments, f"{rule} takes [{', '.join(names)}]")
    return [read_count(value, axis, most=MOST_TOKENS) for value in arguments]


def _range(bounds: list[int], axis: str) -> tuple[int, ...]:
    low, high, step = bounds
    _rising(low, high, axis)
    if (high - low) // step >= MOST_VALUES:
        raise _refusal(axis, bounds, f"has more than {MOST_VALUES:,} values")
    return tuple(range(low, high + 1, step))


def _pow2(low: int, high: int, axis: str) -> tuple[int, ...]:
    """Powers of two between the two, both included."""
    _rising(low, high, axis)
    found = tuple(2**k for k in range(high.bit_length()) if low <= 2**k <= high)
    if not found:
        raise _refusal(axis, [low, high], f"has no power of two from {low:,} to {high:,}")
    return found


def _logspace(low: int, high: int, number: int, multiple: int, axis: str) -> tuple[int, ...]:
    """Whole numbers (multiples of ``multiple``) spread evenly on a logarithmic scale."""
    _rising(low, high, axis)
    if number > MOST_VALUES:
        raise _refusal(axis, number, f"has more than {MOST_VALUES:,} values")
    ratio = math.log(high / low) / max(1, number - 1)
    spread = [low * math.exp(ratio * k) for k in range(number)]
    rounded = (max(1, round(value / multiple)) * multiple for value in spread)
    return tuple(dict.fromkeys(value for value in rounded if low <= value <= high))


def _per_gpu(given: object, axis: str) -> tuple[PerGpu, ...]:
    if axis != "global_batch":
        raise _refusal(axis, given, "cannot be per_gpu; global_batch can")
    values = given if isinstance(given, list | tuple) else (given,)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise _refusal(axis, given, "per_gpu takes positive numbers, as in {per_gpu: 0.5}")
    return tuple(PerGpu(value) for value in values)


def _rising(low: int, high: int, axis: str) -> None:
    if low > high:
        raise _refusal(axis, [low, high], f"goes from {low:,} down to {high:,}")


def _refusal(axis: str, value: object, why: str) -> InputError:
    return InputError(f"axis {axis} {why}", field=axis, value=str(value)[:200])
