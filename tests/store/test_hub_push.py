"""Writing to a pool on the Hub: bytes first, one commit on a known parent, and a look at what it made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    CredentialsError,
    PoolChangedError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.store import hub_push
from tests.loopback.hub import Hub
from tests.loopback.repos import git_sha1
from tests.store.hub_kit import FILES, A, fill, hurry, store_of

NEW = {"task_to_blob.json": b'{"v": {"t": "images/new.sif"}}', "images/new.sif": b"new image" * 99}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def test_images_and_index_in_one_commit(hub: Hub, tmp_path: Path) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    (tmp_path / "new.sif").write_bytes(NEW["images/new.sif"])
    first = store.commit
    commit = store.commit_files({**NEW, "images/new.sif": tmp_path / "new.sif"}, message="Grow", parent=None)
    assert repo.refs["main"] == commit == store.commit != first
    assert repo.files() == {**FILES, **NEW}
    assert repo.commits[commit].parent == first
    assert repo.commits[commit].title == "Grow"
    assert "images/new.sif" in store.list().blobs


def test_put_never_replaces(hub: Hub) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    store.put("images/c.sif", b"c")
    assert repo.files()["images/c.sif"] == b"c"
    before = repo.refs["main"]
    with pytest.raises(AlreadyExistsError) as e:
        store.put("images/a.sif", b"another a")
    assert e.value.details == ("images/a.sif",)
    with pytest.raises(AlreadyExistsError):
        store.put("task_to_blob.json", b"{}")
    assert repo.refs["main"] == before
    assert repo.files()["images/a.sif"] == A


def test_commit_files_replaces_the_index_and_nothing_else(hub: Hub) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    with pytest.raises(AlreadyExistsError) as e:
        store.commit_files({**NEW, "images/a.sif": b"x", "README.md": b"y"}, message="m", parent=None)
    assert set(e.value.details) == {"images/a.sif", "README.md"}
    assert repo.files() == FILES
    assert not hub.requests(method="PUT")


def test_a_stale_parent_is_refused_and_nothing_is_committed(hub: Hub) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    stale = store.commit
    theirs = repo.add({"images/theirs.sif": b"theirs"})
    with pytest.raises(PoolChangedError, match="commit has happened since"):
        store.commit_files(NEW, message="m", parent=stale)
    assert repo.refs["main"] == theirs


@pytest.mark.parametrize(
    "fault",
    [{"apply_then_status": 500}, {"apply_then_status": 504}, {"status": 503}, {"drop": True}],
    ids=str,
)
def test_a_lost_answer_is_settled_by_the_head(hub: Hub, fault: dict[str, int]) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    hub.fault("/commit/main", **fault)
    commit = store.commit_files(NEW, message="m", parent=None)
    assert repo.refs["main"] == commit
    assert repo.files() == {**FILES, **NEW}
    assert len(repo.commits) == 3, "one commit, not two"


def test_a_lost_answer_with_a_head_that_lags_behind(hub: Hub) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    parent = store.commit
    hub.fault("/commit/main", apply_then_status=500)
    hub.fault("/revision/main", status=200, body=b'{"id":"acme/pool","sha":"%s"}' % parent.encode())
    commit = store.commit_files(NEW, message="m", parent=parent)
    assert repo.refs["main"] == commit
    assert len(repo.commits) == 3


def test_a_429_on_the_commit_is_waited_for(hub: Hub) -> None:
    fill(hub)
    store, told = store_of(hub)
    fault = hub.fault("/commit/main", status=429, headers={"Retry-After": "0"}, times=2)
    store.commit_files(NEW, message="m", parent=None)
    assert fault.hit == 2
    assert told


def test_tries_of_a_commit_are_bounded(hub: Hub) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    fault = hub.fault("/commit/main", status=503, times=None)
    with pytest.raises(RemoteTroubleError):
        store.commit_files(NEW, message="m", parent=None)
    assert fault.hit == hub_push.TRIES
    assert repo.files() == FILES


def test_a_403_is_final_and_in_the_servers_words(hub: Hub) -> None:
    fill(hub)
    words = "Your storage patterns tripped our internal systems"
    fault = hub.fault("/commit/main", status=403, headers={"X-Error-Message": words}, times=None)
    with pytest.raises(CredentialsError, match=words):
        store_of(hub)[0].commit_files(NEW, message="m", parent=None)
    assert fault.hit == 1


def test_writing_without_a_token_or_right(hub: Hub) -> None:
    fill(hub)
    hub.outsiders.add("hf_outsider")
    for token in (False, "hf_outsider"):
        with pytest.raises(CredentialsError):
            store_of(hub, token=token)[0].put("images/c.sif", b"c")


def test_a_gitignore_that_drops_a_file_is_found(hub: Hub) -> None:
    repo = fill(hub)
    before = repo.add({".gitignore": b"*.sif\n"})
    with pytest.raises(RemoteRefusedError, match=r"\.gitignore") as e:
        store_of(hub)[0].commit_files(NEW, message="m", parent=None)
    assert e.value.details == ("images/new.sif",)
    assert repo.refs["main"] == before, "an index without its image would break the pool for everyone"


def test_a_full_directory_is_refused_in_the_servers_words(hub: Hub) -> None:
    fill(hub).max_entries = 1
    with pytest.raises(RemoteRefusedError, match="too many files per directory"):
        store_of(hub)[0].put("images/c.sif", b"c")


def test_a_file_that_changes_while_it_is_uploaded(hub: Hub, tmp_path: Path) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    source = tmp_path / "new.sif"
    source.write_bytes(b"x" * 1000)
    preupload = store.client.api.preupload_lfs_files

    def slow(*args: object, **kwargs: object) -> None:
        preupload(*args, **kwargs)  # type: ignore[arg-type]
        source.write_bytes(b"y" * 1000)
        os.utime(source, ns=(1, 1))

    store.client.api.preupload_lfs_files = slow  # type: ignore[method-assign, assignment]
    with pytest.raises(BadFileError, match="changed"):
        store.put("images/new.sif", source)
    assert repo.files() == FILES


def test_a_source_that_is_not_there(hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    with pytest.raises(BadFileError, match="No such file"):
        store_of(hub)[0].put("images/new.sif", tmp_path / "none.sif")


def test_a_commit_cannot_be_written_to(hub: Hub) -> None:
    repo = fill(hub)
    store, _ = store_of(hub, revision=repo.refs["main"])
    with pytest.raises(RemoteRefusedError, match="cannot be written"):
        store.put("images/c.sif", b"c")


def test_a_pull_request_takes_commits(hub: Hub) -> None:
    repo = fill(hub)
    repo.refs["refs/pr/1"] = repo.refs["main"]
    store, _ = store_of(hub, revision="refs/pr/1")
    store.put("images/c.sif", b"c")
    assert "images/c.sif" in repo.files("refs/pr/1")
    assert "images/c.sif" not in repo.files()


def test_what_the_listing_says_after_a_commit_is_compared(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    row = b'[{"type":"file","path":"images/c.sif","size":1,"oid":"%s"}]' % git_sha1(b"x").encode()
    hub.fault("/paths-info/", skip=1, status=200, body=row)
    with pytest.raises(RemoteRefusedError, match="other bytes"):
        store.put("images/c.sif", b"c")


def test_uploading_an_unchanged_index_makes_no_commit(hub: Hub) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    head = repo.refs["main"]
    same = {"task_to_blob.json": FILES["task_to_blob.json"]}
    assert store.commit_files(same, message="m", parent=None) == head
    assert repo.refs["main"] == head
