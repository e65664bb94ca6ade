"""Rows of ``blobs.parquet``: what is recorded of a pushed blob, and the table with new rows in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poolmgr.errors import IndexInvalidError
from poolmgr.model.digest import parse_sha256
from poolmgr.ops.push_files import LocalFile

COLUMNS = (
    "path", "size", "sha256", "tree_sha256", "arch", "kind", "source", "source_digest", "base_sha256",
    "recipe_sha256", "shared_ranges", "built_with", "added_at",
)  # fmt: skip
"""All of a row (docs/pool-format.md). ``size`` is a whole number, the others are text or null."""

Row = Mapping[str, Any]


def row_of(
    file: LocalFile,
    path: str,
    *,
    image: str | None = None,
    digest: str | None = None,
    added_at: str,
    shared: str | None = None,
) -> Row:
    """What the pool records of ``file``, which lies at ``path`` in it: the one place where a row is made.

    ``image`` and ``digest``: the reference it was pulled from. ``added_at``: UTC, ISO 8601. ``shared``:
    the text of the ranges that a derived image shares with its base (model/ranges.py).
    """
    made = file.provenance or {}
    return {
        "path": path,
        "size": file.size,
        "sha256": file.sha256,
        "tree_sha256": file.tree_sha256,
        "arch": file.arch,
        "kind": "derived" if file.derived else "plain",
        "source": image,
        "source_digest": digest,
        "base_sha256": _sha256(made.get("base_sha256")),
        "recipe_sha256": _sha256(made.get("recipe_sha256")),
        "shared_ranges": shared,
        "built_with": file.built_with,
        "added_at": added_at,
    }


def with_rows(table: bytes | None, rows: Sequence[Row], where: str) -> bytes | None:
    """The table with ``rows`` added; None where it already says all of it.

    Rows that are there stay as they are, unknown columns included. Where one for the same path and
    sha256 leaves a column null that a new row knows, it is filled in; one of another sha256 for the
    same path was of a file that is gone, and is replaced.
    """
    import pyarrow
    import pyarrow.parquet

    if table is None:
        return None if not rows else _bytes(pyarrow.Table.from_pylist([dict(r) for r in rows], _schema()))
    try:
        old = pyarrow.parquet.read_table(pyarrow.BufferReader(table), use_threads=False)
    except (pyarrow.ArrowException, OSError, ValueError) as e:
        raise IndexInvalidError(f"{where}: not a Parquet table: {str(e).partition(chr(10))[0]}") from None
    paths = old.column("path").to_pylist() if "path" in old.column_names else []
    at = {path: n for n, path in enumerate(paths)}
    fresh = [dict(r) for r in rows if r["path"] not in at]
    known = {at[r["path"]]: r for r in rows if r["path"] in at}
    updates = _updates(old, known)
    if not fresh and not updates:
        return None
    for name, values in updates.items():
        column = _cast(pyarrow.array(values, _schema().field(name).type), old.schema.field(name).type)
        old = old.set_column(old.schema.get_field_index(name), name, column)
    added = pyarrow.Table.from_pylist(fresh, _schema())
    for name in added.column_names:
        if name in old.column_names:
            column = _cast(added.column(name), old.schema.field(name).type)
            added = added.set_column(added.schema.get_field_index(name), name, column)
    try:
        return _bytes(pyarrow.concat_tables([old, added], promote_options="permissive"))
    except pyarrow.ArrowException as e:
        raise IndexInvalidError(
            f"{where}: new rows do not fit its columns: {str(e).partition(chr(10))[0]}",
            hint="see docs/pool-format.md for the columns and their kinds",
        ) from None


def _updates(old: Any, known: Mapping[int, Row]) -> dict[str, list[Any]]:
    """Column -> all its values, for the columns in which a row that is there gains something."""
    result: dict[str, list[Any]] = {}
    if not known:
        return result
    hashes = old.column("sha256").to_pylist() if "sha256" in old.column_names else [None] * old.num_rows
    for name in COLUMNS:
        if name not in old.column_names or name in ("path", "added_at"):
            continue
        values = old.column(name).to_pylist()
        before = list(values)
        for n, row in known.items():
            same = hashes[n] in (None, row["sha256"])
            if row[name] is not None and (values[n] is None if same else values[n] != row[name]):
                values[n] = row[name]
        if values != before:
            result[name] = values
    return result


def _schema() -> Any:
    import pyarrow

    return pyarrow.schema([(c, pyarrow.int64() if c == "size" else pyarrow.string()) for c in COLUMNS])


def _cast(column: Any, kind: Any) -> Any:
    """``column`` as the table has it; as it is where that cannot be, for the table to be widened."""
    import pyarrow

    try:
        return column.cast(kind)
    except pyarrow.ArrowException:
        return column


def _bytes(table: Any) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _sha256(value: object) -> str | None:
    """What an image says of itself may be anything; only a sha256 is recorded."""
    try:
        return parse_sha256(value) if isinstance(value, str) else None
    except ValueError:
        return None
