"""The price of a large batch, by hand."""

from __future__ import annotations

import pytest

from layoutopt.costmodel.critical import at_batch, critical_batch, final_loss
from layoutopt.costmodel.models import find_model
from layoutopt.costmodel.training import Training


def test_at_the_critical_batch_twice_the_tokens_are_needed() -> None:
    """McCandlish 2018: E = 2 E_min at batch = B."""
    run = Training(seq_len=1000, global_batch=1, tokens=10**9)
    assert at_batch(run, 2000, 2e6).tokens == 2 * 10**9
    assert at_batch(run, 1000, 2e6).tokens == 1.5 * 10**9
    assert at_batch(run, 1000, 2e6).global_batch == 1000


def test_an_endless_critical_batch_costs_nothing() -> None:
    run = Training(seq_len=1000, global_batch=1, tokens=10**9)
    assert at_batch(run, 4096, float("inf")).tokens == 10**9


def test_loss_of_chinchilla() -> None:
    """70B on 1.4T tokens: 1.69 + 406.4 / 4,854 + 410.7 / 2,519 = 1.937."""
    assert final_loss(70 * 10**9, 1400 * 10**9) == pytest.approx(1.937, abs=0.002)


def test_the_default_of_a_70b_model() -> None:
    """2.1e8 / 1.937^4.762 = 9.0M tokens."""
    model = find_model("llama-3.1-70b")[0]
    assert critical_batch(model, 1400 * 10**9) == pytest.approx(9.0e6, rel=0.02)
