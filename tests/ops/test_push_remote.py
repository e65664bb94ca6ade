"""Pushing to fsspec stores (S3 by moto, memory): one writer, and another's change is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poolmgr.errors import BadFileError, CredentialsError, PoolChangedError, PushRefusedError
from poolmgr.model.manifest import Manifest
from poolmgr.ops import push_remote
from poolmgr.ops.audit import Request as AuditRequest
from poolmgr.ops.audit import audit
from poolmgr.ops.push_edit import Edit
from poolmgr.ops.view import PoolView
from poolmgr.store import remote, remote_write
from tests.ops.push_kit import batch, image, name_of, push, run_of, table_of
from tests.store.places import S3, Memory, Place, s3, s3_server

__all__ = ["s3", "s3_server"]


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    made: Place = Memory() if request.param == "memory" else request.getfixturevalue("s3")
    return made


def view_of(place: Place) -> PoolView:
    store = place.store()
    return PoolView(store.address, store, Manifest())


def index_of(place: Place) -> dict[str, dict[str, str]]:
    index: dict[str, dict[str, str]] = json.loads(place.files()["task_to_blob.json"])
    return index


def test_a_new_pool_and_what_is_there_again(place: Place, tmp_path: Path) -> None:
    new = batch(tmp_path / "new", 1, 2)
    push(view_of(place), new)
    assert sorted(place.files()) == [
        "blobs.parquet", f"images/{name_of(1)}", f"images/{name_of(2)}", "task_to_blob.json",
    ]  # fmt: skip
    assert place.files()[f"images/{name_of(1)}"] == image(1)
    assert not push(view_of(place), new).written
    push(view_of(place), batch(tmp_path / "more", 3), variant="w")
    assert set(index_of(place)) == {"v", "w"}
    assert len(table_of(place.files()["blobs.parquet"])) == 3
    edit = Edit(view_of(place), "v")
    edit.carry_out(edit.retraction(["task_1"]), "message")
    assert set(index_of(place)["v"]) == {"task_2"}


def test_blobs_that_an_interrupted_push_left(place: Place, tmp_path: Path) -> None:
    place.fill({f"images/{name_of(1)}": image(1)})
    done = push(view_of(place), batch(tmp_path / "new", 1, 2))
    assert list(done.uploaded) == [f"images/{name_of(2)}"]
    assert set(index_of(place)["v"]) == {"task_1", "task_2"}
    with pytest.raises(PushRefusedError, match="with other bytes"):
        push(view_of(place), batch(tmp_path / "other", 2, version="2"), variant="w")


def test_audit_compares_sizes_with_what_push_recorded(place: Place, tmp_path: Path) -> None:
    push(view_of(place), batch(tmp_path / "new", 1, 2))
    good = audit(view_of(place), AuditRequest(), lambda address: [])
    assert good.passed
    place.fill({f"images/{name_of(1)}": image(1)[:-1]})
    bad = audit(view_of(place), AuditRequest(), lambda address: [])
    assert not bad.passed
    assert {p: [f.code for f in i.findings] for p, i in bad.images.items() if i.findings} == {
        f"images/{name_of(1)}": ["wrong-size"]
    }


@pytest.mark.parametrize("what", ["task_to_blob.json", f"images/{name_of(1)}"])
def test_a_change_by_another_is_refused(place: Place, tmp_path: Path, what: str) -> None:
    push(view_of(place), batch(tmp_path / "old", 7), variant="old")
    run = run_of(view_of(place), batch(tmp_path / "new", 1))
    plan = run.plan()
    theirs = b'{"theirs": {"t": "images/x.sif"}}' if what.endswith(".json") else image(9)
    place.fill({what: theirs})
    with pytest.raises(PoolChangedError, match="somebody else"):
        run.carry_out(plan)
    assert place.files()[what] == theirs, "left as it is"
    assert "v" not in index_of(place)


def test_a_change_in_the_very_same_moment_is_noticed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(view_of(place), batch(tmp_path / "old", 7), variant="old")
    real, looks = remote_write.current, []

    def looking(store: remote.RemoteStore, path: str, limit: int) -> bytes | None:
        if path == "task_to_blob.json":
            looks.append(path)
            if len(looks) == 2:  # ours is written, and is about to be read again
                place.fill({path: b"{}"})
        return real(store, path, limit)

    monkeypatch.setattr(remote_write, "current", looking)
    with pytest.raises(PoolChangedError, match="in the same moment"):
        push(view_of(place), batch(tmp_path / "new", 1))


def test_a_file_that_changes_while_it_is_sent_does_not_stay(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = batch(tmp_path / "new", 1)
    real, calls = push_remote.fingerprint, []

    def second_time_other(path: Path, key: str) -> str:
        calls.append(key)
        return real(path, key) if len(calls) == 1 else "0" * 32

    monkeypatch.setattr(push_remote, "fingerprint", second_time_other)
    with pytest.raises(BadFileError, match="changed"):
        push(view_of(place), new)
    assert not [path for path in place.files() if path.endswith(".sif")]


def test_no_right_to_write_is_noticed_before_anything(s3: S3, tmp_path: Path) -> None:
    view = view_of(s3)

    def denied(*args: object, **kwargs: object) -> None:
        raise PermissionError("Access Denied")

    view.store._fs.pipe_file = denied  # type: ignore[attr-defined]
    with pytest.raises(CredentialsError, match="Access Denied"):
        push(view, "/no/such/file.sif")
    assert not s3.files()
