"""When nothing fits, or the best run misses a limit: by how much, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.memory_fit import memory_fit
from layoutopt.costmodel.results import Estimate, Run
from layoutopt.optimizer import ways
from layoutopt.optimizer.asked import asks_usual, is_wider
from layoutopt.optimizer.lean import leanest
from layoutopt.optimizer.lean_pipelines import leanest_pipeline
from layoutopt.optimizer.outcome import Change, Miss
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.space import Space, layout_of
from layoutopt.units import DAY, GIB, HOUR, format_count

LIMIT_DOUBLINGS = 4
"""Times that the GPU count is doubled to meet a deadline."""
_LESS = 0.98
"""Tokens are tried in steps of this until the run keeps to its limit."""
_TRIES = 40
_OUTWARDS = 1 + 1e-9
_LEAST_RATE = 1e-12
"""Dollars a second: less is as good as free."""
_ANY_KIB = 2**50
"""More than any layout lacks."""
_TENTHS_BELOW_S = 2 * DAY
"""Deadlines up to here are suggested in hours, longer ones in days."""


def memory_misses(space: Space, *, brief: bool = False) -> tuple[Miss, ...]:
    """The layout that needs least memory beyond the device's, and, unless ``brief``, the ways
    out."""
    nearest = _nearest(space)
    if nearest is None:
        return ()
    worst = nearest.memory.worst
    return (
        Miss(
            limit="memory",
            stage=worst.stage,
            over_bytes=max(
                worst.reserved - nearest.memory.usable_bytes,
                nearest.memory.host_bytes - nearest.memory.host_usable_bytes,
            ),
            over_s=None,
            over_usd=None,
            layout=nearest.layout,
            changes=() if brief else tuple(_out_of_memory(space.question, nearest)),
        ),
    )


def _nearest(space: Space) -> Estimate | None:
    """What lacks least: an even layout, or a pipeline that lacks less."""
    question, seen = space.question, None
    if asks_usual(question.pipeline):
        seen = leanest(space)
    if is_wider(question):
        known = seen.over_kib if seen else _ANY_KIB
        pipeline = leanest_pipeline(space, known)
        if pipeline is not None:
            return pipeline
    return estimate(space.job, layout_of(question, seen.chosen)) if seen else None


def limit_misses(question: Question, best: Estimate, *, brief: bool = False) -> tuple[Miss, ...]:
    """The best run there is misses deadline, budget or power: by how much, and, unless ``brief``,
    what would help."""
    found, run = [], best.run
    if question.deadline_s is not None and run.wall_time_s > question.deadline_s:
        over = run.wall_time_s - question.deadline_s
        changes = () if brief else tuple(_out_of_time(question, best))
        found.append(Miss("deadline", None, None, over, None, best.layout, changes))
    cost = run.cost_usd
    if question.budget_usd is not None and (cost is None or cost > question.budget_usd):
        dollars = None if cost is None else cost - question.budget_usd
        changes = () if brief else tuple(_out_of_money(question, best))
        found.append(Miss("budget", None, None, None, dollars, best.layout, changes))
    if not meets_power(question):
        watts = (question.job.cluster.watts_per_gpu or 0.0) * question.job.gpus
        changes = () if brief else tuple(_out_of_power(question, best))
        over_w = watts - (question.max_power_w or 0.0)
        found.append(Miss("power", None, None, None, None, best.layout, changes, over_w))
    return tuple(found)


def meets_limits(question: Question, run: Run) -> bool:
    """Deadline, budget and power hold. The first two rise with the wall time, so the best run
    decides; power is the GPU count's alone."""
    if not meets_power(question):
        return False
    if question.deadline_s is not None and run.wall_time_s > question.deadline_s:
        return False
    cost = run.cost_usd
    return question.budget_usd is None or (cost is not None and cost <= question.budget_usd)


def meets_power(question: Question) -> bool:
    """The job's GPUs draw no more than the limit."""
    watts = question.job.cluster.watts_per_gpu
    if question.max_power_w is None or watts is None:
        return True
    return question.job.gpus * watts <= question.max_power_w


