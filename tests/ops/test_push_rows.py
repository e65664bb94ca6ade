"""New rows in a ``blobs.parquet`` that somebody else made: nothing of theirs is lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolmgr.errors import IndexInvalidError
from poolmgr.ops.push_rows import COLUMNS, with_rows
from tests.ops.push_kit import table_of

SHA = "ab" * 32


def row(path: str, **more: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "path": path, "size": 5, "sha256": SHA, "kind": "plain", **more}


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


KINDS = [
    {"sha256": pa.string()},
    {"sha256": pa.large_string(), "path": pa.large_string()},
    {"sha256": pa.dictionary(pa.int32(), pa.string()), "kind": pa.dictionary(pa.int8(), pa.string())},
    {"size": pa.int32()},
    {"size": pa.uint64()},
    {"shared_ranges": pa.null()},
]


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_tables_of_other_makers(kinds: dict[str, pa.DataType]) -> None:
    columns = {"path": ["old.sif"], "size": [7], "sha256": [None], "kind": ["plain"], "stars": [[1, 2]]}
    arrays = {k: pa.array(v, kinds.get(k)) for k, v in columns.items()}
    if "shared_ranges" in kinds:
        arrays["shared_ranges"] = pa.nulls(1)
    made = with_rows(parquet(pa.table(arrays)), [row("new.sif", size=1 << 40, shared_ranges="0+1")], "x")
    assert made is not None
    old, new = table_of(made)
    assert {k: old[k] for k in columns} == {k: v[0] for k, v in columns.items()}
    assert new["size"] == 1 << 40
    assert new["shared_ranges"] == "0+1"
    assert new["stars"] is None


def test_a_row_that_is_there_gains_what_it_lacks_and_loses_nothing() -> None:
    first = with_rows(None, [row("a.sif", tree_sha256=None, added_at="then")], "x")
    made = with_rows(
        first, [row("a.sif", tree_sha256="T", arch="amd64", kind="derived", added_at="now")], "x"
    )
    assert made is not None
    (found,) = table_of(made)
    assert (found["tree_sha256"], found["arch"]) == ("T", "amd64")
    assert (found["kind"], found["added_at"]) == ("plain", "then"), "what was said stays said"
    assert with_rows(made, [row("a.sif", tree_sha256="T", arch="amd64")], "x") is None, "nothing to add"


def test_a_row_of_other_bytes_is_brought_up_to_date() -> None:
    first = with_rows(None, [row("a.sif", sha256="cd" * 32, tree_sha256="old")], "x")
    made = with_rows(first, [row("a.sif", tree_sha256="T")], "x")
    assert made is not None
    (found,) = table_of(made)
    assert (found["sha256"], found["tree_sha256"]) == (SHA, "T")


def test_what_is_no_table() -> None:
    for data in (b"", b"PAR1", b"<html>" * 100):
        with pytest.raises(IndexInvalidError, match="not a Parquet table"):
            with_rows(data, [row("a.sif")], "where")


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from("abcdef"), unique=True),
    st.lists(st.sampled_from("abcdef"), unique=True),
    st.booleans(),
)
def test_every_row_once_and_the_same_again(old: list[str], new: list[str], known: bool) -> None:
    before = with_rows(None, [row(p, sha256=SHA if known else None) for p in old], "x")
    after = with_rows(before, [row(p) for p in new], "x")
    data = after if after is not None else before
    paths = [r["path"] for r in table_of(data)] if data is not None else []
    assert paths == [*old, *(p for p in new if p not in old)]
    assert with_rows(data, [row(p) for p in new], "x") is None
