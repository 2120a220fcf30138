"""Predictions against measurements, with a cost model worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import Estimate
from layoutopt.errors import RuleError
from layoutopt.validation.records import read_records
from layoutopt.validation.score import Scored, score
from tests.validation.builders import estimate_of, record, row, write


def scored(tmp_path: Path, estimate: Estimate | None = None, **sections: Any) -> Scored:
    def estimator(job: Job, layout: Layout) -> Estimate:
        return estimate or estimate_of(layout, 12.0)

    return score([record(tmp_path, row(**sections))], estimator)[0]


def test_step_time_is_scored_as_stated(tmp_path: Path) -> None:
    """12 s predicted, 10 s measured: off by 0.2."""
    entry = scored(tmp_path)
    assert (entry.measured_s, entry.predicted_s) == (10.0, 12.0)
    assert entry.to_dict()["time"]["error"] == pytest.approx(0.2)


def test_tokens_per_second_stand_in_for_a_missing_step_time(tmp_path: Path) -> None:
    """64 sequences of 4096 tokens on 8 GPUs at 2048 tokens/s each: 16 s."""
    entry = scored(
        tmp_path, measured={"step_time_s": None, "tokens_per_s_per_gpu": 2048, "tflops_per_gpu": 1}
    )
    assert entry.measured_s == 16.0


def test_flops_alone_are_never_scored(tmp_path: Path) -> None:
    entry = scored(tmp_path, measured={"step_time_s": None, "tflops_per_gpu": 150})
    assert not entry.scored
    assert entry.why_not
    assert entry.predicted_s == 12.0
    assert entry.predicted_gib is not None
    assert entry.predicted_oom is False
    assert not entry.counts("time")


def test_an_incomplete_record_says_why(tmp_path: Path) -> None:
    entry = scored(tmp_path, hardware={"gpus": None})
    found = entry.to_dict()
    assert found["scored"] is False
    assert found["why_not"] == "hardware.gpus not given"
    assert found["time"] == {"measured_s": None, "predicted_s": None, "error": None}


def test_a_layout_that_the_cost_model_refuses_says_why(tmp_path: Path) -> None:
    def refuse(job: Job, layout: Layout) -> Estimate:
        raise RuleError("heads 32 % tp 5", field="tp", value=5)

    entry = score([record(tmp_path, row())], refuse)[0]
    assert entry.why_not == "heads 32 % tp 5"


@pytest.mark.parametrize(
    ("kind", "predicted_gib"), [("allocated", 20), ("reserved", 22), ("nvidia-smi", 23), (None, 22)]
)
def test_memory_of_the_kind_that_was_measured(
    tmp_path: Path, kind: str | None, predicted_gib: int
) -> None:
    """Stages allocate 10, 20 and 15 GiB and reserve 2 more; 1 GiB is outside the allocator."""
    entry = scored(
        tmp_path,
        estimate_of(Layout(), 1.0, (10, 20, 15)),
        measured={"peak_memory_gib": 10.0, "memory_kind": kind},
    )
    assert entry.predicted_gib == predicted_gib


def test_memory_of_the_last_stage_where_that_was_logged(tmp_path: Path) -> None:
    entry = row(measured={"peak_memory_gib": 10.0, "memory_kind": "allocated"})
    entry["notes"] = "memory of the rank that writes the log (the last one)"

    def estimator(job: Job, layout: Layout) -> Estimate:
        return estimate_of(layout, 1.0, (10, 20, 15))

    assert score([record(tmp_path, entry)], estimator)[0].predicted_gib == 15


@pytest.mark.parametrize(
    ("measured", "oom"),
    [
        ({"step_time_s": None, "oom": True}, True),
        ({"oom": False}, False),
        ({}, False),
        ({"step_time_s": None, "peak_memory_gib": 3.0}, False),
        ({"step_time_s": None, "tflops_per_gpu": 9}, None),
    ],
)
def test_a_run_with_a_figure_did_fit(
    tmp_path: Path, measured: dict[str, Any], oom: bool | None
) -> None:
    assert scored(tmp_path, measured=measured).measured_oom is oom


def test_predicted_out_of_memory(tmp_path: Path) -> None:
    """79 GiB allocated and 2 reserved are more than 80."""
    entry = scored(tmp_path, estimate_of(Layout(), 1.0, (79,)))
    assert entry.predicted_oom is True


def test_a_figure_that_the_record_withholds_is_predicted_but_not_counted(tmp_path: Path) -> None:
    entry = scored(tmp_path, measured={"use": {"time": False, "why": "launch-bound"}})
    assert entry.scored
    assert entry.predicted_s == 12.0
    assert not entry.counts("time")
    assert entry.counts("fit")
    assert entry.to_dict()["left_out"] == {"time": "launch-bound"}


def test_equal_runs_ask_the_cost_model_once(tmp_path: Path) -> None:
    asked: list[Layout] = []

    def estimator(job: Job, layout: Layout) -> Estimate:
        asked.append(layout)
        return estimate_of(layout, 12.0)

    path = write(tmp_path / "a.jsonl", row("a"), row("b"), row("c", layout={"tp": 4, "dp": 1}))
    assert [entry.predicted_s for entry in score(read_records([path]), estimator)] == [12.0] * 3
    assert len(asked) == 2
