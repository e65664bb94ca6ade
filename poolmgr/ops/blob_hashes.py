"""What a pool has on record of its blobs' hashes: of the bytes, and of the trees inside."""

from __future__ import annotations

import io
from collections.abc import Iterable

from poolmgr.errors import BadFileError, FileMissingError
from poolmgr.ops.view import PoolView

BLOBS_TABLE = "blobs.parquet"
MAX_TABLE = 1 << 30


def sha256_of(view: PoolView, paths: Iterable[str]) -> dict[str, str]:
    """Blob path -> sha256, for those on record."""
    found = {}
    for path in paths:
        blob = view.recorded(path)
        if blob is not None and blob.sha256:
            found[path] = blob.sha256
    return found


def trees_of(view: PoolView) -> dict[str, str]:
    """Blob path -> tree_sha256, from the pool's blobs.parquet; {} where it has none."""
    import pyarrow
    import pyarrow.parquet

    try:
        data = view.store.read(BLOBS_TABLE, limit=MAX_TABLE)
    except FileMissingError:
        return {}
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data))
        if not {"path", "tree_sha256"} <= set(file.schema_arrow.names):
            return {}
        table = file.read(columns=["path", "tree_sha256"])
    except pyarrow.ArrowException as e:
        raise BadFileError(f"{view.address}/{BLOBS_TABLE}: not a Parquet file: {e}") from None
    columns = (table.column(name).to_pylist() for name in ("path", "tree_sha256"))
    return {path: tree for path, tree in zip(*columns, strict=True) if path and tree}
