"""Fine-tuning with adapters, and documents in sequences: the search against trying everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from layoutopt.costmodel.documents import Documents
from layoutopt.costmodel.linears import Lora, target_names
from layoutopt.errors import InputError
from layoutopt.optimizer.exhaustive import try_everything
from layoutopt.optimizer.question import Question
from layoutopt.optimizer.search import search
from tests.builders import NARROW, questions, small_cluster, small_model, small_question
from tests.conftest import FULL
from tests.optimizer.test_random_questions import compare

EXAMPLES = 200 if FULL else 8
DOCUMENTS = Documents(mean_tokens=300, lengths="exponential")


def tuned(question: Question, **changes: object) -> Question:
    training = question.job.training.model_copy(update=changes)
    return replace(question, job=replace(question.job, training=training))


def adapters(question: Question, rank: int = 8) -> Question:
    lora = Lora(rank=rank, targets=target_names(question.job.model)[::2])
    return tuned(question, finetune="lora", lora=lora)


def test_search_equals_trying_everything_with_adapters() -> None:
    """Ranks of 2 leave tensor ranks of 4 out."""
    answered: list[bool] = []

    @settings(
        derandomize=True,
        database=None,
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(questions())
    def check(question: Question) -> None:
        question = adapters(question, rank=2 if len(answered) % 2 else 8)
        if len(answered) % 3 == 0:
            question = tuned(question, documents=DOCUMENTS)
        slow = try_everything(question)
        if not slow.search.candidates:
            with pytest.raises(InputError, match=r"legal|layout"):
                search(question)
            return
        compare(question, search(question), slow)
        answered.append(slow.plan is not None)

    check()
    assert sum(answered) >= EXAMPLES / 4


def test_adapters_fit_where_all_weights_do_not() -> None:
    model = small_model(layers=8, heads=16, head_dim=128)
    question = small_question(model, gpus=2, batch=8, cluster=small_cluster(memory_gib=5.0))
    assert search(question).plan is None
    outcome = search(tuned(question, finetune="full"))
    ways = {change.option: change.value for miss in outcome.misses for change in miss.changes}
    assert ways["finetune"] == "lora"
    plan = search(adapters(question)).plan
    assert plan is not None
    assert plan.memory.fits


def test_packed_documents_make_no_optimum_slower() -> None:
    # Wide enough that attention, not the host that launches it, takes the time.
    question = small_question(small_model(heads=16, head_dim=128), seq_len=2048)
    whole = search(question).plan
    packed = search(tuned(question, documents=Documents(mean_tokens=256))).plan
    padded = search(tuned(question, documents=Documents(mean_tokens=256, packed=False))).plan
    assert whole is not None
    assert packed is not None
    assert padded is not None
    assert packed.run.wall_time_s < whole.run.wall_time_s
    # Eight times the steps of the same length.
    steps = question.job.training.steps
    assert padded.run.steps == pytest.approx(8 * steps, abs=8)
    assert padded.step.time_s == pytest.approx(whole.step.time_s)


def test_documents_as_long_as_sequences_change_nothing() -> None:
    question = small_question()
    same = tuned(question, documents=Documents(mean_tokens=1024))
    mine, its = search(same).plan, search(question).plan
    assert mine is not None
    assert its is not None
    assert (mine.layout, mine.step, mine.run) == (its.layout, its.step, its.run)


def test_one_packed_sequence_a_microbatch_is_searched_as_it_is_tried() -> None:
    question = small_question(small_model(layers=2), gpus=2, batch=4, framework="megatron-bridge")
    narrow = question.job.software.model_copy(update=NARROW)
    question = replace(question, job=replace(question.job, software=narrow))
    packed = tuned(question, finetune="full", documents=DOCUMENTS)
    slow = try_everything(packed)
    compare(packed, search(packed), slow)
    assert slow.plan is not None
    assert slow.plan.layout.micro_batch == 1
    assert slow.search.candidates < try_everything(question).search.candidates
