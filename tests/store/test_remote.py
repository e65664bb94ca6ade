"""fsspec URLs: nothing stale, no race lost, every failure of the backend in words without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    CredentialsError,
    PoolNotFoundError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.store import remote
from poolmgr.store.remote import RemoteStore
from tests.store.places import S3, Memory


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)


@pytest.fixture
def memory() -> Memory:
    place = Memory()
    place.fill({"images/a.sif": b"0123456789"})
    return place


def test_s3_itself_refuses_a_taken_name(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The look before the put can come too early; If-None-Match cannot."""
    s3.fill({"images/a.sif": b"first"})
    store = s3.store()
    assert isinstance(store, RemoteStore)
    monkeypatch.setattr(type(store._fs), "exists", lambda *a, **k: False)
    (tmp_path / "b").write_bytes(b"second")
    for source in (b"second", tmp_path / "b"):
        with pytest.raises(AlreadyExistsError):
            store.put("images/a.sif", source)
    assert s3.files()["images/a.sif"] == b"first"


def test_a_large_file_goes_up_in_parts(s3: S3, tmp_path: Path) -> None:
    data = bytes(range(256)) * (48 << 12)
    (tmp_path / "big").write_bytes(data * 3)
    store = s3.store()
    store.put("images/big.sif", tmp_path / "big")
    with store.stream("images/big.sif", 100) as body:
        assert b"".join(body) == (data * 3)[100:]


def test_listings_are_asked_for_anew_and_paged(s3: S3) -> None:
    store = s3.store()
    s3.fill({f"images/{n:04}.sif": b"x" for n in range(1203)})
    assert len(store.list().blobs) == 1203
    s3.client.delete_object(Bucket="pools", Key="acme/images/0000.sif")
    s3.fill({"images/0001.sif": b"longer"})
    listing = store.list()
    assert len(listing.blobs) == 1202
    assert listing.blobs["images/0001.sif"].size == 6
    assert listing.entries["images"] == 1202


def test_a_size_that_was_seen_is_not_believed_later(s3: S3) -> None:
    s3.fill({"images/a.sif": b"short"})
    store = s3.store()
    assert isinstance(store, RemoteStore)
    store.list()
    store._fs.ls(store._root + "/images")  # what any other user of the same filesystem object may do
    s3.fill({"images/a.sif": b"rather longer"})
    assert store.read("images/a.sif", limit=100) == b"rather longer"


def test_no_bucket_no_pool_no_rights(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PoolNotFoundError, match="s3://pools/nothing"):
        RemoteStore("s3://pools/nothing").list()
    with pytest.raises(PoolNotFoundError, match="s3://nobucket/x"):
        RemoteStore("s3://nobucket/x").list()
    store = s3.store()
    assert isinstance(store, RemoteStore)

    def denied(*args: object, **kwargs: object) -> Any:
        raise PermissionError("Access Denied for an-access-key")

    monkeypatch.setattr(store._fs, "find", denied)
    with pytest.raises(CredentialsError, match="Access Denied"):
        store.list()


def test_no_credentials_at_all(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CredentialsError):
        RemoteStore("s3://pools/acme").list()


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(remote, "TRIES", 1)
    with pytest.raises(RemoteTroubleError):
        RemoteStore("s3://pools/acme").list()


def test_passing_trouble_is_tried_again_and_told(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    store = RemoteStore("memory://pool", on_retry=told.append)
    real, fail = store._fs.cat_file, [ConnectionResetError("reset"), TimeoutError("slow")]

    def flaky(*args: Any, **kwargs: Any) -> Any:
        if fail:
            raise fail.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(store._fs, "cat_file", flaky)
    assert store.read("images/a.sif", limit=100) == b"0123456789"
    assert len(told) == 2
    fail[:] = [ConnectionResetError("reset")] * 3
    with pytest.raises(RemoteTroubleError, match="reset"):
        store.read_range("images/a.sif", 0, 4)


def test_a_server_that_ignores_ranges(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RemoteStore("memory://pool")
    monkeypatch.setattr(store._fs, "cat_file", lambda *a, **k: b"0123456789")
    assert store.read_range("images/a.sif", 3, 4) == b"3456"
    monkeypatch.setattr(store._fs, "cat_file", lambda *a, **k: b"<html>a page</html>")
    with pytest.raises(RemoteTroubleError, match="19 bytes came of 4"):
        store.read_range("images/a.sif", 3, 4)


def test_a_cut_answer_is_no_answer(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RemoteStore("memory://pool")
    monkeypatch.setattr(store._fs, "cat_file", lambda *a, **k: b"01")
    with pytest.raises(RemoteTroubleError, match="2 bytes came of 10"):
        store.read("images/a.sif", limit=100)


@pytest.mark.parametrize("size", [None, -1, "12", True])
def test_a_listing_without_sizes_is_refused_by_name(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, size: object
) -> None:
    store = RemoteStore("memory://pool")
    row = {"/pool/images/a.sif": {"name": "/pool/images/a.sif", "type": "file", "size": size}}
    monkeypatch.setattr(store._fs, "find", lambda *a, **k: row)
    listing = store.list()
    assert listing.blobs == {}
    assert listing.refused == (("images/a.sif", "is listed without its size"),)


def test_no_secret_in_an_error(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RemoteStore("memory://pool")

    def leaky(*args: object, **kwargs: object) -> Any:
        raise ValueError("GET https://me:hunter2@host/x?X-Amz-Signature=hunter3 failed\nsecond line hunter4")

    monkeypatch.setattr(store._fs, "cat_file", leaky)
    with pytest.raises(RemoteRefusedError) as caught:
        store.read_range("images/a.sif", 0, 4)
    assert "hunter" not in caught.value.message
    assert caught.value.__cause__ is None


def test_a_source_that_changes_while_it_is_sent(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "x.sif"
    source.write_bytes(b"12345")
    store = RemoteStore("memory://pool")
    real = store._fs.put_file

    def grow(*args: Any, **kwargs: Any) -> Any:
        source.write_bytes(b"1234567")
        return real(*args, **kwargs)

    monkeypatch.setattr(store._fs, "put_file", grow)
    with pytest.raises(BadFileError, match="7 bytes arrived of 5"):
        store.put("images/x.sif", source)
