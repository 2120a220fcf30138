"""results.sqlite: one row a point in the table ``points``, kept as it arrives.

WAL mode, one transaction a row: whatever is killed when, the file holds whole rows. What is no
store of ours, or damaged, is refused and left as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from layoutopt.errors import InputError
from layoutopt.sweep.columns import PROVED, RESULT
from layoutopt.sweep.condition import Condition
from layoutopt.sweep.points import Point
from layoutopt.sweep.version import model_version

FILE = "results.sqlite"
LOCK = "results.lock"
APPLICATION = 0x6C796F70
"""Mark in the file's header that says whose it is: ``lyop``."""
LAYOUT_VERSION = 1

_OWN = {
    "key": "TEXT PRIMARY KEY",
    "place": "INTEGER",
    "solves": "INTEGER NOT NULL",
    "scaling": "TEXT NOT NULL",
    "asked": "TEXT NOT NULL",
    "model_version": "TEXT NOT NULL",
}
COLUMNS = (*_OWN, *RESULT)
"""Columns of the table: ``place`` is the point's in the present sweep, or null where an earlier
one asked for it; ``solves`` counts how often an answer was stored; ``asked`` is JSON."""
EXPORTED = tuple(name for name in COLUMNS if name != "place")


class Store:
    """An open store. ``Store.create`` makes the folder and locks it; ``Store.open`` reads."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[str] | None) -> None:
        self.path, self._connection, self._lock = path, connection, lock

    @classmethod
    def create(cls, folder: str | Path) -> Store:
        """The store of ``folder`` for writing, made where there is none.

        Raises InputError for a foreign or damaged file, and where another sweep is writing.
        """
        home = Path(folder)
        path = home / FILE
        if home.exists() and not home.is_dir():
            raise InputError(f"--out {home} is a file, not a folder", field="out", value=str(home))
        home.mkdir(parents=True, exist_ok=True)
        lock = _locked(home / LOCK)
        try:
            new = not path.exists() or path.stat().st_size == 0
            if not new:
                _refuse_foreign(path)
            connection = _connect(path, "rwc")
            with _damage(path):
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                if _is_blank(connection):
                    _make(connection)
        except BaseException:
            lock.close()
            raise
        return cls(path, connection, lock)

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """The store of ``folder`` for reading; raises InputError where there is none."""
        given = Path(folder)
        path = given / FILE if given.is_dir() else given
        if not path.is_file():
            raise InputError(
                f"{given} holds no {FILE}; layoutopt sweep SPEC.yaml --out {given} makes it",
                field="results",
                value=str(given),
            )
        _refuse_foreign(path)
        return cls(path, _connect(path, "ro"), None)

    def close(self) -> None:
        """Ends the connection, and lets another sweep write."""
        self._connection.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, points: Sequence[Point], spec: str) -> None:
        """Makes ``points`` the present sweep: places are given anew, answers stay."""
        with _damage(self.path), _transaction(self._connection) as run:
            run.execute("UPDATE points SET place = NULL")
            run.executemany(
                "UPDATE points SET place = ? WHERE key = ?",
                ((place, point.key) for place, point in enumerate(points)),
            )
            run.execute("DELETE FROM about")
            about = {"spec": spec, "points": str(len(points)), "model_version": model_version()}
            run.executemany("INSERT INTO about VALUES (?, ?)", about.items())

    def put(self, point: Point, place: int, row: Mapping[str, Any]) -> None:
        """Keeps an answer: a new row, or one more solve of the row that is there."""
        values = {
            "key": point.key,
            "place": place,
            "solves": 1,
            "scaling": point.scaling,
            "asked": json.dumps(point.asked, default=str),
            "model_version": model_version(),
            **{name: row.get(name) for name in RESULT},
        }
        renewed = ", ".join(f'"{name}" = excluded."{name}"' for name in COLUMNS[1:])
        renewed = renewed.replace('"solves" = excluded."solves"', '"solves" = "solves" + 1')
        text = (
            f"INSERT INTO points ({_names(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
            f"ON CONFLICT(key) DO UPDATE SET {renewed}"
        )
        with _damage(self.path), _transaction(self._connection) as run:
            run.execute(text, [values[name] for name in COLUMNS])

    def done(self, *, retry: bool = False) -> set[str]:
        """Keys whose answer is kept; with ``retry`` only those that would come out the same."""
        where = f"WHERE status IN ({', '.join('?' * len(PROVED))})" if retry else ""
        with _damage(self.path):
            found = self._connection.execute(
                f"SELECT key FROM points {where}", PROVED if retry else ()
            )
            return {key for (key,) in found}

    def rows(
        self,
        condition: Condition | None = None,
        columns: Sequence[str] = EXPORTED,
        *,
        all_sweeps: bool = False,
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of the present sweep in its order (or of all there were) that pass the filter."""
        wanted = [] if all_sweeps else ["place IS NOT NULL"]
        values: tuple[Any, ...] = ()
        if condition is not None:
            text, values = condition.sql()
            wanted.append(text)
        where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
        with _damage(self.path):
            yield from self._connection.execute(
                f"SELECT {_names(columns)} FROM points {where} ORDER BY place, key", values
            )

    def about(self) -> dict[str, str]:
        """``spec``, ``points`` (how many the sweep has) and ``model_version`` as last begun."""
        with _damage(self.path):
            return dict(self._connection.execute("SELECT name, value FROM about"))

    def statuses(self) -> dict[str, int]:
        """How many rows of the present sweep ended in which way."""
        with _damage(self.path):
            found = self._connection.execute(
                "SELECT status, count(*) FROM points WHERE place IS NOT NULL GROUP BY status"
            )
            return dict(found)


