"""Locks: written and read back, and refused when they are anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from poolmgr.errors import MirrorInvalidError
from poolmgr.model.blob import Blob
from poolmgr.model.lock import Lock

LOCK = Lock(
    variant="solvable",
    source="hf://datasets/acme/pool",
    commit="a" * 40,
    manifest="schema = 1\n",
    tasks={"t1": "images/a.sif", "t2": "images/a.sif", "t3": "images_b00/b.sif"},
    total_tasks=5,
    blobs={
        "images/a.sif": Blob("images/a.sif", 10, "ab" * 32),
        "images_b00/b.sif": Blob("images_b00/b.sif", 3),
    },
    time=12.5,
)


def test_a_lock_comes_back_as_it_was_written() -> None:
    for lock in (LOCK, replace(LOCK, complete=False, commit=None, manifest=""), replace(LOCK, total_tasks=3)):
        assert Lock.parse(lock.to_bytes(), "x") == lock
    assert LOCK.subset
    assert not replace(LOCK, total_tasks=3).subset


def change(**what: Any) -> bytes:
    return json.dumps({**json.loads(LOCK.to_bytes()), **what}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b"\xff", b"[" * 50_000,
        change(schema=2), change(kind="x"), change(variant=3), change(tasks={}), change(tasks={"t": 1}),
        change(tasks=[]), change(blobs=[]), change(blobs={"a": 3}), change(blobs={"a": [1]}),
        change(blobs={"../a": [1, None]}), change(blobs={"a": [-1, None]}), change(blobs={"a": [True, None]}),
        change(blobs={"a": ["1", None]}), change(blobs={"a": [1, "short"]}), change(blobs={"a": [1, 7]}),
        change(total_tasks="x"), change(total_tasks=None), change(total_tasks=2), change(total_tasks=True),
        change(time=None), change(commit=5), change(complete="no"), change(source=None),
        change(manifest=None),
    ],
)  # fmt: skip
def test_what_is_no_lock(data: bytes) -> None:
    with pytest.raises(MirrorInvalidError, match="the lock of x") as caught:
        Lock.parse(data, "the lock of x")
    assert "fetch" in caught.value.hint


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", ".poolmgr/x", "a\\b"])
def test_an_unsafe_path_is_refused(path: str) -> None:
    with pytest.raises(MirrorInvalidError):
        Lock.parse(change(tasks={"t": path}), "x")


def test_a_complete_lock_has_a_blob_for_every_task() -> None:
    with pytest.raises(MirrorInvalidError, match=r"images_b00/b\.sif"):
        Lock.parse(change(blobs={"images/a.sif": [10, "ab" * 32]}), "x")
    assert not Lock.parse(change(blobs={"images/a.sif": [10, "ab" * 32]}, complete=False), "x").complete
