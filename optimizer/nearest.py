"""What to ask instead, where arithmetic or a framework's rule excludes every layout."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from layoutopt.errors import InputError, RuleError
from layoutopt.optimizer.domains import arithmetic_values, keys_of, word_of
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.space import space_of

SECONDS = 0.4
"""How long to look for other counts: an input error is answered within a second."""
MOST_STEPS = 5_000
_WANTED = 2
"""Counts to name on each side."""


def nearest_legal(question: Question) -> InputError:
    """The error to raise for a question without any legal layout.

    Its message says which axis has no value left, if one has none, and names the nearest GPU
    counts and batches with which some layout is legal.
    """
    until = time.monotonic() + SECONDS
    empty = _axis_without_values(question)
    if empty is not None:
        return empty
    batches = _nearest(question, "batch", until - SECONDS / 2)
    gpus = _nearest(question, "gpus", until)
    job = question.job
    message = (
        f"no layout divides {job.gpus:,} GPUs and a global batch of "
        f"{job.training.global_batch:,} sequences{_held_to(question)}"
    )
    if batches:
        message += f"; batches that work with these GPUs: {_listed(batches)}"
    if gpus:
        message += f"; GPU counts that work with this batch: {_listed(gpus)}"
    nearest = (*(f"global_batch={n}" for n in batches), *(f"gpus={n}" for n in gpus))
    return RuleError(message, field="gpus", value=job.gpus, nearest=nearest)


def _axis_without_values(question: Question) -> RuleError | None:
    """An axis whose ``fix`` or limits exclude all its values, with the nearest that are legal."""
    left = space_of(question).values
    free = space_of(replace(question, fix={}, limits=())).values
    for axis, values in left.items():
        if values:
            continue
        legal = free[axis] or arithmetic_values(question)[axis]
        return _no_value(question, axis, legal)
    return None


def _no_value(question: Question, axis: str, legal: tuple[int, ...]) -> RuleError:
    """What was asked of the axis's keys, and values of the first of them that would do."""
    keys = keys_of(axis, legal[0])
    held = {*question.fix, *(limit.axis for limit in question.limits)}
    key = next((key for key in keys if key in held), axis)
    asked = [f"{one}={question.fix[one]}" for one in keys if one in question.fix]
    asked += [
        f"{limit.axis}{limit.op}{limit.bound}" for limit in question.limits if limit.axis in keys
    ]
    codes = tuple(sorted({keys_of(axis, value).get(key, value) for value in legal}))
    shown = _around([word_of(key, code) for code in codes], codes, question.fix.get(key))
    message = f"{' with '.join(asked) or key} leaves no legal value of {key}; legal: "
    return RuleError(
        message + ", ".join(shown),
        field=f"fix.{key}" if key in question.fix else "limit",
        value=", ".join(asked),
        nearest=[f"{key}={word}" for word in shown],
    )


def _around(words: list[str], values: tuple[int, ...], wanted: object) -> list[str]:
    """The few values nearest to the one that was asked for."""
    if not isinstance(wanted, int):
        return words[:6]
    nearest = sorted(range(len(values)), key=lambda i: (abs(values[i] - wanted), values[i]))[:6]
    return [words[place] for place in sorted(nearest)]


def _nearest(question: Question, what: str, until: float) -> list[int]:
    """The nearest counts below and above that leave a legal layout."""
    job = question.job
    now = job.gpus if what == "gpus" else job.training.global_batch
    below: list[int] = []
    above: list[int] = []
    for count in _outwards(now):
        if time.monotonic() > until or len(below) + len(above) >= 2 * _WANTED:
            break
        side = below if count < now else above
        if len(side) < _WANTED and space_of(_with(question, what, count)).candidates:
            side.append(count)
    return sorted(below + above)


def _outwards(now: int) -> Iterator[int]:
    """Counts by their distance from ``now``."""
    for step in range(1, MOST_STEPS):
        if now > step:
            yield now - step
        yield now + step


def _with(question: Question, what: str, count: int) -> Question:
    job = question.job
    if what == "gpus":
        return replace(question, job=replace(job, gpus=count))
    training = job.training.model_copy(update={"global_batch": count})
    return replace(question, job=replace(job, training=training))


def _held_to(question: Question) -> str:
    asked = [f"{axis}={value}" for axis, value in question.fix.items()]
    asked += [f"{limit.axis}{limit.op}{limit.bound}" for limit in question.limits]
    return f" with {', '.join(asked)}" if asked else ""


def _listed(counts: list[int]) -> str:
    return ", ".join(f"{count:,}" for count in counts)
