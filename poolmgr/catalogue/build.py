"""Writes a catalogue: a folder with one Parquet file a table, complete or not there at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from poolmgr.catalogue.schema import TABLES, Table
from poolmgr.errors import AlreadyExistsError, BadFileError, DestinationError
from poolmgr.temporary import sweep, temp_name

MARK = "catalogue.json"
SCHEMA = 1
BATCH = 20_000

Row = Mapping[str, Any]


class CatalogueWriter:
    """Collects rows table by table; the folder gets its name when the ``with`` block ends well."""

    def __init__(self, folder: Path) -> None:
        if os.path.lexists(folder):
            raise AlreadyExistsError(f"{folder} is there already, and nothing is ever overwritten")
        if not folder.parent.is_dir():
            raise DestinationError(f"{folder.parent} is not a folder")
        self._folder = folder
        sweep(folder.parent)
        self._temporary = temp_name(folder.parent)
        self._temporary.mkdir()
        self._files = {table.name: _File(self._temporary, table) for table in TABLES}

    def add(self, table: str, row: Row) -> None:
        """One row; columns that it lacks are null."""
        self._files[table].add(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            for file in self._files.values():
                file.close(write=kind is None)
            if kind is None:
                mark = {"schema": SCHEMA, "tables": {name: f.rows for name, f in self._files.items()}}
                (self._temporary / MARK).write_text(json.dumps(mark, indent=1) + "\n")
                os.rename(self._temporary, self._folder)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)


class _File:
    def __init__(self, folder: Path, table: Table) -> None:
        import pyarrow
        import pyarrow.parquet

        types = {
            "text": pyarrow.string(),
            "integer": pyarrow.int64(),
            "number": pyarrow.float64(),
            "boolean": pyarrow.bool_(),
        }
        self._arrow = pyarrow
        self._schema = pyarrow.schema([(c.name, types[c.type]) for c in table.columns])
        self._writer = pyarrow.parquet.ParquetWriter(
            folder / f"{table.name}.parquet", self._schema, compression="zstd"
        )
        self._columns: dict[str, list[Any]] = {c.name: [] for c in table.columns}
        self._waiting = 0
        self.rows = 0

    def add(self, row: Row) -> None:
        for name, values in self._columns.items():
            value = row.get(name)
            # Parquet text is UTF-8; a name that is not keeps its bytes as escapes.
            values.append(_utf8(value) if isinstance(value, str) else value)
        self.rows += 1
        self._waiting += 1
        if self._waiting == BATCH:
            self._flush()

    def _flush(self) -> None:
        arrays = [self._arrow.array(self._columns[f.name], f.type) for f in self._schema]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._columns = {name: [] for name in self._columns}
        self._waiting = 0

    def close(self, *, write: bool) -> None:
        if write and self._waiting:
            self._flush()
        self._writer.close()


def _utf8(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def files_of(folder: Path) -> dict[str, Path]:
    """Table -> its file, for the catalogue in ``folder``; ``BadFileError`` when it is none."""
    try:
        mark = json.loads((folder / MARK).read_text())
        known = mark["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError):
        raise BadFileError(
            f"{folder} is no catalogue (it has no sound {MARK})",
            hint="make one: poolmgr query --catalogue DIR --dataset DATASET -p POOL",
        ) from None
    if not known:
        raise BadFileError(f"{folder}: a catalogue of another version; make it again")
    files = {table.name: folder / f"{table.name}.parquet" for table in TABLES}
    for name, path in files.items():
        if not path.is_file():
            raise BadFileError(f"{folder}: the table {name!r} is missing; make the catalogue again")
    return files
