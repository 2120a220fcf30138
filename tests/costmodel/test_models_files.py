"""Models from files and standard input, and everything a person gets wrong with them."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.models import load_model, load_model_file, resolve_model
from layoutopt.errors import InputError, ProfileError

HF: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256,
}  # fmt: skip

OWN = """
name: mine
layers: 32
hidden: 4096
heads: 32
kv_heads: 8
ffn: 14336
vocab: 128256
"""


def refused(text: str) -> ProfileError:
    """How a text on standard input is refused: in well under a second, in a short sentence."""
    started = time.perf_counter()
    with pytest.raises(ProfileError) as caught:
        load_model_file("-", io.StringIO(text))
    assert time.perf_counter() - started < 1
    assert len(caught.value.message) < 300
    json.dumps([caught.value.value, caught.value.nearest], allow_nan=False)
    return caught.value


def test_a_config_file_is_read_and_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HF))
    model, note = resolve_model(str(folder / "config.json"))
    assert (model.name, note) == ("my-llama", None)
    assert count(model).total == 8_030_261_248


def test_a_config_that_carries_its_name_keeps_it() -> None:
    text = json.dumps({**HF, "_name_or_path": "org/their-model"})
    assert load_model_file("-", io.StringIO(text)).name == "their-model"


def test_own_field_names_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(OWN)
    model = load_model_file(str(path))
    assert model.name == "mine"
    assert model.source == str(path)
    assert (model.gated_mlp, model.tied_embeddings, model.head_dim) == (True, False, 128)
    assert count(model) == count(load_model("llama-3.1-8b"))


def test_own_field_names_in_json_and_a_config_in_yaml() -> None:
    """The keys tell which, not the file's type."""
    own = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 100}
    assert load_model_file("-", io.StringIO(json.dumps(own))).kv_heads == 4
    theirs = "\n".join(f"{key}: {value}" for key, value in HF.items())
    assert count(load_model_file("-", io.StringIO(theirs))).total == 8_030_261_248


def test_every_catalogue_entry_survives_its_own_fields() -> None:
    for name in ("deepseek-v3", "gpt-oss-120b", "gemma-2-27b", "megatron-1t"):
        model = load_model(name)
        text = model.model_dump_json()
        assert load_model_file("-", io.StringIO(text)) == model


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(HF).encode())
    assert load_model_file(str(path)).layers == 32


def test_a_file_without_a_suffix_is_found(tmp_path: Path) -> None:
    path = tmp_path / "description"
    path.write_text(OWN)
    assert resolve_model(str(path))[0].name == "mine"


def test_names_and_sizes_pass_through() -> None:
    assert resolve_model("llama-3.1-8b") == (load_model("llama-3.1-8b"), None)
    assert resolve_model(" 1T ")[0].name == "megatron-1t"
    with pytest.raises(InputError, match="unknown model"):
        resolve_model("no-such-thing-at-all")


def test_a_note_says_when_the_class_is_not_known() -> None:
    model, note = resolve_model("-", io.StringIO(json.dumps({**HF, "model_type": "brandnew"})))
    assert model.layers == 32
    assert note is not None
    assert "brandnew" in note


@pytest.mark.parametrize("name", ["config.json", "m.yaml", "m"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("  \n")
    with pytest.raises(ProfileError, match="is empty"):
        load_model_file(str(path))


def test_a_directory_names_the_config_in_it(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="is a directory"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ProfileError) as caught:
        resolve_model(str(tmp_path))
    assert caught.value.nearest == (str(tmp_path / "config.json"),)


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ProfileError, match="no file") as caught:
        resolve_model(str(tmp_path / "confg.json"))
    assert caught.value.nearest == (str(tmp_path / "config.json"),)


@pytest.mark.parametrize("path", ["\0.json", "x" * 5000 + ".json", "no/such/place/m.yaml"])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(ProfileError) as caught:
        resolve_model(path)
    assert caught.value.field == "model"
    assert len(caught.value.message) < 400


def test_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (2**20 + 1))
    with pytest.raises(ProfileError, match="larger than 1 MiB"):
        load_model_file(str(path))
    assert "larger than 1 MiB" in refused("a" * (2**20 + 1)).message


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"hidden_size": \xff}')
    with pytest.raises(ProfileError, match=r"not UTF-8 text \(byte 16\)"):
        load_model_file(str(path))
    stream = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\xfa"), encoding="utf-8")
    with pytest.raises(ProfileError, match="not UTF-8 text"):
        load_model_file("-", stream)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "a list"),
        ("- a\n- b", "a list"),
        ("3", "3"),
        ('"text"', "text"),
        ("null", "empty"),
        ('{"hidden_size":', "not JSON"),
        ("a: b: c", "not YAML"),
        ('{"hidden_size": NaN}', "NaN"),
        ('{"hidden_size": -Infinity}', "Infinity"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("a: " + "[" * 100_000, "nest"),
        ("- " * 50_000, "nest"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "digits"),
        ("{}", "no key layers"),
    ],
)
def test_texts_that_are_no_model(text: str, says: str) -> None:
    assert says in refused(text).message


