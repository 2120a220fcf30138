"""Reading records: what is accepted, and what a person is told otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layoutopt.errors import InputError
from layoutopt.validation.records import SECTIONS, read_records
from tests.validation.builders import row, write


def refused(paths: list[Path]) -> InputError:
    with pytest.raises(InputError) as caught:
        read_records(paths)
    assert caught.value.exit_code == 2
    return caught.value


def test_reads_every_record_in_order(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", row("a"), row("b"))
    second = write(tmp_path / "b.jsonl", row("c"))
    records = read_records([first, second])
    assert [(r.id, r.source_file, r.line) for r in records] == [
        ("a", "a.jsonl", 1),
        ("b", "a.jsonl", 2),
        ("c", "b.jsonl", 1),
    ]


def test_blank_lines_and_windows_line_ends_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"\ufeff\r\n{json.dumps(row('a'))}\r\n\r\n{json.dumps(row('b'))}", "utf-8")
    assert [(r.id, r.line) for r in read_records([path])] == [("a", 2), ("b", 4)]


def test_a_record_without_id_is_named_by_its_place(tmp_path: Path) -> None:
    entry = row()
    del entry["id"]
    assert read_records([write(tmp_path / "mine.jsonl", entry)])[0].id == "mine.jsonl:1"


def test_no_file_is_refused() -> None:
    assert "no file" in refused([]).message


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert "gone.jsonl" in refused([tmp_path / "gone.jsonl"]).message


def test_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory" in refused([tmp_path]).message


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(text)
    assert "holds no record" in refused([path]).message


def test_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.jsonl"
    path.write_bytes(b"\xff\xfe\x00{")
    assert "not UTF-8" in refused([path]).message


def test_too_large_a_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layoutopt.validation.records.MAX_BYTES", 10)
    assert "at most 10 are read" in refused([write(tmp_path / "a.jsonl", row())]).message


@pytest.mark.parametrize(
    "line", ['{"id": "a"', "[1, 2]", "3", "null", '"text"', "{" * 5000, '{"x":' * 100_000]
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(row())}\n{line}\n")
    assert "a.jsonl, line 2" in refused([path]).message


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_not_a_number_is_refused(tmp_path: Path, word: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row()).replace("10.0", word))
    assert word in refused([path]).message


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_is_needed(tmp_path: Path, section: str) -> None:
    entry = row()
    entry[section] = None
    error = refused([write(tmp_path / "a.jsonl", entry)])
    assert error.field == section


def test_a_misspelt_section_gets_the_nearest_key(tmp_path: Path) -> None:
    entry = row()
    entry["hardwear"] = entry.pop("hardware")
    assert "'hardwear'" in refused([write(tmp_path / "a.jsonl", entry)]).message


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("hardware", "gpus", 0),
        ("hardware", "gpus", -8),
        ("hardware", "gpus", 8.5),
        ("hardware", "gpus", True),
        ("hardware", "gpus", "8"),
        ("hardware", "gpus", 10**30),
        ("training", "seq_len", 0),
        ("training", "micro_batch", [1]),
        ("layout", "tp", 0),
        ("layout", "zero_stage", 4),
        ("layout", "zero_stage", True),
        ("layout", "recompute", "all"),
        ("layout", "sequence_parallel", 1),
        ("measured", "step_time_s", -1.0),
        ("measured", "step_time_s", 0),
        ("measured", "step_time_s", "fast"),
        ("measured", "memory_kind", "resident"),
        ("measured", "oom", 1),
        ("measured", "use", False),
        ("model", "layers", 1.5),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, section: str, key: str, value: Any) -> None:
    entry = row()
    entry[section][key] = value
    path = write(tmp_path / "a.jsonl", entry)
    error = refused([path])
    assert error.field == f"{section}.{key}"
    assert error.value == value
    assert "a.jsonl, line 1" in error.message


def test_an_id_given_twice_names_both_places(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", row("same"), row("same"))
    message = refused([path]).message
    assert "line 1" in message
    assert "line 2" in message
