"""Models by name and by size."""

from __future__ import annotations

import time

import pytest

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.models.catalog import (
    _spellings,
    load_model,
    match_name,
    model_names,
    simplify,
    size_table,
    stated_params,
)
from layoutopt.costmodel.models.checks import check_model
from layoutopt.costmodel.models.sizes import find_model, model_of_size, parse_size
from layoutopt.errors import InputError

ROUNDED = {"megatron-1.7b": 0.03, "megascale-moe-352b": 0.035}
"""Sources that round to two figures, or whose shape gives less than they state."""


@pytest.mark.parametrize("name", model_names())
def test_every_entry_is_possible_sourced_and_as_large_as_stated(name: str) -> None:
    model = check_model(load_model(name), name)
    assert model.source
    assert len(model.source) > 20
    stated = stated_params(name)
    if stated is not None:
        assert count(model).total == pytest.approx(stated, rel=ROUNDED.get(name, 0.016))


def test_no_two_entries_are_spelt_alike() -> None:
    spellings = [simplify(name) for name in model_names()]
    assert len(set(spellings)) == len(spellings)
    assert all(_spellings()[simplify(name)] == name for name in model_names())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama-3.1-405b", "llama-3.1-405b"),
        ("llama3.1-405b", "llama-3.1-405b"),
        ("Llama-3.1-405B", "llama-3.1-405b"),
        ("meta-llama/Meta-Llama-3.1-405B", "llama-3.1-405b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct", "llama-3.1-405b"),
        ("llama3-70b", "llama-3.1-70b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("NVIDIA/Nemotron4 340B", "nemotron-4-340b"),
        ("GPT 1T", "megatron-1t"),
        ("MT-NLG 530B", "mt-nlg-530b"),
        ("grok1-314b", "grok-1"),
    ],
)
def test_names_are_matched_as_people_write_them(text: str, name: str) -> None:
    model, note = find_model(text)
    assert model.name == name
    assert (note is None) == (text == name)
    assert note is None or name in note


@pytest.mark.parametrize("text", ["hf", "meta", "instruct", "///", "", " ", "llama-3.1-406b"])
def test_what_spells_no_model_matches_none(text: str) -> None:
    assert match_name(text) is None


@pytest.mark.parametrize(("size", "name"), list(size_table().items()))
def test_the_table_decides_before_nearness(size: str, name: str) -> None:
    model, note = find_model(size)
    assert model.name == name
    assert note is not None
    assert size in note
    assert f"{count(model).total:,}" in note


def test_the_table_is_the_contract() -> None:
    assert size_table() == {
        "8B": "llama-3.1-8b", "70B": "llama-3.1-70b", "405B": "llama-3.1-405b",
        "175B": "gpt3-175b", "1T": "megatron-1t",
    }  # fmt: skip


@pytest.mark.parametrize(("size", "name"), [("530B", "mt-nlg-530b"), ("13B", "llama-2-13b")])
def test_a_size_near_a_published_dense_model_is_that_model(size: str, name: str) -> None:
    model, note = find_model(size)
    assert model.name == name
    assert note is not None
    assert "nearest dense model" in note


def test_experts_never_stand_for_a_size() -> None:
    """671B and 1.026T are DeepSeek-V3's and Kimi-K2's; a bare size asks for a dense model."""
    for size in ("671B", "1.026T", "141B", "47B"):
        assert find_model(size)[0].moe is None


def test_ten_billion_is_built_by_rule_and_says_so() -> None:
    model, note = find_model("10B")
    assert count(model).total == pytest.approx(10e9, rel=0.01)
    assert (model.layers, model.hidden, model.kv_heads) == (40, 4096, 8)
    assert note is not None
    assert "by rule" in note
    assert "40 layers" in note


@pytest.mark.parametrize("tenth", range(0, 81))
def test_the_rule_meets_every_size(tenth: int) -> None:
    """1M to 100T in tenths of a decade: size, divisors, proportions."""
    params = round(10 ** (6 + tenth / 10))
    model = check_model(model_of_size(params), "rule")
    assert count(model).total == pytest.approx(params, rel=0.005)
    assert model.hidden == model.heads * model.head_dim
    assert model.heads % model.kv_heads == 0
    assert 2.4 <= model.ffn / model.hidden <= 5.1
    if params >= 4 * 10**9:
        assert model.kv_heads == 8
        assert model.layers % 4 == 0
        assert 64 <= model.hidden / model.layers <= 200


def test_the_rule_does_not_jump() -> None:
    """3% more parameters never change a large model's hidden size by more than a third."""
    for params in (10**10, 10**11, 10**12):
        near = model_of_size(round(params * 1.03)).hidden / model_of_size(params).hidden
        assert 0.74 <= near <= 1.35


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("405B", 405 * 10**9), ("1T", 10**12), ("1.5T", 15 * 10**11), ("70b", 7 * 10**10),
        ("7000000000", 7 * 10**9), ("0.5B", 5 * 10**8), ("-1T", -(10**12)), ("+8B", 8 * 10**9),
        ("1e12", None), ("１T", None), ("1.5.2B", None), ("B", None), ("1.23456789", None),
        ("", None), ("8Gi", None),
    ],
)  # fmt: skip
def test_sizes_are_exact_or_no_size(text: str, params: int | None) -> None:
    assert parse_size(text) == params


@pytest.mark.parametrize(
    ("text", "nearest"), [("0", "1M"), ("-1T", "1M"), ("999k", "1M"), ("101T", "100T")]
)
def test_absurd_sizes_are_refused_with_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(InputError, match="1M to 100T") as caught:
        find_model(text)
    assert caught.value.field == "model"
    assert caught.value.nearest == (nearest,)


@pytest.mark.parametrize("text", ["lama-3.1-70b", "deepsek-v3", "nan", "x" * 5000, "", "1e12"])
def test_unknown_names_are_refused_in_one_short_sentence(text: str) -> None:
    with pytest.raises(InputError, match="unknown model") as caught:
        find_model(text)
    assert caught.value.field == "model"
    assert caught.value.nearest
    assert len(caught.value.message) < 300


def test_a_misspelt_name_gets_the_right_one() -> None:
    with pytest.raises(InputError) as caught:
        find_model("lama-3.1-70b")
    assert caught.value.nearest[0] == "llama-3.1-70b"


def test_finding_is_quick() -> None:
    for text in ("1T", "llama-3.1-405b", "10B", "13B"):
        started = time.perf_counter()
        find_model(text)
        assert time.perf_counter() - started < 0.1
