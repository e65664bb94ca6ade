"""``blobs.parquet``: what a pool may record of its blobs, one row each (docs/pool-format.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from poolmgr.errors import FileMissingError, IndexInvalidError
from poolmgr.model.blob import Blob, path_trouble
from poolmgr.model.digest import parse_sha256
from poolmgr.model.ranges import MAX_TEXT, Relative
from poolmgr.store.base import Store

TABLE_NAME = "blobs.parquet"
MAX_TABLE_BYTES = 256 << 20
MAX_ROWS = 2_000_000
MAX_SHARED = 64 << 20
"""Characters of all shared ranges that one run takes in; blobs past that are fetched whole."""


def read_blobs_table(store: Store) -> Mapping[str, Blob]:
    """Blob path -> size and sha256 on record; empty for a pool without the table.

    Needs the columns ``path`` and ``size``; ``sha256`` may be absent or null. Raises
    ``IndexInvalidError`` with every problem in ``details`` for a table that cannot be trusted: not
    Parquet, other columns, unsafe paths, a path twice, sizes or hashes that are none.
    """
    try:
        data = store.read(TABLE_NAME, limit=MAX_TABLE_BYTES)
    except FileMissingError:
        return {}
    where = f"{store.address}/{TABLE_NAME}"
    columns = _columns(data, where)
    blobs: dict[str, Blob] = {}
    problems = []
    for row, (path, size, sha256) in enumerate(zip(*columns, strict=True)):
        problem = _trouble(path, size)
        if problem is None and path in blobs:
            problem = f"{path!r} stands there twice"
        digest = None
        if problem is None and sha256 is not None:
            try:
                digest = parse_sha256(sha256)
            except (ValueError, AttributeError):
                problem = f"{path!r}: {sha256!r} is no sha256"
        if problem is not None:
            problems.append(f"row {row}: {problem}")
        else:
            blobs[path] = Blob(path, size, digest)
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise _bad(where, problems[0] + more, problems)
    return blobs


def read_relatives(store: Store, paths: Collection[str]) -> Mapping[str, Relative]:
    """Of ``paths``, those for which the pool records a base and what they share with it.

    For a pool whose listing shows the table. A row that cannot be is no row: the record saves bytes
    and proves nothing, so nothing depends on it. ``IndexInvalidError`` for what is no table at all.
    """
    data = store.read(TABLE_NAME, limit=MAX_TABLE_BYTES)
    found: dict[str, Relative] = {}
    room = MAX_SHARED
    with _parquet(f"{store.address}/{TABLE_NAME}") as where:
        table = _read(data, where, ("path", "base_sha256", "shared_ranges"))
        if table.num_columns < 3:
            return {}
        table = table.filter(table["base_sha256"].is_valid())
        ranges = table["shared_ranges"]  # equal texts lie there once, however often they are named
        rows = zip(table["path"].to_pylist(), table["base_sha256"].to_pylist(), strict=True)
        for row, (path, base) in enumerate(rows):
            if path not in paths:
                continue
            text = ranges[row].as_py()
            if not isinstance(text, str) or len(text) > min(MAX_TEXT, room):
                continue
            try:
                found[path] = Relative(parse_sha256(base), text)
            except (ValueError, AttributeError):
                continue
            room -= len(text)
    return found


def read_sources(store: Store) -> Mapping[str, tuple[str, str | None]]:
    """Plain blob -> (image reference, registry digest or None), of those whose source is on record.

    For a pool whose listing shows the table. What is no reference or digest is for the caller to refuse.
    """
    data = store.read(TABLE_NAME, limit=MAX_TABLE_BYTES)
    with _parquet(f"{store.address}/{TABLE_NAME}") as where:
        rows = _read(data, where, ("path", "kind", "source", "source_digest")).to_pylist()
    found = {}
    for row in rows:
        path, source, digest = row.get("path"), row.get("source"), row.get("source_digest")
        if isinstance(path, str) and isinstance(source, str) and row.get("kind") != "derived":
            found[path] = (source, digest if isinstance(digest, str) else None)
    return found


def _columns(data: bytes, where: str) -> list[list[object]]:
    with _parquet(where):
        table = _read(data, where, ("path", "size", "sha256"))
        if missing := {"path", "size"} - set(table.column_names):
            raise _bad(where, f"lacks the column {', '.join(map(repr, sorted(missing)))}")
        columns = [table.column(name).to_pylist() for name in table.column_names]
    return columns if "sha256" in table.column_names else [*columns, [None] * len(columns[0])]


def _read(data: bytes, where: str, wanted: tuple[str, ...]) -> Any:
    """Those columns of ``wanted`` that there are, as an Arrow table in that order."""
    import pyarrow
    import pyarrow.parquet

    buffer = pyarrow.BufferReader(data)
    file = pyarrow.parquet.ParquetFile(buffer)
    if file.metadata.num_rows > MAX_ROWS:
        raise _bad(where, f"{file.metadata.num_rows:,} rows, more than a pool has blobs")
    schema = file.schema_arrow
    names = [name for name in wanted if name in schema.names]
    if "shared_ranges" in names:
        if pyarrow.types.is_string(schema.field("shared_ranges").type):
            file = pyarrow.parquet.ParquetFile(buffer, read_dictionary=["shared_ranges"])
        else:
            names.remove("shared_ranges")
    return file.read(columns=names, use_threads=False).select(names)


@contextmanager
def _parquet(where: str) -> Iterator[str]:
    """What Arrow raises on bytes that are no sound table, as this pool's error."""
    import pyarrow

    try:
        yield where
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, UnicodeDecodeError) as e:
        raise _bad(
            where, f"not a Parquet table: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
        ) from None


def _trouble(path: object, size: object) -> str | None:
    if not isinstance(path, str):
        return f"{path!r} is no path"
    if trouble := path_trouble(path):
        return f"the path {path!r} {trouble}"
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        return f"{path!r}: {size!r} is no size"
    return None


def _bad(where: str, what: str, details: list[str] | None = None) -> IndexInvalidError:
    return IndexInvalidError(
        f"{where}: {what}",
        hint="one row a blob: path, size, sha256; see docs/pool-format.md",
        details=details or (),
    )
