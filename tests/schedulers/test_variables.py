"""LAYOUT_* variables, the cache of answers, and env outside Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from layoutopt.cache import Made, kept_or_made
from layoutopt.errors import InputError
from layoutopt.schedulers.slurm_submit import Submission, sizes, soonest
from layoutopt.schedulers.variables import exports, variables
from tests.cli.conftest import Run, run
from tests.launchers.plans import plan_of

__all__ = ["run"]


def test_values_have_no_comma_and_no_blank() -> None:
    found = variables(plan_of("tp=8,pp=4,layers_per_stage=19+2*21+19"))
    assert found["LAYOUT_LAYERS_PER_STAGE"] == "19+2*21+19"
    assert found["LAYOUT_MICROBATCHES"] == "128"
    assert not [value for value in found.values() if set(value) & set(", ;'\"$\n")]


def test_exports_are_what_a_shell_reads() -> None:
    text = exports({"LAYOUT_A": "1", "LAYOUT_B": "it's $HOME; x"})
    done = subprocess.run(
        ["bash", "-c", f'{text}\nprintf "%s|%s" "$LAYOUT_A" "$LAYOUT_B"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1|it's $HOME; x"


def test_a_script_s_name_is_one_word() -> None:
    name = "my job; touch x.sbatch"
    assert Submission(plan_of("tp=8,pp=4"), name).words[-1] == name
    assert f"'{name}'" in Submission(plan_of("tp=8,pp=4"), name).line()


def test_sizes_and_the_soonest_finish() -> None:
    assert list(sizes(1, 4)) == [1, 2, 3, 4]
    assert list(sizes(3, 100)) == [3, 4, 8, 16, 32, 64, 100]
    # Two nodes now beat four nodes tomorrow; equal ends go to the fewer.
    assert soonest({2: 100.0, 4: 50.0 + 86_400}) == 2
    assert soonest({4: 10.0, 2: 10.0}) == 2
    with pytest.raises(InputError, match="no job of these sizes"):
        soonest({})


def test_env_says_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_NNODES", raising=False)
    done = run("env", "--model", "8B")
    assert done.code == 2
    assert "not inside a Slurm job" in done.err


def test_env_takes_slurm_s_size(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NNODES", "2")
    monkeypatch.setenv("SLURM_GPUS_PER_NODE", "h100:4")
    done = run("env", "--model", "8B", "--plain")
    assert done.code == 0
    assert "LAYOUT_GPUS=8\n" in done.out


def test_answers_are_kept_by_question(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> Made:
        made.append(1)
        return Made(f"answer {len(made)}", 0, "optimal")

    folder = str(tmp_path / "answers")
    first = kept_or_made(folder, "solve", "json", {"model": "8B", "gpus": "8"}, make)
    again = kept_or_made(folder, "solve", "json", {"gpus": "8", "model": "8B", "fix": ()}, make)
    other = kept_or_made(folder, "solve", "json", {"model": "8B", "gpus": "16"}, make)
    assert (first, again.text, other.text) == (again, "answer 1", "answer 2")
    next(iter((tmp_path / "answers").glob("*.json"))).write_text("{")
    kept_or_made(folder, "solve", "json", {"model": "8B", "gpus": "8"}, make)
    assert len(list((tmp_path / "answers").iterdir())) == 2


def test_what_ran_out_of_time_is_not_kept(tmp_path: Path) -> None:
    for status in ("feasible", "unknown"):
        kept_or_made(str(tmp_path), "solve", "json", {"a": status}, lambda: Made("", 4, "unknown"))
    assert not list(tmp_path.iterdir())


def test_a_file_s_content_is_part_of_the_question(tmp_path: Path) -> None:
    cluster, texts = tmp_path / "c.yaml", iter("ab")
    options = {"cluster": str(cluster)}
    folder = str(tmp_path / "answers")
    for content in ("one", "two"):
        cluster.write_text(content)
        kept_or_made(folder, "solve", "", options, lambda: Made(next(texts), 0, "optimal"))
    assert len(list((tmp_path / "answers").iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        kept_or_made(str(tmp_path / "file"), "s", "", {"a": 1}, lambda: Made("", 0, "optimal"))
