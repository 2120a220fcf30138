"""Sweeps: regret and rank correlation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layoutopt.validation import validate
from layoutopt.validation.sweeps import regret
from tests.validation.builders import row, tp_is_slow, write


def runs(seconds: dict[int, float], prefix: str = "", **sections: Any) -> list[dict[str, Any]]:
    """A record per tensor-parallel degree, with its step time."""
    layouts = {1: (1, 8), 2: (2, 2), 4: (1, 2), 8: (1, 1)}
    rows = []
    for tp, time_s in seconds.items():
        pp, dp = layouts[tp]
        entry = row(f"{prefix}tp{tp}", **sections)
        entry["layout"] |= {"tp": tp, "pp": pp, "dp": dp}
        entry["measured"] = {"step_time_s": time_s}
        rows.append(entry)
    return rows


def test_regret_of_two() -> None:
    """The first is chosen and takes 3 s, the best takes 2.5: 20% lost."""
    assert regret([(1.0, 3.0), (2.0, 2.5)]) == pytest.approx(0.2)


def test_regret_is_zero_where_the_best_is_chosen() -> None:
    assert regret([(1.0, 2.5), (2.0, 3.0)]) == 0.0


def test_equal_predictions_count_as_the_slowest() -> None:
    assert regret([(1.0, 2.0), (1.0, 4.0), (2.0, 3.0)]) == pytest.approx(1.0)


def test_a_sweep_of_four_layouts(tmp_path: Path) -> None:
    """Predicted order tp 1, 2, 4, 8; measured order 2, 1, 4, 8: d^2 sum to 2, 1 - 12/60."""
    path = write(tmp_path / "a.jsonl", *runs({1: 11.0, 2: 10.0, 4: 12.0, 8: 13.0}))
    (sweep,) = validate([path], estimator=tp_is_slow).summary.sweeps
    assert sweep.n == 4
    assert sweep.regret == pytest.approx(0.1)
    assert sweep.spearman == pytest.approx(0.8)
    assert "llama-2-7b" in sweep.name


def test_three_layouts_are_no_sweep(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *runs({1: 11.0, 2: 10.0, 4: 12.0}))
    assert validate([path], estimator=tp_is_slow).summary.sweeps == ()


def test_equal_layouts_are_averaged_and_count_once(tmp_path: Path) -> None:
    first = runs({1: 11.0, 2: 10.0, 4: 12.0}, "a-")
    again = runs({1: 13.0}, "b-")
    path = write(tmp_path / "a.jsonl", *first, *again)
    assert validate([path], estimator=tp_is_slow).summary.sweeps == ()
    path = write(tmp_path / "a.jsonl", *first, *again, *runs({8: 13.0}, "c-"))
    (sweep,) = validate([path], estimator=tp_is_slow).summary.sweeps
    assert sweep.n == 4
    assert sweep.regret == pytest.approx(12.0 / 10.0 - 1)  # tp 1 took (11 + 13) / 2 s


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"global_batch": 128}},
        {"training": {"seq_len": 2048}},
        {"training": {"precision": "fp16"}},
        {"training": {"kernel": "torch"}},
        {"hardware": {"internode_gbps_per_gpu": 400}},
        {"model": {"layers": 30, "params": None}},
    ],
)
def test_runs_of_different_questions_are_kept_apart(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    path = write(
        tmp_path / "a.jsonl",
        *runs({1: 11.0, 2: 10.0}, "a-"),
        *runs({4: 12.0, 8: 13.0}, "b-", **sections),
    )
    assert validate([path], estimator=tp_is_slow).summary.sweeps == ()


def test_withheld_times_are_in_no_sweep(tmp_path: Path) -> None:
    rows = runs({1: 11.0, 2: 10.0, 4: 12.0, 8: 13.0})
    rows[0]["measured"]["use"] = {"time": False, "why": "a test"}
    path = write(tmp_path / "a.jsonl", *rows)
    assert validate([path], estimator=tp_is_slow).summary.sweeps == ()