def _in_limits(question: Question) -> Estimate | None:
    """The best layout of a question, if its run keeps to deadline, budget and power."""
    if not meets_power(question):
        return None
    most, price = question.deadline_s or math.inf, question.job.cluster.usd_per_gpu_hour
    if question.budget_usd is not None:
        if price is None:
            return None
        dollars_per_s = max(price * question.job.gpus / HOUR, _LEAST_RATE)
        # Rounded outwards: whether the run keeps to the budget is asked of the run itself.
        most = min(most, question.budget_usd / dollars_per_s * _OUTWARDS)
    best = ways.fastest(question, most)
    return best if best is not None and meets_limits(question, best.run) else None


def _out_of_power(question: Question, best: Estimate) -> Iterator[Change]:
    """A limit as high as the GPUs draw, or as many GPUs as the limit feeds."""
    watts = question.job.cluster.watts_per_gpu or 0.0
    yield Change("max_power", f"{math.ceil(watts * question.job.gpus)}W", best.step.time_s)
    yield from ways.fewer_gpus(replace(question, deadline_s=None, budget_usd=None), _in_limits)


def _out_of_memory(question: Question, nearest: Estimate) -> Iterator[Change]:
    """What costs nothing first: other settings, another framework, then other machines."""
    if not asks_usual(question.pipeline):
        # The rest is about the schedules that are asked for.
        any_schedule = replace(question.pipeline, schedules=None)
        usual = ways.fastest(replace(question, pipeline=any_schedule))
        if usual is not None:
            yield Change("schedule", usual.layout.schedule, usual.step.time_s)
            return
    yield from ways.freed(question, ways.fastest)
    yield from ways.sharding_framework(question)
    yield from ways.adapters(question)
    yield from ways.shorter_sequence(question)
    needed = nearest.memory.worst.reserved + memory_fit(question.job).context_bytes
    larger = list(ways.larger_gpu(question, needed))
    yield from larger
    if not larger:
        yield from ways.more_memory(question, math.ceil(needed / GIB))
    ratio = nearest.memory.worst.reserved / max(nearest.memory.usable_bytes, 1)
    # State divides by the GPUs, but half of what a stage holds may be what was there to spare.
    yield from ways.more_gpus(question, ratio / 2, ways.fastest)


def _out_of_time(question: Question, best: Estimate) -> Iterator[Change]:
    deadline, wall = question.deadline_s or 0.0, best.run.wall_time_s
    yield Change("deadline", duration_text(wall), best.step.time_s)
    yield from ways.freed(question, _in_limits)
    yield from _fewer_tokens(question, best, deadline / wall)

    # More GPUs than in proportion are needed: what they gain, the traffic takes a part of.
    yield from ways.more_gpus(question, wall / max(deadline, 1.0), _in_limits, LIMIT_DOUBLINGS)


def _out_of_money(question: Question, best: Estimate) -> Iterator[Change]:
    cost = best.run.cost_usd
    if cost is None:
        return
    yield Change("budget", str(math.ceil(cost)), best.step.time_s)
    yield from ways.freed(question, _in_limits)
    yield from _fewer_tokens(question, best, (question.budget_usd or 0.0) / cost)
    yield from ways.fewer_gpus(question, _in_limits)


def _fewer_tokens(question: Question, best: Estimate, share: float) -> Iterator[Change]:
    """As many tokens, to three digits, as the same layout trains within the limits."""
    tokens = _three_digits(question.job.training.tokens * min(share, 1.0))
    for _ in range(_TRIES):
        if tokens < question.job.training.tokens_per_step:
            return
        run = estimate(_for_tokens(question.job, tokens), best.layout).run
        if meets_limits(question, run):
            words = format_count(tokens).replace(",", "")
            yield Change("tokens", words, best.step.time_s)
            return
        tokens = _three_digits(tokens * _LESS)


def _for_tokens(job: Job, tokens: int) -> Job:
    return replace(job, training=job.training.model_copy(update={"tokens": tokens}))


def _three_digits(number: float) -> int:
    """Rounded down to three significant digits."""
    whole = int(number)
    scale = int(10 ** max(0, len(str(whole)) - 3))
    return whole // scale * scale


def duration_text(seconds: float) -> str:
    """In the words of --deadline, rounded up to a tenth: a run of that length keeps to it."""
    scale, unit = (HOUR, "h") if seconds < _TENTHS_BELOW_S else (DAY, "d")
    return f"{math.ceil(seconds / scale * 10) / 10:.1f}{unit}"
