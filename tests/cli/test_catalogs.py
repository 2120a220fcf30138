"""hardware, models, schema and validate, as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from layoutopt.costmodel.models import model_names
from layoutopt.hardware_profiles.catalog import gpu_names, instance_names
from layoutopt.schema import schema_names, schema_text
from tests.cli.conftest import Run
from tests.cli.schemas import schema

MEASURED = sorted((Path(__file__).parents[2] / "benchmarks" / "measured").glob("*.jsonl"))


def test_hardware_lists_everything(run: Run) -> None:
    out = run("hardware").out
    for name in (*gpu_names(), *instance_names()):
        assert name in out
    assert max(map(len, out.splitlines())) <= 100


def test_one_gpu_is_shown_with_the_source_of_each_figure(run: Run) -> None:
    out = run("hardware", "h100-sxm-80gb").out
    for words in ("989.5TFLOP/s", "450GB/s", "per GPU, one direction", "Sources", "[1]"):
        assert words in out


def test_an_ambiguous_name_says_which_was_taken(run: Run) -> None:
    ran = run("hardware", "H100")
    assert "h100-sxm-80gb was taken" in ran.err
    assert ran.out.startswith("h100-sxm-80gb")


@pytest.mark.parametrize("name", ["mi300x", "p5.48xlarge", "tpu-v5p", "l40s"])
def test_hardware_as_json(run: Run, name: str) -> None:
    answer = run("hardware", name, "--json").json
    Draft202012Validator(schema("hardware")).validate(answer)
    assert answer["figures"]
    assert all(figure["source"] for figure in answer["figures"])


def test_models_lists_everything(run: Run) -> None:
    out = run("models").out
    for name in model_names():
        assert name in out
    assert max(map(len, out.splitlines())) <= 100


def test_one_model_is_shown_with_exact_counts_and_source(run: Run) -> None:
    out = run("models", "405B").out
    assert "405,853,388,800" in out
    assert "126" in out
    assert "source:" in out


def test_models_as_json(run: Run) -> None:
    for name in ("deepseek-v3", "10B", "megatron-1t"):
        answer = run("models", name, "--json").json
        Draft202012Validator(schema("models")).validate(answer)
        assert answer["active_parameters"] <= answer["parameters"]
    Draft202012Validator(schema("models")).validate(run("models", "--json").json)
    Draft202012Validator(schema("hardware")).validate(run("hardware", "--json").json)


def test_a_config_on_standard_input_is_a_model(run: Run) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    answer = run("models", "-", "--json", stdin=json.dumps(config)).json
    assert answer["parameters"] == 8_030_261_248


def test_every_schema_is_a_schema(run: Run) -> None:
    assert run("schema").out.split() == list(schema_names())
    for name in schema_names():
        printed = run("schema", name).json
        Draft202012Validator.check_schema(printed)
        assert printed == json.loads(schema_text(f"layoutopt.{name}/1"))
        assert printed["$id"] == f"layoutopt.{name}/1"


def test_validate_prints_a_row_per_source_and_answers_by_the_schema(run: Run) -> None:
    few = [str(path) for path in MEASURED if path.name in ("torchtitan.jsonl", "simumax.jsonl")]
    assert len(few) == 2
    table = run("validate", *few).out
    for words in ("torchtitan.jsonl", "simumax.jsonl", "all", "median", "regret"):
        assert words in table
    assert max(map(len, table.splitlines())) <= 100
    answer = run("validate", *few, "--json").json
    Draft202012Validator(schema("validation")).validate(answer)
    assert answer["summary"]["by_source_file"].keys() == {"torchtitan.jsonl", "simumax.jsonl"}


def test_validate_names_the_line_that_is_no_record(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("{}\n{\n")
    ran = run("validate", str(path), "--json")
    assert ran.code == 2
    assert "runs.jsonl" in ran.err
