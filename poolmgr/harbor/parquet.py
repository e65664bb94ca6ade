"""Task archives in Parquet: one row a task, ``path`` (text) and ``task_binary`` (a tar, gzipped or not).

Only these two columns are read, batch by batch, so memory does not grow with the number of rows. One
large cell that many rows share takes little room in a file and much in memory, so the batches of a
large row group are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

PATH = "path"
BINARY = "task_binary"
BATCH = 32
IN_MEMORY = 256 << 20
"""Bytes that a batch may have, should each of its rows be as large as its whole row group, as can be."""
READ_BUFFER = 1 << 20


class NotArchiveError(Exception):
    """The file is no Parquet, or its columns are not those of a task archive; the text says which."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A Parquet file that can be opened: here or at the other end of range requests."""

    name: str
    """For messages, such as ``data/train-00000.parquet``."""
    open: Callable[[], BinaryIO]


@dataclass(frozen=True, slots=True)
class ArchiveRow:
    index: int
    """From 0, over the whole file."""
    path: str | None
    data: bytes | None


def rows(file: ArchiveFile) -> Iterator[ArchiveRow]:
    """Every row in order; ``NotArchiveError`` as soon as the file cannot be read as an archive."""
    import pyarrow
    import pyarrow.parquet

    index = 0
    with file.open() as opened:
        try:
            table = pyarrow.parquet.ParquetFile(opened, buffer_size=READ_BUFFER, pre_buffer=False)
            _check_columns(table.schema_arrow)
            for batch in _batches(table):
                columns = (batch.column(name).to_pylist() for name in (PATH, BINARY))
                for path, data in zip(*columns, strict=True):
                    yield ArchiveRow(index, path, data)
                    index += 1
        except (pyarrow.ArrowException, UnicodeDecodeError) as e:
            raise NotArchiveError(f"cannot be read after row {index:,}: {e}" if index else str(e)) from None
        except OSError as e:
            if e.errno is not None:
                raise
            raise NotArchiveError(f"cannot be read after row {index:,}: {e}") from None


def _batches(table: Any) -> Iterator[Any]:
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        columns = [group.column(i) for i in range(group.num_columns)]
        size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema in (PATH, BINARY))
        count = max(1, min(BATCH, IN_MEMORY // max(1, size)))
        yield from table.iter_batches(count, [number], columns=[PATH, BINARY], use_threads=False)


def _check_columns(schema: Any) -> None:
    columns = {field.name: str(field.type) for field in schema}
    for name, kinds in ((PATH, ("string", "large_string")), (BINARY, ("binary", "large_binary"))):
        if name not in columns:
            have = ", ".join(map(repr, columns)) or "none"
            raise NotArchiveError(f"no column {name!r} among its columns ({have})")
        if columns[name] not in kinds:
            raise NotArchiveError(f"the column {name!r} is {columns[name]}, not {kinds[0]}")
