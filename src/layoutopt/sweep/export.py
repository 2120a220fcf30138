"""Stored rows as Parquet, CSV or JSON lines; the file's ending says which.

Rows stream through in batches, so that any number of them fits in memory; the file appears whole or
not at all.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from layoutopt.errors import InputError, ToolError
from layoutopt.nearest import nearest_names
from layoutopt.sweep.columns import INTEGER, RESULT, TEXT
from layoutopt.sweep.condition import Condition
from layoutopt.sweep.nemo import NEMO_COLUMNS, NEMO_KINDS, nemo_row
from layoutopt.sweep.store import EXPORTED, Store

_BATCH = 10_000
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
    ``.parquet``, ``.csv``, ``.jsonl``, ToolError where Parquet is asked and pyarrow is missing.
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
    if ending == ".parquet":
        _need_pyarrow()
    return _WRITERS[ending]


def _nemo(store: Store, condition: Condition | None) -> Rows:
    for row in store.rows(condition):
        made = nemo_row(dict(zip(EXPORTED, row, strict=True)))
        if made is not None:
            yield made


def _csv(path: Path, names: Sequence[str], kinds: dict[str, str], rows: Rows) -> int:
    written = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        while batch := list(islice(rows, _BATCH)):
            writer.writerows(batch)
            written += len(batch)
    return written


def _jsonl(path: Path, names: Sequence[str], kinds: dict[str, str], rows: Rows) -> int:
    written = 0
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(encode(dict(zip(names, row, strict=True))) + "\n")
            written += 1
    return written


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ToolError("Parquet needs pyarrow: pip install 'layoutopt[sweep]'") from None


def _parquet(path: Path, names: Sequence[str], kinds: dict[str, str], rows: Rows) -> int:
    import pyarrow
    from pyarrow import parquet

    types: dict[str, Any] = {TEXT: pyarrow.string(), INTEGER: pyarrow.int64()}
    kind_of = [types.get(kinds.get(name, TEXT), pyarrow.float64()) for name in names]
    schema = pyarrow.schema(list(zip(names, kind_of, strict=True)))
    written = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:
        while batch := list(islice(rows, _BATCH)):
            columns = zip(zip(*batch, strict=True), kind_of, strict=True)
            arrays = [pyarrow.array(values, kind) for values, kind in columns]
            file.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
            written += len(batch)
    return written


_WRITERS = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
