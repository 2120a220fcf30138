"""A range of global batches, with and without a range of GPU counts, against trying everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from layoutopt.errors import RuleError
from layoutopt.optimizer.choose import search_counts
from layoutopt.optimizer.counts import batched, run_value
from layoutopt.optimizer.exhaustive import try_every_batch
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.question import Question
from tests.builders import questions, small_cluster, small_model, small_question
from tests.conftest import FULL

EXAMPLES = 200 if FULL else 8
RESOLUTION = 1e-6


@st.composite
def ranges(draw: st.DrawFn) -> Question:
    """A few batches on one count or two, with a critical batch between none and all of them."""
    question = draw(questions())
    least = draw(st.integers(1, 4))
    batches = (least, least + draw(st.integers(0, 2)))
    critical = draw(st.sampled_from((0.3, 2.0, 1e6))) * question.job.training.seq_len
    counts = draw(st.sampled_from((None, (2, 4))))
    objective = draw(st.sampled_from(("time", "cost", "gpus" if counts else "time")))
    gpus = counts[1] if counts else min(question.job.gpus, 4)
    return replace(
        question,
        job=replace(question.job, gpus=gpus),
        batches=batches,
        critical_tokens=critical,
        counts=counts,
        objective=objective,  # type: ignore[arg-type]
    )


@settings(
    derandomize=not FULL,
    database=None,
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(ranges())
def test_search_equals_trying_every_batch(question: Question) -> None:
    slow = try_every_batch(question, batched(question))
    if not slow.search.candidates:
        with pytest.raises(RuleError):
            search_counts(question)
        return
    fast = search_counts(question)
    assert fast.status == slow.status
    assert fast.search.candidates == slow.search.candidates
    if fast.plan is None or fast.job is None:
        assert fast.misses
        return
    value = run_value(question, fast.plan.run, fast.plan.layout.gpus)
    best = min(run_value(question, plan.run, plan.layout.gpus) for plan in slow.pareto)
    assert value <= best * (1 + RESOLUTION)
    assert fast.search.bound is not None
    assert best * (1 - 3 * RESOLUTION) <= fast.search.bound <= best * (1 + 1e-12)
    layout = fast.plan.layout
    assert layout.dp * layout.micro_batch * layout.microbatches == fast.job.training.global_batch
    assert fast.plan.run.tokens == fast.job.training.tokens


def example(critical: float) -> Question:
    question = small_question(small_model(layers=2), cluster=small_cluster(8.0, per_node=2))
    return replace(question, batches=(8, 64), critical_tokens=critical)


def test_a_dear_batch_is_small_and_a_free_one_is_large() -> None:
    dear, free = (search_counts(example(critical)) for critical in (4096.0, 1e12))
    assert dear.job is not None
    assert free.job is not None
    assert dear.job.training.global_batch < free.job.training.global_batch
    assert dear.status == free.status == Status.OPTIMAL


def test_batches_that_are_tried() -> None:
    assert batched(example(1.0)) == (
        *(8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32),
        *(36, 40, 44, 48, 52, 56, 60, 64),
    )


def test_a_range_without_a_batch_to_try_names_the_nearest() -> None:
    question = replace(example(1e6), batches=(33, 35))
    with pytest.raises(RuleError, match="nearest: 32, 36"):
        search_counts(question)
