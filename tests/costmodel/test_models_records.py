"""Architectures of measured runs: every record that is shipped, and what gets filled in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.models.catalog import load_model
from layoutopt.costmodel.models.records import record_model

MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured"

LLAMA: dict[str, Any] = {
    "name": "some run", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336,
    "gated_mlp": True, "vocab": 128256, "tied_embeddings": False,
}  # fmt: skip


@lru_cache(maxsize=1)
def shapes() -> tuple[tuple[str, dict[str, Any]], ...]:
    """The model of every shipped record, with its file's name."""
    return tuple(_read())


def _read() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(MEASURED.rglob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            yield path.stem, json.loads(line)["model"]


def test_every_record_with_a_shape_becomes_a_model() -> None:
    """None only where layers, hidden size or heads are not stated, and it says which."""
    assert len(shapes()) > 3000
    for _, shape in shapes():
        model, words = record_model(shape)
        gaps = [key for key in ("layers", "hidden", "heads") if not shape.get(key)]
        assert (model is None) == bool(gaps), shape
        if gaps:
            assert all(any(key in word for word in words) for key in gaps)
        elif model:
            assert (model.layers, model.hidden, model.heads) == (
                shape["layers"], shape["hidden"], shape["heads"],
            )  # fmt: skip


def test_counts_are_those_the_sources_state() -> None:
    """Within 3% for at least 95% of the records that state them; 99% when this was written.

    What is left is MegaScale-MoE's 352 B, of which the published widths give 341 B.
    """
    errors = []
    for _, shape in shapes():
        model, _ = record_model(shape)
        if model and shape.get("params"):
            errors.append(abs(count(model).total_with_mtp / shape["params"] - 1))
    assert len(errors) > 1500
    assert sum(error <= 0.03 for error in errors) >= 0.95 * len(errors)
    assert max(errors) < 0.05


def test_stated_figures_are_taken_as_they_are() -> None:
    model, filled = record_model(LLAMA)
    assert model
    assert filled == []
    assert count(model).total == 8_030_261_248


@pytest.mark.parametrize("key", ["layers", "hidden", "heads"])
@pytest.mark.parametrize("value", [None, 0, -1, True, "32", float("nan")])
def test_no_shape_no_model(key: str, value: object) -> None:
    model, why = record_model({**LLAMA, key: value})
    assert model is None
    assert why == [f"{key} is not stated"]


def test_figures_that_contradict_each_other_make_no_model() -> None:
    model, why = record_model({**LLAMA, "heads": 33, "kv_heads": None})
    assert model is None
    assert "33" in why[0]


def test_the_name_alone_decides_nothing() -> None:
    """The same widths under any name are the same model."""
    named, _ = record_model({**LLAMA, "name": "gpt3-175b"})
    unnamed, _ = record_model({**LLAMA, "name": None})
    assert named
    assert unnamed
    assert count(named) == count(unnamed)


def test_latent_ranks_come_from_the_model_of_that_shape() -> None:
    shape = {
        "name": "any", "layers": 61, "hidden": 7168, "heads": 128, "kv_heads": 128, "ffn": 18432,
        "gated_mlp": True, "vocab": 129280, "tied_embeddings": False, "experts": 256, "top_k": 8,
        "expert_ffn": 2048, "shared_experts": 1, "moe_layers": 58, "mla": True,
    }  # fmt: skip
    model, filled = record_model(shape)
    assert model
    assert count(model).total == count(load_model("deepseek-v3")).total
    assert any("mla" in word and "deepseek-v3" in word for word in filled)


def test_stated_ranks_win() -> None:
    ranks = {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_head_dim": 64, "qk_rope_head_dim": 32,
             "v_head_dim": 64}  # fmt: skip
    model, _ = record_model({**LLAMA, "mla": ranks})
    assert model
    assert model.mla
    assert (model.mla.kv_lora_rank, model.mla.qk_nope_head_dim) == (256, 64)


def test_prediction_layers_count_where_the_stated_size_has_them() -> None:
    with_mtp = next(s for _, s in shapes() if s.get("params") == 685e9)
    without = next(s for _, s in shapes() if s.get("params") == 671e9)
    assert getattr(record_model(with_mtp)[0], "mtp_layers", None) == 1
    assert getattr(record_model(without)[0], "mtp_layers", None) == 0


def test_a_missing_vocabulary_is_what_the_stated_parameters_leave() -> None:
    model, filled = record_model({**LLAMA, "layers": 30, "vocab": None, "params": 7_594_045_440})
    assert model
    exact = {**LLAMA, "layers": 30, "params": None}
    assert model.vocab == pytest.approx(128256 - (_total(exact) - 7_594_045_440) / 8192, abs=1)
    assert "what the stated parameters leave" in filled[0]


def _total(shape: dict[str, Any]) -> int:
    model, _ = record_model(shape)
    assert model
    return count(model).total


def test_a_rounded_count_decides_no_vocabulary() -> None:
    """ "8B" is sharp to half a billion, 61,000 rows of two tables of 4,096."""
    model, filled = record_model({**LLAMA, "layers": 30, "vocab": None, "params": 8_000_000_000})
    assert model
    assert model.vocab == 32_000
    assert any("Llama" in word for word in filled)


def test_missing_widths_follow_the_usual_rules() -> None:
    gpt: dict[str, Any] = {"layers": 10, "hidden": 1000, "heads": 10, "gated_mlp": False}
    model, filled = record_model(gpt)
    assert model
    assert (model.ffn, model.kv_heads, model.head_dim, model.vocab) == (4000, 10, 100, 51_200)
    assert model.tied_embeddings
    assert {word.split()[0] for word in filled} == {"ffn", "kv_heads", "vocab", "tied_embeddings"}
    gated, _ = record_model({**gpt, "gated_mlp": True})
    assert gated
    assert gated.ffn == 2816  # 8/3 x 1,000 = 2,667, up to 256


def test_a_position_table_is_as_long_as_the_stated_count_says() -> None:
    long = next(s for _, s in shapes() if s["name"] == "mpt-125m" and s["params"] == 174070272)
    model, _ = record_model(long)
    assert model
    assert model.learned_positions == 65536
    assert count(model).total == 174070272
