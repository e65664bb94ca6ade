"""A folder as a store: links, hostile names, rights, and changes under the walk."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    FileMissingError,
    PoolNotFoundError,
    UnsafePathError,
)
from poolmgr.store.local import LocalStore
from poolmgr.temporary import TEMP_PREFIX
from tests.conftest import ROOT


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    root = tmp_path / "pool"
    (root / "images").mkdir(parents=True)
    (root / "images/a.sif").write_bytes(b"aaaa")
    return root


def troubles(root: Path) -> dict[str, str | None]:
    return {path: blob.trouble for path, blob in LocalStore(root).list().blobs.items()}


def test_links_inside_are_files_and_the_rest_has_its_trouble(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.sif").write_bytes(b"outside")
    (tmp_path / "outdir").mkdir()
    (tmp_path / "outdir/x.sif").write_bytes(b"x")
    for name, target in {
        "inside.sif": "a.sif",
        "chain.sif": "inside.sif",
        "gone.sif": "nowhere.sif",
        "self.sif": "self.sif",
        "out.sif": str(tmp_path / "outside.sif"),
        "outdir": str(tmp_path / "outdir"),
        "through": "../../outdir/x.sif",
    }.items():
        (pool / "images" / name).symlink_to(target)
    assert troubles(pool) == {
        "images/a.sif": None,
        "images/inside.sif": None,
        "images/chain.sif": None,
        "images/gone.sif": "dangling-link",
        "images/self.sif": "dangling-link",
        "images/out.sif": "outward-link",
        "images/outdir": "outward-link",
        "images/through": "outward-link",
    }
    store = LocalStore(pool)
    assert store.list().blobs["images/chain.sif"].size == 4
    assert store.read("images/chain.sif", limit=10) == b"aaaa"


def test_reading_never_leaves_the_pool(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (pool / "images/out.sif").symlink_to(tmp_path / "secret")
    (pool / "away").symlink_to(tmp_path)
    (tmp_path / "pool2").mkdir()
    (tmp_path / "pool2/x").write_bytes(b"neighbour")
    (pool / "near").symlink_to(tmp_path / "pool2")
    store = LocalStore(pool)
    for path in ("images/out.sif", "away/secret", "near/x"):
        with pytest.raises(UnsafePathError):
            store.read(path, limit=100)
        with pytest.raises(UnsafePathError):
            store.read_range(path, 0, 10)
        with pytest.raises(UnsafePathError), store.stream(path):
            pass
    for path in ("away/new.sif", "near/sub/new.sif"):
        with pytest.raises(UnsafePathError):
            store.put(path, b"x")
    assert not (tmp_path / "new.sif").exists()
    assert sorted(os.listdir(tmp_path / "pool2")) == ["x"]


def test_a_linked_directory_inside_is_listed_and_read_under_both_names(pool: Path) -> None:
    (pool / "images_b00").symlink_to("images")
    listing = LocalStore(pool).list()
    assert set(listing.blobs) == {"images/a.sif", "images_b00/a.sif"}
    assert listing.directories == {"images", "images_b00"}
    assert LocalStore(pool).read("images_b00/a.sif", limit=10) == b"aaaa"


def test_links_in_circles_end(pool: Path) -> None:
    (pool / "images/up").symlink_to("..")
    (pool / "images/here").symlink_to(".")
    (pool / "x").mkdir()
    (pool / "y").mkdir()
    (pool / "x/y").symlink_to("../y")
    (pool / "y/x").symlink_to("../x")
    (pool / "deep/er").mkdir(parents=True)
    (pool / "deep/er/back").symlink_to("../../deep")
    assert set(LocalStore(pool).list().blobs) == {"images/a.sif"}


def test_links_that_multiply_end_in_an_error(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poolmgr.store.local.MAX_LISTED", 5000)
    for level in range(30):
        folder = pool / f"d{level}"
        folder.mkdir()
        for name in ("p", "q"):
            (folder / name).symlink_to(f"../d{level + 1}")
    with pytest.raises(PoolNotFoundError, match="more than 5,000 entries"):
        LocalStore(pool).list()


def test_a_pool_may_itself_be_a_link(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pool)
    (pool / "images/l.sif").symlink_to(pool / "images/a.sif")
    store = LocalStore(tmp_path / "link")
    assert {p: b.trouble for p, b in store.list().blobs.items()} == {
        "images/a.sif": None,
        "images/l.sif": None,
    }
    assert store.read("images/l.sif", limit=10) == b"aaaa"


def test_what_is_no_file_is_listed_so_and_never_waited_for(pool: Path) -> None:
    os.mkfifo(pool / "images/pipe.sif")
    listener = socket.socket(socket.AF_UNIX)
    cwd = os.getcwd()
    try:
        os.chdir(pool / "images")  # a socket's path may have 107 bytes
        listener.bind("socket.sif")
    finally:
        os.chdir(cwd)
    assert troubles(pool) == {
        "images/a.sif": None,
        "images/pipe.sif": "not-a-file",
        "images/socket.sif": "not-a-file",
    }
    for name in ("pipe", "socket"):
        with pytest.raises(BadFileError):
            LocalStore(pool).read(f"images/{name}.sif", limit=10)
    listener.close()


def test_hostile_names_are_refused_and_printable(pool: Path) -> None:
    images = os.fsencode(pool / "images")
    for name in (b"bad\xff.sif", b"new\nline.sif", b"back\\slash.sif", b"esc\x1b[31m.sif"):
        with open(os.path.join(images, name), "wb"):
            pass
    os.mkdir(os.path.join(images, b"dir\xfe"))
    listing = LocalStore(pool).list()
    assert set(listing.blobs) == {"images/a.sif"}
    refused = dict(listing.refused)
    assert set(refused) == {
        "images/bad\\xff.sif", "images/new\\nline.sif", "images/back\\slash.sif", "images/esc\\x1b[31m.sif",
        "images/dir\\xfe",
    }  # fmt: skip
    assert all(path.isprintable() for path in refused)
    assert refused["images/bad\\xff.sif"] == "is not valid Unicode"


def test_entries_count_what_a_push_would_carry(pool: Path) -> None:
    (pool / ".poolmgr").mkdir()
    (pool / "task_to_blob.json").write_bytes(b"{}")
    (pool / ".gitattributes").write_bytes(b"")
    (pool / "images/.hidden").write_bytes(b"")
    (pool / f"images/{TEMP_PREFIX}1-ab").write_bytes(b"")
    (pool / "empty").mkdir()
    listing = LocalStore(pool).list()
    assert listing.entries == {"": 4, "images": 2, "empty": 0}
    assert set(listing.blobs) == {"images/a.sif"}


def test_what_an_ordinary_user_may_not_read(pool: Path, tmp_path: Path) -> None:
    (pool / "images/shut.sif").write_bytes(b"shut")
    (pool / "images/shut.sif").chmod(0o200)
    (pool / "locked").mkdir()
    (pool / "locked/x.sif").write_bytes(b"x")
    (pool / "locked").chmod(0o000)
    code = (
        "import os, sys, json\n"
        "from poolmgr.store.local import LocalStore\n"
        "from poolmgr.errors import BadFileError, FileMissingError\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "store = LocalStore(sys.argv[1])\n"
        "told = {p: [b.size, b.trouble] for p, b in store.list().blobs.items()}\n"
        "for path in ('images/shut.sif', 'locked/x.sif'):\n"
        "    try: store.read(path, limit=10)\n"
        "    except FileMissingError: told[path + ' read'] = 'missing'\n"
        "    except BadFileError: told[path + ' read'] = 'bad'\n"
        "print(json.dumps(told))\n"
    )
    for folder in (pool, *pool.parents):
        if folder.stat().st_uid == os.geteuid() and Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, str(pool)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    (pool / "locked").chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "images/a.sif": [4, None],
        "images/shut.sif": [4, "unreadable"],
        "locked": [0, "unreadable"],
        "images/shut.sif read": "bad",
        "locked/x.sif read": "bad",
    }


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(PoolNotFoundError, match="no such folder"):
        LocalStore(tmp_path / "none").list()
    (tmp_path / "f.sif").write_bytes(b"")
    with pytest.raises(PoolNotFoundError, match="is a file"):
        LocalStore(tmp_path / "f.sif").list()


def test_a_dangling_link_is_not_called_missing(pool: Path) -> None:
    (pool / "images/gone.sif").symlink_to("nowhere")
    with pytest.raises(BadFileError, match="leads nowhere") as caught:
        LocalStore(pool).read("images/gone.sif", limit=10)
    assert not isinstance(caught.value, FileMissingError)


def test_put_leaves_nothing_behind_when_its_source_fails(pool: Path, tmp_path: Path) -> None:
    store = LocalStore(pool)
    with pytest.raises(BadFileError):
        store.put("new/x.sif", tmp_path / "none")
    source = tmp_path / "source"
    source.write_bytes(b"bytes")
    with pytest.raises(AlreadyExistsError):
        store.put("images/a.sif", source)
    assert os.listdir(pool / "new") == []
    assert os.listdir(pool / "images") == ["a.sif"]


def test_put_refuses_a_source_that_changes_meanwhile(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "growing.sif"
    source.write_bytes(b"x" * 1000)
    from poolmgr.store import local

    real = local.write_all

    def slow(fd: int, data: bytes) -> None:
        real(fd, data)
        with source.open("ab") as more:
            more.write(b"y")
        os.utime(source, ns=(1, 1))

    monkeypatch.setattr(local, "CHUNK", 400)
    monkeypatch.setattr(local, "write_all", slow)
    with pytest.raises(BadFileError, match="changed while"):
        LocalStore(pool).put("images/b.sif", source)
    assert os.listdir(pool / "images") == ["a.sif"]


def test_a_put_file_is_readable_by_the_group(pool: Path) -> None:
    old = os.umask(0o022)
    try:
        LocalStore(pool).put("images/b.sif", b"b")
    finally:
        os.umask(old)
    assert (pool / "images/b.sif").stat().st_mode & 0o777 == 0o644