def _names(columns: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with _damage(path):
        address = f"{path.resolve().as_uri()}?mode={mode}"
        # Autocommit: transactions are begun by hand, so that each row is exactly one.
        return sqlite3.connect(address, uri=True, isolation_level=None, timeout=30)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """What SQLite says of a damaged or unwritable file, as a refusal that names it."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"{path} cannot be used: {error}; move it away, or give another folder",
            field="out",
            value=str(path),
        ) from error


def _make(connection: sqlite3.Connection) -> None:
    columns = {**_OWN, **RESULT}
    described = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    with _transaction(connection) as run:
        run.execute(f"PRAGMA application_id = {APPLICATION}")
        run.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        run.execute(f"CREATE TABLE points ({described})")
        run.execute("CREATE INDEX points_by_place ON points (place)")
        run.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)")


def _is_blank(connection: sqlite3.Connection) -> bool:
    """Nothing in it yet: new, or killed before its tables were made."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    return tables == 0 and mark in (0, APPLICATION)


def _refuse_foreign(path: Path) -> None:
    """Raises InputError for a file that is no store of ours, or no longer whole."""
    with path.open("rb") as file:
        head = file.read(16)
    if head and head != b"SQLite format 3\0":
        raise _foreign(path, "it is no SQLite file")
    connection = _connect(path, "ro")
    try:
        with _damage(path):
            if _is_blank(connection):
                return
            (mark,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if mark != APPLICATION:
                raise _foreign(path, "another program made it")
            there = [row[1] for row in connection.execute("PRAGMA table_info(points)")]
            if version != LAYOUT_VERSION or set(there) != set(COLUMNS):
                raise _foreign(path, "another version of layoutopt made it, with other columns")
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise _foreign(path, f"it is damaged ({found})")
    finally:
        connection.close()


def _foreign(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is not used: {why}; move it away, or give another folder",
        field="out",
        value=str(path),
    )


def _locked(path: Path) -> IO[str]:
    """The folder's lock, held until it is closed or this process ends, however it ends."""
    lock = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        who = lock.read(20).strip()
        lock.close()
        raise InputError(
            f"--out {path.parent}: another sweep is writing there"
            f"{f' (process {who})' if who else ''}; wait for it, or give another folder",
            field="out",
            value=str(path.parent),
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
