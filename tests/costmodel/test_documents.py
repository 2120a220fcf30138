"""What attention sees in packed sequences, by sums over every token; and what padding wastes."""

from __future__ import annotations

import math

import pytest

from layoutopt.costmodel.compute import attention_core
from layoutopt.costmodel.counts import mean_context_tokens
from layoutopt.costmodel.documents import Documents
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.training import Training
from tests.costmodel.cases import SMALL, job, one, soft

SEQ = 8192


def test_a_document_as_long_as_the_sequence_is_no_document() -> None:
    whole = mean_context_tokens(SMALL, SEQ)
    for length in (SEQ, 2 * SEQ):
        assert mean_context_tokens(SMALL, SEQ, Documents(mean_tokens=length)) == whole
    endless = Documents(mean_tokens=10**9, lengths="exponential")
    assert mean_context_tokens(SMALL, SEQ, endless) == pytest.approx(whole, rel=1e-4)


def test_fixed_lengths_cost_the_sum_of_squares() -> None:
    """Four documents of 2,048: a quarter. Two of 3,000 and one of 2,192."""
    assert mean_context_tokens(SMALL, SEQ, Documents(mean_tokens=2048)) == SEQ / 2 / 4
    squares = 2 * 3000**2 + 2192**2
    assert mean_context_tokens(SMALL, SEQ, Documents(mean_tokens=3000)) == squares / 2 / SEQ


@pytest.mark.parametrize("mean", [100, 1500, 20_000])
@pytest.mark.parametrize("window", [None, 512])
def test_exponential_lengths_by_a_sum_over_tokens(mean: int, window: int | None) -> None:
    """Of the tokens of documents with lengths above i, exp(-i / mean) of all are the i-th."""
    model = SMALL.model_copy(update={"sliding_window": window})
    documents = Documents(mean_tokens=mean, lengths="exponential")
    places = [i + 0.5 for i in range(SEQ)]
    weights = [math.exp(-i / mean) for i in places]
    reach = window or SEQ
    seen = sum(w * min(i, reach) for w, i in zip(weights, places, strict=True)) / sum(weights)
    assert mean_context_tokens(model, SEQ, documents) == pytest.approx(seen, rel=1e-4)


def test_short_documents_have_twice_the_context_of_equal_ones() -> None:
    """The second moment of an exponential distribution is twice the square of its mean."""
    equal, unequal = (
        mean_context_tokens(SMALL, SEQ, Documents(mean_tokens=64, lengths=lengths))
        for lengths in ("fixed", "exponential")
    )
    assert unequal == pytest.approx(2 * equal)


def test_a_chunk_ends_with_the_document() -> None:
    model = SMALL.model_copy(update={"sliding_window": 4096, "local_kind": "chunk"})
    assert mean_context_tokens(model, SEQ, Documents(mean_tokens=1024)) == 512


def test_flash_kernels_skip_what_other_documents_hold() -> None:
    flash, other = soft(), soft(attention_kernel="fused_softmax")
    documents = Documents(mean_tokens=32)
    for software, share in ((flash, 1 / 4), (other, 1.0)):
        plain, packed = job(software=software), job(software=software, documents=documents)
        args = (one(1).astype(float), one(1), one(1))
        whole = attention_core(plain, machine(plain), *args)
        some = attention_core(packed, machine(packed), *args)
        assert some.forward[0] == pytest.approx(share * whole.forward[0])
        assert some.backward[0] == pytest.approx(share * whole.backward[0])


def test_padding_is_computed_and_no_token() -> None:
    """Documents of 1,024 tokens in sequences of 8,192: an eighth, and eight times the steps."""
    padded = Documents(mean_tokens=1024, packed=False)
    assert mean_context_tokens(SMALL, SEQ, padded) == SEQ / 2
    asked = Training(seq_len=SEQ, global_batch=4, tokens=SEQ * 4 * 10, documents=padded)
    assert asked.filled_share == 1 / 8
    assert asked.steps == 80
    packed = asked.model_copy(update={"documents": Documents(mean_tokens=1024)})
    assert (packed.filled_share, packed.steps) == (1, 10)


def test_padding_behind_exponential_lengths() -> None:
    """The mean of min(length, s) is d (1 - exp(-s / d))."""
    padded = Documents(mean_tokens=SEQ, lengths="exponential", packed=False)
    assert padded.filled_share(SEQ) == pytest.approx(1 - math.exp(-1))
