"""``blobs.parquet``: what a pool may record of its blobs, one row each (docs/pool-format.md)."""

from __future__ import annotations

from collections.abc import Mapping

from poolmgr.errors import FileMissingError, IndexInvalidError
from poolmgr.model.blob import Blob, path_trouble
from poolmgr.model.digest import parse_sha256
from poolmgr.store.base import Store

TABLE_NAME = "blobs.parquet"
MAX_TABLE_BYTES = 256 << 20
MAX_ROWS = 2_000_000


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


def _columns(data: bytes, where: str) -> list[list[object]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data))
        if file.metadata.num_rows > MAX_ROWS:
            raise _bad(where, f"{file.metadata.num_rows:,} rows, more than a pool has blobs")
        names = set(file.schema_arrow.names)
        if missing := {"path", "size"} - names:
            raise _bad(where, f"lacks the column {', '.join(map(repr, sorted(missing)))}")
        wanted = [name for name in ("path", "size", "sha256") if name in names]
        table = file.read(columns=wanted, use_threads=False)
        columns = [table.column(name).to_pylist() for name in wanted]
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, UnicodeDecodeError) as e:
        raise _bad(
            where, f"not a Parquet table: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
        ) from None
    return columns if "sha256" in names else [*columns, [None] * len(columns[0])]


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
