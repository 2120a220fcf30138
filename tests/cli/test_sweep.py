"""``layoutopt sweep``: what it prints, and how it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from layoutopt.sweep.task import Row, Task
from tests.cli.conftest import Run
from tests.cli.schemas import check
from tests.sweep.builders import stand_in

SPEC = "axes: {gpus: [8, 16, 9]}\nfixed: {model: 8B, fix.tp: 2}\n"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small spec, and an engine that does not search."""

    def engine(tasks: Iterable[Task], workers: int) -> Iterator[tuple[str, Row]]:
        return stand_in(tasks)

    monkeypatch.setattr("layoutopt.sweep.pool.solve_locally", engine)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return "spec.yaml"


def test_a_sweep_says_what_it_did(run: Run, spec: str) -> None:
    ran = run("sweep", spec, "--out", "results", "--export", "x.csv")
    assert ran.code == 0
    assert "2 infeasible, 1 refused" in ran.out
    assert "3 now, 0 before" in ran.out
    assert "not looked for" in ran.out
    assert "strong scaling" in ran.out
    assert "3 rows written to x.csv" in ran.out
    assert "3 points, 0 of them solved before" in ran.err
    assert "3 of 3 done: 0 failed, 2 infeasible, 1 refused" in ran.err
    again = run("sweep", spec, "--out", "results", "--quiet")
    assert "0 now, 3 before" in again.out
    assert again.err == ""


def test_a_dry_run_solves_nothing(run: Run, spec: str, tmp_path: Path) -> None:
    ran = run("sweep", spec, "--dry-run")
    assert (ran.code, list(tmp_path.iterdir())) == (0, [tmp_path / "spec.yaml"])
    assert "Points    3" in ran.out
    run("sweep", spec, "--out", "results")
    there = run("sweep", spec, "--out", "results", "--dry-run", "--json").json
    assert (there["points"], there["reused"]) == (3, 3)
    check(there, "sweep")


def test_the_summary_as_json(run: Run, spec: str) -> None:
    ran = run("sweep", spec, "--out", "results", "--json")
    assert ran.json["statuses"] == {"infeasible": 2, "refused": 1}
    assert ran.err == ""
    check(ran.json, "sweep")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["spec.yaml"], "--out is missing"),
        ([], "the sweep is missing"),
        (["none.yaml", "--out", "r"], "none.yaml cannot be read"),
        (["spec.yaml", "--out", "r", "--set", "gpu=h999"], "axis gpu: .*h999"),
        (["spec.yaml", "--out", "r", "--workers", "0"], "workers 0 is below 1"),
        (["spec.yaml", "--out", "r", "--export", "x.xls"], r"x\.xls ends in \.xls"),
        (["spec.yaml", "--out", "r", "--columns", "nimo"], "columns 'nimo'.*nemo"),
        (["spec.yaml", "--out", "r", "--dask", "host:8786"], "tcp://host:8786"),
        (["spec.yaml", "--out", "spec.yaml"], "is a file, not a folder"),
    ],
)
def test_what_is_refused_before_anything_runs(
    run: Run, spec: str, tmp_path: Path, arguments: list[str], words: str
) -> None:
    ran = run("sweep", *arguments)
    assert ran.code == 2
    assert __import__("re").search(words, ran.err), ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "r").exists()


def test_without_dask_it_says_what_to_install(
    run: Run, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    ran = run("sweep", spec, "--out", "r", "--dask", "tcp://127.0.0.1:1")
    assert ran.code == 69
    assert "layoutopt[sweep]" in ran.err
