"""Exports: every row, every column, units in the names; and NeMo's own names."""

from __future__ import annotations

import csv
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.errors import InputError, ToolError
from layoutopt.inputs.request import read_solve
from layoutopt.sweep.columns import RESULT
from layoutopt.sweep.condition import parse
from layoutopt.sweep.export import export
from layoutopt.sweep.nemo import NEMO_COLUMNS
from layoutopt.sweep.store import EXPORTED, FILE, Store
from layoutopt.sweep.sweep import run_sweep
from tests.sweep.builders import priced, spec_of


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two answers and one refused point."""
    spec = spec_of(axes={"gpus": [8, 16, 9]}, fixed={"model": "8B", "fix.tp": 2})
    run_sweep(spec, tmp_path, priced)
    return tmp_path


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_three_formats_hold_the_same(results: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pytest.importorskip("orjson", reason="orjson is not installed")
    with Store.open(results) as store:
        for name in ("x.csv", "x.jsonl", "x.parquet"):
            assert export(store, results / name) == 3
    lines = (results / "x.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert parquet.read_table(results / "x.parquet").to_pylist() == rows
    assert list(rows[0]) == list(EXPORTED)
    from_csv = read_csv(results / "x.csv")
    for row, texts in zip(rows, from_csv, strict=True):
        # Numbers by value: CSV writes 0.0 as 0.
        numbers = {n: float(texts[n]) for n, v in row.items() if isinstance(v, int | float)}
        assert row == {n: text or None for n, text in texts.items()} | numbers
    assert [row["status"] for row in rows] == ["optimal", "optimal", "refused"]
    assert not list(results.glob(".*"))


def test_numbers_are_those_of_the_answer(results: Path) -> None:
    with Store.open(results) as store:
        export(store, results / "x.jsonl")
    row = json.loads((results / "x.jsonl").read_text().splitlines()[0])
    request = read_solve({"model": "8B", "gpus": 8, "fix": "tp=2"})
    plan = estimate(
        request.job,
        Layout(tp=2, pp=2, dp=2, microbatches=request.job.training.global_batch // 2,
               zero_stage=1, recompute="full", recompute_layers=3),
    )  # fmt: skip
    assert row["wall_days"] * 86_400 == pytest.approx(plan.run.wall_time_s)
    assert row["peak_memory_gib"] * 2**30 == pytest.approx(plan.memory.worst.reserved)
    parts = sum(row[f"{part}_s"] for part in plan.step.breakdown_s)
    assert parts == pytest.approx(row["step_time_s"]) == pytest.approx(plan.step.time_s)
    assert row["recompute"] == "full:3"
    assert row["checkpoint_bytes"] == plan.checkpoint.bytes


def test_every_physical_column_carries_its_unit() -> None:
    """A figure without a unit in its name is a count, a share, or a word."""
    units = ("_s", "_gib", "_bytes", "_days", "_usd", "_kwh", "_rel", "_tokens", "_sequences")
    plain = {"mfu", "hfu", "overhead_share", "interruptions", "tokens_per_s_per_gpu"}
    plain |= {"tflops_per_gpu"}
    assert {n for n, kind in RESULT.items() if kind == "REAL" and not n.endswith(units)} == plain


NEMO = (
    "Model Name", "Model Size", "Seq Length", "TP", "PP", "CP", "EP", "MBS", "VP", "Num Layers",
    "Hidden Size", "FFN Hidden Size", "GBS", "Nodes", "GPUs per Node", "Time per Step",
    "Samples per Second", "Model TFLOPS / GPU", "Model TFLOPS Aggregate",
)  # fmt: skip
"""Copied from result_columns of nemo_toolkit 2.5.0."""


def test_nemos_columns(results: Path) -> None:
    with Store.open(results) as store:
        assert export(store, results / "n.csv", "nemo") == 2
    first, second = read_csv(results / "n.csv")
    assert tuple(first) == NEMO_COLUMNS == NEMO
    assert (first["TP"], first["PP"], first["VP"]) == ("2", "2", "1")
    assert (second["Nodes"], second["GPUs per Node"]) == ("2", "8")
    seconds, batch = float(first["Time per Step"]), int(first["GBS"])
    assert float(first["Samples per Second"]) == pytest.approx(batch / seconds)
    total = float(second["Model TFLOPS / GPU"]) * 16
    assert float(second["Model TFLOPS Aggregate"]) == pytest.approx(total)


def test_only_rows_that_pass_the_filter(results: Path) -> None:
    with Store.open(results) as store:
        assert export(store, results / "x.csv", condition=parse("gpus > 8", EXPORTED)) == 2


@pytest.mark.parametrize("name", ["x.txt", "x", "x.parquett"])
def test_an_unknown_ending_is_refused(results: Path, name: str) -> None:
    with Store.open(results) as store, pytest.raises(InputError, match=r"\.parquet"):
        export(store, results / name)


def test_parquet_without_pyarrow_says_what_to_install(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with Store.open(results) as store, pytest.raises(ToolError, match=r"layoutopt\[sweep\]"):
        export(store, results / "x.parquet")


def test_many_rows_are_quick(results: Path) -> None:
    """A tenth of the 100,000 rows that benchmarks/sweep.py times, in a tenth of its seconds."""
    with Store.create(results) as store:
        (row,) = store.rows(parse("gpus == 8", EXPORTED))
        found = dict(zip(EXPORTED, row, strict=True))
        fill(results / FILE, found, 10_000)
    began = time.process_time()
    with Store.open(results) as store:
        condition = parse("gpus >= 64 and mfu > 0", EXPORTED)
        assert export(store, results / "x.csv", condition=condition) > 5_000
    assert time.process_time() - began < 2.0


def fill(path: Path, row: dict[str, Any], number: int) -> None:
    """``number`` more rows like ``row``, with GPU counts of their own."""
    import sqlite3

    names = [*row, "place"]
    shuffled = random.Random(0).sample(range(number), number)
    rows = ({**row, "key": f"k{n}", "gpus": 8 * n % 4096, "place": 10 + n} for n in shuffled)
    base = sqlite3.connect(path)
    columns = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join("?" * len(names))
    with base:
        base.executemany(
            f"INSERT INTO points ({columns}) VALUES ({marks})",
            ([one[name] for name in names] for one in rows),
        )
    base.close()
