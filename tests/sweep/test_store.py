"""The store: rows as they arrive, kept over reruns; foreign and damaged files left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from layoutopt.errors import InputError
from layoutopt.sweep.condition import parse
from layoutopt.sweep.store import COLUMNS, FILE, Store
from layoutopt.sweep.sweep import run_sweep
from layoutopt.sweep.task import Row
from tests.sweep.builders import answers, points, spec_of, stand_in


def test_a_rerun_solves_nothing_again(tmp_path: Path) -> None:
    first = run_sweep(spec_of(), tmp_path, stand_in)
    again = run_sweep(spec_of(), tmp_path, stand_in)
    assert (first.there, first.solved) == (0, 2)
    assert (again.there, again.solved) == (2, 0)
    with Store.open(tmp_path) as store:
        assert [row["solves"] for row in answers(store)] == [1, 1]
        assert [row["gpus"] for row in answers(store)] == [8, 16]


def test_a_changed_spec_reuses_what_it_can(tmp_path: Path) -> None:
    run_sweep(spec_of(), tmp_path, stand_in)
    changed = run_sweep(spec_of(axes={"gpus": [32, 16]}), tmp_path, stand_in)
    assert (changed.there, changed.solved) == (1, 1)
    with Store.open(tmp_path) as store:
        assert [row["gpus"] for row in answers(store)] == [32, 16]
        everything = list(store.rows(columns=("gpus",), all_sweeps=True))
        assert sorted(everything) == [(8,), (16,), (32,)]


def test_retry_solves_again_what_failed_and_counts_it(tmp_path: Path) -> None:
    def failing(tasks):  # type: ignore[no-untyped-def]
        for task, status in zip(tasks, ("failed", "optimal"), strict=True):
            yield task.key, {"status": status}

    run_sweep(spec_of(), tmp_path, failing)
    assert run_sweep(spec_of(), tmp_path, stand_in).solved == 0
    assert run_sweep(spec_of(), tmp_path, stand_in, retry=True).solved == 1
    with Store.open(tmp_path) as store:
        found = [(row["status"], row["solves"]) for row in answers(store)]
    assert found == [("infeasible", 2), ("optimal", 1)]


def test_what_is_solved_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    def interrupted(tasks):  # type: ignore[no-untyped-def]
        yield next(stand_in(tasks))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec_of(), tmp_path, interrupted)
    assert run_sweep(spec_of(), tmp_path, stand_in).there == 1


def test_an_answer_that_comes_twice_is_one_row(tmp_path: Path) -> None:
    def twice(tasks):  # type: ignore[no-untyped-def]
        found = list(stand_in(tasks))
        yield from [*found, *found]

    assert run_sweep(spec_of(), tmp_path, twice).solved == 2
    with Store.open(tmp_path) as store:
        assert [row["solves"] for row in answers(store)] == [1, 1]


def test_refused_points_are_rows_with_their_reason(tmp_path: Path) -> None:
    run_sweep(spec_of(axes={"gpus": [8, 10], "fix.tp": [8]}), tmp_path, stand_in)
    with Store.open(tmp_path) as store:
        row = answers(store)[1]
    assert (row["status"], row["gpus"], row["model"]) == ("refused", 10, "8B")
    assert "does not divide" in row["reason"]


@pytest.mark.parametrize("content", [b"hello", b"SQLite format 3\0" + b"x" * 2000, b"{}" * 5000])
def test_a_foreign_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(InputError, match=FILE) as caught:
        run_sweep(spec_of(), tmp_path, stand_in)
    assert caught.value.exit_code == 2
    assert (tmp_path / FILE).read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("CREATE TABLE points (key TEXT)")
    base.commit()
    base.close()
    before = (tmp_path / FILE).read_bytes()
    for use in (Store.create, Store.open):
        with pytest.raises(InputError, match="another program made it"):
            use(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_damaged_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    run_sweep(spec_of(axes={"gpus": {"range": [8, 800, 8]}}), tmp_path, stand_in)
    path = tmp_path / FILE
    content = bytearray(path.read_bytes())
    content[8192:16384] = b"\xff" * 8192
    path.write_bytes(content)
    with pytest.raises(InputError, match=FILE):
        run_sweep(spec_of(), tmp_path, stand_in)
    assert path.read_bytes() == content


def test_a_store_with_other_columns_is_refused(tmp_path: Path) -> None:
    run_sweep(spec_of(), tmp_path, stand_in)
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("ALTER TABLE points ADD COLUMN extra TEXT")
    base.close()
    with pytest.raises(InputError, match="other columns"):
        Store.open(tmp_path)


def test_a_store_that_was_killed_before_its_tables_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    assert run_sweep(spec_of(), tmp_path, stand_in).solved == 2


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    with Store.create(tmp_path), pytest.raises(InputError, match="another sweep is writing"):
        Store.create(tmp_path)
    Store.create(tmp_path).close()


def test_readers_see_rows_while_a_sweep_writes(tmp_path: Path) -> None:
    first, second = points()
    with Store.create(tmp_path) as writer:
        writer.begin((first, second), "")
        row: Row = {"status": "optimal", "gpus": 8}
        writer.put(first, 0, row)
        with Store.open(tmp_path) as reader:
            assert list(reader.rows(columns=("gpus", "status"))) == [(8, "optimal")]
            assert reader.about()["points"] == "2"


def test_where_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="layoutopt sweep"):
        Store.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="not a folder"):
        Store.create(tmp_path / "file")


def test_rows_are_filtered_by_any_column(tmp_path: Path) -> None:
    run_sweep(spec_of(axes={"gpus": [8, 16, 32]}), tmp_path, stand_in)
    with Store.open(tmp_path) as store:
        condition = parse("gpus > 8 and status == 'infeasible'", COLUMNS)
        assert list(store.rows(condition, ("gpus",))) == [(16,), (32,)]
