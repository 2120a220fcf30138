"""``layoutopt calibrate``, and the file it makes in the other commands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from layoutopt.calibration import Factors
from tests.calibration.test_fit import site_rows
from tests.cli.conftest import Run
from tests.cli.schemas import check
from tests.validation.builders import write

ESTIMATE = ("estimate", "--model", "llama-2-7b", "--gpus", "8", "--layout", "tp=2")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Three runs of a site whose kernels are 15% slower."""
    return write(tmp_path / "runs.jsonl", *site_rows(tmp_path, Factors(compute_time=1.15), 3))


@pytest.fixture
def site(run: Run, records: Path, tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    assert run("calibrate", str(records), "--out", str(path)).code == 0
    return path


def test_the_table_says_what_it_is_worth(run: Run, records: Path, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    ran = run("calibrate", str(records), "--out", str(path))
    assert ran.code == 0
    assert "with the shipped figures" in ran.out
    assert "runs left out are predicted better" in ran.out
    assert "run-tp2-pp2" in ran.out
    assert yaml.safe_load(path.read_text("utf-8"))["runs"][1] == "run-tp2-pp2"


def test_json_is_what_the_schema_says(run: Run, records: Path, tmp_path: Path) -> None:
    ran = run("calibrate", str(records), "--out", str(tmp_path / "site.yaml"), "--json")
    check(ran.json, "calibration")
    assert ran.json["worthwhile"] is True
    assert len(ran.json["rows"]) == 3


def test_the_file_is_what_the_schema_says(site: Path) -> None:
    check(yaml.safe_load(site.read_text("utf-8")), "calibration")


def test_estimate_is_slower_by_the_factor_and_says_so(run: Run, site: Path) -> None:
    options = ("--gpu", "a100-sxm-80gb", "--framework", "megatron-core", "--json")
    shipped = run(*ESTIMATE, *options).json
    mine = run(*ESTIMATE, "--calibration", str(site), "--json").json
    assert 1.08 < mine["step"]["time_s"] / shipped["step"]["time_s"] < 1.17
    assert shipped["request"]["calibration"] is None
    assert mine["request"]["calibration"]["runs"] == ["run-tp1-pp8", "run-tp2-pp2", "run-tp4-pp1"]
    filled = {entry["option"]: entry["reason"] for entry in mine["request"]["filled"]}
    assert filled["gpu"] == filled["framework"] == "what the calibration is for"
    assert "3 runs of this site" in mine["uncertainty"]["basis"]
    check(mine, "plan")


def test_validate_uses_it_for_its_own_runs_alone(run: Run, site: Path, records: Path) -> None:
    before = run("validate", str(records), "--json").json["summary"]["time"]["mape"]
    after = run("validate", str(records), "--calibration", str(site), "--json").json
    assert before > 0.10
    assert after["summary"]["time"]["mape"] < 0.01
    foreign = yaml.safe_load(site.read_text("utf-8")) | {"gpu": "h100-sxm-80gb"}
    site.write_text(yaml.safe_dump(foreign), encoding="utf-8")
    other = run("validate", str(records), "--calibration", str(site), "--json").json
    assert other["summary"]["time"]["mape"] == before


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--gpu", "h100", "--calibration is for gpu a100-sxm-80gb, but gpu is h100-sxm-80gb"),
        ("--framework", "torchtitan", "but framework is torchtitan"),
    ],
)
def test_another_machine_or_framework_is_refused(
    run: Run, site: Path, option: str, value: str, words: str
) -> None:
    ran = run(*ESTIMATE, "--calibration", str(site), option, value)
    assert ran.code == 2
    assert words in ran.err


def test_what_is_missing_is_said(run: Run, records: Path) -> None:
    for args, words in (
        (("calibrate", "--out", "site.yaml"), "records are missing"),
        (("calibrate", str(records)), "--out is missing"),
    ):
        ran = run(*args)
        assert ran.code == 2
        assert words in ran.err


def test_no_other_file_is_overwritten(run: Run, records: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("keep me", encoding="utf-8")
    ran = run("calibrate", str(records), "--out", str(path))
    assert ran.code == 2
    assert path.read_text("utf-8") == "keep me"
