"""``blobs.parquet``: what a pool records of its blobs is believed only when every row is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolmgr.errors import IndexInvalidError
from poolmgr.model.blob import Blob
from poolmgr.model.ranges import MAX_TEXT, Relative
from poolmgr.store import blobs_table
from poolmgr.store.blobs_table import TABLE_NAME, read_blobs_table, read_relatives
from poolmgr.store.local import LocalStore

SHA = "ab" * 32


def write(root: Path, **columns: Any) -> LocalStore:
    pq.write_table(pa.table(columns), root / TABLE_NAME)
    return LocalStore(root)


def test_sizes_and_hashes(tmp_path: Path) -> None:
    store = write(
        tmp_path,
        path=["images/a.sif", "images/b.sif"],
        size=[10, 0],
        sha256=[SHA, None],
        kind=["plain", "derived"],
    )
    assert read_blobs_table(store) == {
        "images/a.sif": Blob("images/a.sif", 10, SHA),
        "images/b.sif": Blob("images/b.sif", 0, None),
    }


def test_a_pool_without_the_table(tmp_path: Path) -> None:
    assert read_blobs_table(LocalStore(tmp_path)) == {}


def test_hashes_are_optional(tmp_path: Path) -> None:
    store = write(tmp_path, path=["a.sif"], size=[1])
    assert read_blobs_table(store) == {"a.sif": Blob("a.sif", 1, None)}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"path": ["../x"], "size": [1]}, r"row 0: the path '../x'"),
        ({"path": [".poolmgr/x"], "size": [1]}, "begins with a dot"),
        ({"path": [None], "size": [1]}, "None is no path"),
        ({"path": [7], "size": [1]}, "7 is no path"),
        ({"path": ["a", "a"], "size": [1, 1]}, "row 1: 'a' stands there twice"),
        ({"path": ["a"], "size": [-1]}, "-1 is no size"),
        ({"path": ["a"], "size": [1.5]}, "1.5 is no size"),
        ({"path": ["a"], "size": [True]}, "True is no size"),
        ({"path": ["a"], "size": pa.array([None], pa.int64())}, "None is no size"),
        ({"path": ["a"], "size": [1], "sha256": ["short"]}, "'short' is no sha256"),
        ({"path": ["a"], "size": [1], "sha256": [5]}, "5 is no sha256"),
        ({"path": ["a"]}, "lacks the column 'size'"),
        ({"name": ["a"]}, "lacks the column 'path', 'size'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    with pytest.raises(IndexInvalidError, match=words):
        read_blobs_table(write(tmp_path, **columns))


def test_every_bad_row_is_listed(tmp_path: Path) -> None:
    with pytest.raises(IndexInvalidError, match=r"\(and 2 more\)") as caught:
        read_blobs_table(write(tmp_path, path=["/a", "ok", "../b", "c/"], size=[1, 1, 1, 1]))
    assert len(caught.value.details) == 3


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" * 10, b"<html>", b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_what_is_no_parquet(tmp_path: Path, data: bytes) -> None:
    (tmp_path / TABLE_NAME).write_bytes(data)
    with pytest.raises(IndexInvalidError, match="not a Parquet table"):
        read_blobs_table(LocalStore(tmp_path))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_an_error_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    write(tmp_path, path=[f"images/{n}.sif" for n in range(50)], size=list(range(50)), sha256=[SHA] * 50)
    good = (tmp_path / TABLE_NAME).read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(1, len(good)))
    (tmp_path / TABLE_NAME).write_bytes(bytes(bad[:cut]))
    try:
        rows = read_blobs_table(LocalStore(tmp_path))
    except IndexInvalidError:
        return
    assert all(blob.size >= 0 and path == blob.path for path, blob in rows.items())


# --- bases -------------------------------------------------------------------------------------------


def test_bases_of_the_wanted_rows(tmp_path: Path) -> None:
    store = write(
        tmp_path,
        path=["a", "b", "c", "d"],
        size=[1, 1, 1, 1],
        base_sha256=[SHA, None, SHA, SHA],
        shared_ranges=["0+1", "0+1", None, "1+2@3"],
    )
    assert read_relatives(store, {"a", "b", "c"}) == {"a": Relative(SHA, "0+1")}


@pytest.mark.parametrize(
    "columns",
    [
        {"path": ["a"], "size": [1]},
        {"path": ["a"], "size": [1], "base_sha256": [SHA]},
        {"path": ["a"], "base_sha256": ["short"], "shared_ranges": ["0+1"]},
        {"path": ["a"], "base_sha256": [7], "shared_ranges": ["0+1"]},
        {"path": ["a"], "base_sha256": [SHA], "shared_ranges": [[1, 2]]},
        {"path": ["a"], "base_sha256": [SHA], "shared_ranges": [7]},
        {"path": ["a"], "base_sha256": [SHA], "shared_ranges": ["9" * (MAX_TEXT + 1)]},
        {"path": [None], "base_sha256": [SHA], "shared_ranges": ["0+1"]},
        {
            "path": pa.array([], pa.string()),
            "base_sha256": pa.array([], pa.string()),
            "shared_ranges": pa.array([], pa.string()),
        },
    ],
)
def test_rows_that_cannot_be_are_no_rows(tmp_path: Path, columns: dict[str, Any]) -> None:
    assert read_relatives(write(tmp_path, **columns), {"a"}) == {}


def test_a_long_text_that_many_rows_repeat_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_table, "MAX_SHARED", 10 * MAX_TEXT)
    rows = 500
    store = write(
        tmp_path,
        path=[f"{n}" for n in range(rows)],
        base_sha256=[SHA] * rows,
        shared_ranges=["9" * MAX_TEXT] * rows,
    )
    assert len(read_relatives(store, {f"{n}" for n in range(rows)})) == 10


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_to_bases_is_an_error_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    paths = [f"images/{n}.sif" for n in range(50)]
    write(tmp_path, path=paths, base_sha256=[SHA] * 50, shared_ranges=[f"{n}+9" for n in range(50)])
    good = (tmp_path / TABLE_NAME).read_bytes()
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / TABLE_NAME).write_bytes(bytes(bad[: data.draw(st.integers(1, len(good)))]))
    try:
        found = read_relatives(LocalStore(tmp_path), set(paths))
    except IndexInvalidError:
        return
    assert found.keys() <= set(paths)
