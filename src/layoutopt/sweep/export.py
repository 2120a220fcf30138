"""Stored rows as Parquet, CSV or JSON lines; the file's ending says which.

Rows stream through in batches, so that any number of them fits in memory; the file appears whole or
not at all.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.errors import InputError, ToolError
from layoutopt.nearest import nearest_names
from layoutopt.sweep.columns import INTEGER, REAL, RESULT, TEXT
from layoutopt.sweep.condition import Condition
from layoutopt.sweep.nemo import NEMO_COLUMNS, NEMO_KINDS, nemo_row
from layoutopt.sweep.store import EXPORTED, Store

if TYPE_CHECKING:
    import pyarrow

_BATCH = 2_000
"""Rows held at once."""

Rows = Iterator[tuple[Any, ...]]
COLUMN_SETS = ("own", "nemo")


def export(
    store: Store,
    path: str | Path,
    columns: str = "own",
    condition: Condition | None = None,
) -> int:
    """Writes the rows of the present sweep that pass ``condition``; returns how many there were.

    ``columns`` is ``own`` or ``nemo``. Raises InputError for an ending that is none of
    ``.parquet``, ``.csv``, ``.jsonl``, ToolError where the package that writes it is missing.
    """
    target = Path(path)
    write = writer_of(target)
    if columns == "nemo":
        names: Sequence[str] = NEMO_COLUMNS
        kinds = NEMO_KINDS
        rows = _nemo(store, condition)
    else:
        names, kinds = EXPORTED, {"solves": INTEGER, **RESULT}
        rows = store.rows(condition)
    part = target.with_name(f".{target.name}.part")
    try:
        written = write(part, names, kinds, rows)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return written


def writer_of(path: Path) -> Callable[[Path, Sequence[str], dict[str, str], Rows], int]:
    """What writes a file of this ending; raises InputError for one that is not known."""
    ending = path.suffix.lower()
    if ending not in _WRITERS:
        close = nearest_names(ending, _WRITERS) or tuple(_WRITERS)
        raise InputError(
            f"{path} ends in {ending or 'nothing'}; rows are written as {', '.join(_WRITERS)}",
            field="out",
            value=str(path),
            nearest=close,
        )
    package, write = _WRITERS[ending]
    if importlib.util.find_spec(package) is None:
        raise ToolError(f"{ending} needs {package}: pip install 'layoutopt[sweep]'")
    return write


def _nemo(store: Store, condition: Condition | None) -> Rows:
    for row in store.rows(condition):
        made = nemo_row(dict(zip(EXPORTED, row, strict=True)))
        if made is not None:
            yield made


def _csv(path: Path, names: Sequence[str], kinds: dict[str, str], rows: Rows) -> int:
    from pyarrow import csv

    written = 0
    with csv.CSVWriter(path, _schema(names, kinds)) as file:
        for table in _tables(names, kinds, rows):
            file.write_table(table)
            written += table.num_rows
    return written


def _jsonl(path: Path, names: Sequence[str], kinds: dict[str, str], rows: Rows) -> int:
    import orjson

    written = 0
    with path.open("wb") as file:
        for row in rows:
            entry = dict(zip(names, row, strict=True))
            file.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
            written += 1
    return written


def _parquet(path: Path, names: Sequence[str], kinds: dict[str, str], rows: Rows) -> int:
    from pyarrow import parquet

    written = 0
    with parquet.ParquetWriter(path, _schema(names, kinds), compression="zstd") as file:
        for table in _tables(names, kinds, rows):
            file.write_table(table)
            written += table.num_rows
    return written


def _tables(names: Sequence[str], kinds: dict[str, str], rows: Rows) -> Iterator[pyarrow.Table]:
    import pyarrow

    schema = _schema(names, kinds)
    while batch := list(islice(rows, _BATCH)):
        columns = zip(zip(*batch, strict=True), schema.types, strict=True)
        arrays = [pyarrow.array(values, kind) for values, kind in columns]
        yield pyarrow.Table.from_arrays(arrays, schema=schema)


def _schema(names: Sequence[str], kinds: dict[str, str]) -> pyarrow.Schema:
    import pyarrow

    types = {TEXT: pyarrow.string(), INTEGER: pyarrow.int64(), REAL: pyarrow.float64()}
    return pyarrow.schema([(name, types[kinds.get(name, TEXT)]) for name in names])


_WRITERS = {
    ".parquet": ("pyarrow", _parquet),
    ".csv": ("pyarrow", _csv),
    ".jsonl": ("orjson", _jsonl),
}
"""By ending: the package that it takes, and what writes it."""