def test_keys_that_stand_twice() -> None:
    error = refused('{"hidden_size": 1, "hidden_size": 2}')
    assert (error.field, "1 and 2" in error.message) == ("hidden_size", True)
    assert refused(OWN + "layers: 33\n").field == "layers"
    assert refused('{"text_config": {"vocab_size": 1, "vocab_size": 2}}').field == "vocab_size"


@pytest.mark.parametrize("field", ["layers", "hidden", "heads", "kv_heads", "ffn", "vocab"])
@pytest.mark.parametrize(
    "value", ["true", "'32'", "32.0", "0", "-1", ".nan", ".inf", "[1]", "{a: 1}", "10000000000"]
)
def test_own_counts_are_whole_numbers_within_reason(field: str, value: str) -> None:
    lines = [line for line in OWN.splitlines() if not line.startswith(f"{field}:")]
    error = refused("\n".join([*lines, f"{field}: {value}"]))
    assert error.field == field
    assert field in error.message


@pytest.mark.parametrize("field", ["layers", "hidden", "heads", "ffn", "vocab"])
def test_own_fields_that_are_missing_are_named(field: str) -> None:
    text = "\n".join(line for line in OWN.splitlines() if not line.startswith(f"{field}:"))
    error = refused(text)
    assert error.message == f"standard input: no key {field}"
    assert error.field == field


def test_own_heads_that_do_not_divide_get_the_nearest() -> None:
    error = refused(OWN.replace("heads: 32", "heads: 33").replace("kv_heads: 8", ""))
    assert (error.field, error.nearest) == ("heads", (32, 64))


def test_misspelt_fields_get_the_nearest() -> None:
    error = refused(OWN.replace("hidden:", "hiden:"))
    assert (error.field, error.nearest[0]) == ("hiden", "hidden")
    inner = refused(OWN + "moe: {experts: 8, topk: 2, expert_ffn: 10, layers: 3}")
    assert (inner.field, inner.nearest[0]) == ("moe.topk", "top_k")


def test_words_that_are_not_known_list_those_that_are() -> None:
    error = refused(OWN + "norm: batchnorm\n")
    assert (error.field, error.nearest) == (
        "norm", ("rmsnorm", "layernorm", "layernorm_no_bias"),
    )  # fmt: skip
    assert refused(OWN + "gated_mlp: 1\n").nearest == (True, False)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("moe: {experts: 8, top_k: 9, expert_ffn: 10, layers: 3}", "moe.top_k"),
        ("moe: {experts: 8, top_k: 2, expert_ffn: 10, layers: 33}", "moe.layers"),
        ("moe: {experts: 8, top_k: 2, expert_ffn: 0, layers: 3}", "moe.expert_ffn"),
        ("moe: {experts: 8, top_k: 2, expert_ffn: 8, layers: 30, first_dense_layers: 3}",
         "moe.first_dense_layers"),
        ("moe: 3", "moe"),
        ("moe: []", "moe"),
        ("mla: {q_lora_rank: 0, kv_lora_rank: 1, qk_nope_head_dim: 1, qk_rope_head_dim: 1,"
         " v_head_dim: 1}", "mla.q_lora_rank"),
        ("global_layers: 33", "global_layers"),
        ("sliding_window: 0", "sliding_window"),
    ],
)  # fmt: skip
def test_parts_that_contradict_the_whole(part: str, field: str) -> None:
    assert refused(OWN + part).field == field


def test_yaml_that_grows_without_end_is_cut_short() -> None:
    """Each line repeats the one before nine times: 9^11 words if anybody wrote them out."""
    keys = ["name", "layers", "hidden", "heads", "ffn", "vocab", "source", "norm", "kv_heads"]
    lines = ["max_seq_len: &a [x,x,x,x,x,x,x,x,x]"]
    for number, key in enumerate(keys):
        here, before = chr(98 + number), chr(97 + number)
        lines.append(f"{key}: &{here} [{','.join([f'*{before}'] * 9)}]")
    assert "not one figure" in refused("\n".join(lines)).message
    theirs = "\n".join(lines).replace("kv_heads", "hidden_size")
    assert refused(f"model_type: llama\n{theirs}").field == "hidden_size"
