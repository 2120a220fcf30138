"""The whole of ``validate``: tables, the JSON contract, and the shipped records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layoutopt.validation import Scored, validate
from tests.validation.builders import row, tp_is_slow, write

SHIPPED = sorted((Path(__file__).parents[2] / "benchmarks" / "measured").glob("*.jsonl"))

PLAN_KEYS = {"n", "mape", "median", "p90", "bias"}


def two_files(tmp_path: Path) -> list[Path]:
    """Predictions of 2 s: errors 0, 0.5 and 1 in time; one out-of-memory run is missed."""
    first = write(
        tmp_path / "a.jsonl",
        row("exact", measured={"step_time_s": 2.0, "peak_memory_gib": 8.0}),
        row("half", measured={"step_time_s": 4.0}),
        row("dead", measured={"step_time_s": None, "oom": True}),
    )
    second = write(
        tmp_path / "b.jsonl",
        row("twice", measured={"step_time_s": 1.0}, hardware={"gpu": "h100-sxm-80gb"}),
        row("lacking", hardware={"gpus": None}),
    )
    return [first, second]


def test_the_overall_summary(tmp_path: Path) -> None:
    summary = validate(two_files(tmp_path), estimator=tp_is_slow).summary
    assert (summary.records, summary.scored) == (5, 4)
    assert summary.time.n == 3
    assert summary.time.mape == pytest.approx((0 + 0.5 + 1) / 3)
    assert summary.time.median == pytest.approx(0.5)
    assert summary.time.bias == pytest.approx(0.0)
    assert summary.memory.n == 1
    assert summary.memory.mape == pytest.approx(0.5)  # 2 + 2 GiB reserved against 8
    assert summary.memory.bias == pytest.approx(-0.5)
    assert summary.fit.n == 4
    assert summary.fit.accuracy == pytest.approx(3 / 4)
    assert (summary.fit.oom_missed, summary.fit.fits_refused) == (1, 0)


def test_summaries_by_file_framework_and_gpu(tmp_path: Path) -> None:
    found = validate(two_files(tmp_path), estimator=tp_is_slow)
    assert [(r.name, r.records, r.time.n) for r in found.by_source_file] == [
        ("a.jsonl", 3, 2),
        ("b.jsonl", 2, 1),
    ]
    assert {r.name: r.time.n for r in found.by_gpu} == {"a100-sxm-80gb": 2, "h100-sxm-80gb": 1}
    assert [r.name for r in found.by_framework] == ["Megatron-LM (2023)"]
    assert [r.name for r in found.table_rows()] == ["a.jsonl", "b.jsonl", "all"]


def test_the_json_contract(tmp_path: Path) -> None:
    found = validate(two_files(tmp_path), estimator=tp_is_slow).to_dict()
    json.dumps(found, allow_nan=False)
    assert found["schema"] == "layoutopt.validation/1"
    for entry in found["records"]:
        assert {"id", "source_file", "scored", "why_not", "time", "memory", "fit"} <= set(entry)
        assert set(entry["time"]) == {"measured_s", "predicted_s", "error"}
        assert set(entry["memory"]) == {"measured_gib", "predicted_gib", "error"}
        assert set(entry["fit"]) == {"measured_oom", "predicted_oom"}
    summary = found["summary"]
    rows = [summary]
    for group in ("by_source_file", "by_framework", "by_gpu"):
        rows.extend(summary[group].values())
    for part in rows:
        assert set(part["time"]) == set(part["memory"]) == PLAN_KEYS
        assert set(part["fit"]) == {"n", "accuracy", "oom_missed", "fits_refused"}
        assert isinstance(part["sweeps"], list)


def test_finished_is_success(tmp_path: Path) -> None:
    assert validate(two_files(tmp_path), estimator=tp_is_slow).exit_code == 0


def test_every_shipped_record_is_scored_or_says_why() -> None:
    found = validate(SHIPPED, estimator=tp_is_slow)
    assert found.summary.records == 2385
    assert found.summary.scored >= 2000
    for entry in found.records:
        assert entry.scored == (entry.why_not is None)
        if entry.case:
            assert None not in (entry.predicted_s, entry.predicted_gib, entry.predicted_oom)
            assert entry.case.layout.gpus == entry.case.job.gpus


def test_shipped_records_that_are_complete_are_never_left_unpredicted() -> None:
    """Complete: model shape, GPU, GPU count, seq_len, global_batch and every degree."""
    needed = {
        "model": ("layers", "hidden", "heads"),
        "hardware": ("gpu", "gpus"),
        "training": ("seq_len", "global_batch"),
        "layout": ("tp", "cp", "pp", "dp", "ep"),
    }
    for entry in validate(SHIPPED, estimator=tp_is_slow).records:
        complete = all(
            getattr(entry.record, section).get(key) is not None
            for section, keys in needed.items()
            for key in keys
        )
        if complete and entry.record.training["global_batch"] % _samples_at_once(entry) == 0:
            assert entry.predicted_s is not None, (entry.record.id, entry.why_not)


def _samples_at_once(entry: Scored) -> int:
    """Sequences that all data-parallel ranks take in one microbatch."""
    dp: int = entry.record.layout["dp"]
    micro_batch: int = entry.record.training.get("micro_batch") or 1
    return dp * micro_batch
