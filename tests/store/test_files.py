"""Durable files: whole or not there, never over another, and every refusal in words."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from poolmgr.errors import AlreadyExistsError, DestinationError, Exit, NoSpaceError
from poolmgr.store import files
from poolmgr.store.files import (
    create_durable,
    destination_error,
    make_dirs,
    mapped_os_errors,
    publish,
    publish_durable,
    publish_folder_durable,
    replace,
    write_durable,
)
from tests.conftest import ROOT


def entries(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_write_replaces_and_create_does_not(tmp_path: Path) -> None:
    file = tmp_path / "lock.json"
    write_durable(file, b"one")
    write_durable(file, b"two")
    assert file.read_bytes() == b"two"
    with pytest.raises(AlreadyExistsError, match=r"lock\.json"):
        create_durable(file, b"three")
    assert file.read_bytes() == b"two"
    assert entries(tmp_path) == ["lock.json"]


def test_the_umask_decides_the_mode(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_durable(tmp_path / "a", b"")
        create_durable(tmp_path / "b", b"", mode=0o600)
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600


def test_publish_takes_a_free_name_only(tmp_path: Path) -> None:
    temp, final = tmp_path / "temp", tmp_path / "final"
    temp.write_bytes(b"new")
    publish(temp, final)
    assert entries(tmp_path) == ["final"]
    temp.write_bytes(b"newer")
    with pytest.raises(AlreadyExistsError):
        publish_durable(temp, final)
    assert final.read_bytes() == b"new"
    assert temp.read_bytes() == b"newer"
    replace(temp, final)
    assert final.read_bytes() == b"newer"
    assert entries(tmp_path) == ["final"]


def test_publish_does_not_follow_or_replace_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "final").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "temp").write_bytes(b"x")
    with pytest.raises(AlreadyExistsError):
        publish(tmp_path / "temp", tmp_path / "final")
    assert entries(tmp_path) == ["final", "temp"]


def test_a_link_that_was_answered_twice_counts_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS server that loses its first answer says EEXIST of the link it made itself."""
    real = os.link

    def twice(a: Path, b: Path) -> None:
        real(a, b)
        real(a, b)

    monkeypatch.setattr(os, "link", twice)
    (tmp_path / "temp").write_bytes(b"x")
    publish(tmp_path / "temp", tmp_path / "final")
    assert entries(tmp_path) == ["final"]


@pytest.mark.parametrize("renameat2", [True, False], ids=["renameat2", "claim"])
def test_a_filesystem_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renameat2: bool) -> None:
    def no_links(a: Path, b: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    if not renameat2:
        monkeypatch.setattr(files, "_renameat2", lambda: None)
    temp, final = tmp_path / "temp", tmp_path / "final"
    temp.write_bytes(b"first")
    publish(temp, final)
    assert final.read_bytes() == b"first"
    assert entries(tmp_path) == ["final"]
    temp.write_bytes(b"second")
    with pytest.raises(AlreadyExistsError):
        publish(temp, final)
    assert final.read_bytes() == b"first"
    assert entries(tmp_path) == ["final", "temp"]


@pytest.mark.parametrize("renameat2", [True, False], ids=["renameat2", "claim"])
@pytest.mark.parametrize("taken", ["an empty folder", "a full folder", "a file", "a dangling link"])
def test_a_folder_takes_a_free_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renameat2: bool, taken: str
) -> None:
    if not renameat2:
        monkeypatch.setattr(files, "_renameat2", lambda: None)
    temp, final = tmp_path / "temp", tmp_path / "final"
    (temp / "deep").mkdir(parents=True)
    (temp / "deep" / "file").write_bytes(b"new")
    if taken == "a file":
        final.write_bytes(b"old")
    elif taken == "a dangling link":
        final.symlink_to("nowhere")
    else:
        final.mkdir()
        if taken == "a full folder":
            (final / "old").write_bytes(b"old")
    before = [os.lstat(final), *sorted(final.rglob("*"))]
    with pytest.raises(AlreadyExistsError, match="final"):
        publish_folder_durable(temp, final)
    assert [os.lstat(final), *sorted(final.rglob("*"))] == before
    publish_folder_durable(temp, tmp_path / "free")
    assert (tmp_path / "free" / "deep" / "file").read_bytes() == b"new"
    assert entries(tmp_path) == ["final", "free"]


@pytest.mark.parametrize("way", ["link", "renameat2", "claim"])
def test_of_many_writers_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way != "link":

        def no_links(a: Path, b: Path) -> None:
            raise OSError(errno.EOPNOTSUPP, "no links here")

        monkeypatch.setattr(os, "link", no_links)
    if way == "claim":
        monkeypatch.setattr(files, "_renameat2", lambda: None)
    won: list[int] = []
    start = threading.Barrier(8)

    def write(n: int) -> None:
        start.wait()
        try:
            create_durable(tmp_path / "final", bytes([n]) * 100_000)
            won.append(n)
        except AlreadyExistsError:
            pass

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "final").read_bytes() == bytes(won) * 100_000
    assert entries(tmp_path) == ["final"]


def test_a_failed_write_leaves_the_old_file_and_no_temp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    write_durable(file, b"old")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NoSpaceError, match="full"):
        write_durable(file, b"new")
    monkeypatch.undo()
    assert file.read_bytes() == b"old"
    assert entries(tmp_path) == ["f"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    write_durable(tmp_path / "f", b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"0123456789"


def test_everything_is_put_on_disk_before_and_after_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        real_fsync(fd)

    def rename(a: Path, b: Path) -> None:
        order.append("name")
        real_replace(a, b)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    write_durable(tmp_path / "f", b"x")
    assert order == ["file", "name", "folder"]


def test_a_killed_writer_leaves_the_old_bytes_or_the_new(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_durable(file, b"0" * 200_000)
    code = (
        "import sys, itertools; from poolmgr.store.files import write_durable\n"
        "print('go', flush=True)\n"
        "for n in itertools.cycle(range(10)): write_durable(sys.argv[1], b'%d' % n * 200_000)\n"
    )
    for delay in (0.0, 0.01, 0.03, 0.05):
        child = subprocess.Popen([sys.executable, "-c", code, str(file)], cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        data = file.read_bytes()
        assert len(data) == 200_000
        assert len(set(data)) == 1


def test_make_dirs_through_a_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DestinationError, match="file, not a folder"):
        make_dirs(tmp_path / "file" / "below")
    make_dirs(tmp_path / "a" / "b" / "c")
    make_dirs(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, NoSpaceError, "full"),
        (errno.EDQUOT, NoSpaceError, "quota"),
        (errno.EFBIG, NoSpaceError, "larger"),
        (errno.EROFS, DestinationError, "read-only"),
        (errno.EACCES, DestinationError, "may not write"),
        (errno.ENOTDIR, DestinationError, "not a folder"),
        (errno.EXDEV, DestinationError, "different filesystems"),
        (errno.ENOENT, DestinationError, "does not exist"),
        (errno.ENAMETOOLONG, DestinationError, "too long"),
        (errno.EEXIST, AlreadyExistsError, "taken"),
        (errno.ESTALE, DestinationError, "Stale"),
    ],
)
def test_each_failure_says_what_where_and_what_next(number: int, kind: type[Exception], words: str) -> None:
    error = destination_error(OSError(number, os.strerror(number)), "write", "/data/pool/x.sif")
    assert type(error) is kind
    assert words in error.message
    assert "/data/pool/x.sif" in error.message
    assert error.hint or number == errno.ESTALE
    assert error.exit is Exit.ERROR


def test_other_errors_pass_through() -> None:
    with pytest.raises(ValueError, match="mine"), mapped_os_errors("x"):
        raise ValueError("mine")


def mounted(tmp_path: Path, options: str) -> Path:
    """A tmpfs of our own, or a skip where this user may not mount."""
    place = tmp_path / "mnt"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(place)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs (root)")
    return place


def test_a_full_filesystem_keeps_the_old_file(tmp_path: Path) -> None:
    place = mounted(tmp_path, "size=256k")
    try:
        write_durable(place / "f", b"old")
        with pytest.raises(NoSpaceError, match="full"):
            write_durable(place / "f", b"n" * 1_000_000)
        with pytest.raises(NoSpaceError, match="full"):
            create_durable(place / "g", b"n" * 1_000_000)
        assert (place / "f").read_bytes() == b"old"
        assert entries(place) == ["f"]
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_filesystem_and_another_one(tmp_path: Path) -> None:
    place = mounted(tmp_path, "size=256k")
    try:
        (tmp_path / "temp").write_bytes(b"x")
        with pytest.raises(DestinationError, match="different filesystems"):
            publish(tmp_path / "temp", place / "final")
        with pytest.raises(DestinationError, match="different filesystems"):
            replace(tmp_path / "temp", place / "final")
        assert (tmp_path / "temp").exists()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with pytest.raises(DestinationError, match="read-only"):
            write_durable(place / "f", b"x")
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_swap_only_what_is_expected(tmp_path: Path) -> None:
    file = tmp_path / "index"
    assert files.swap_durable(file, b"1", None)
    assert not files.swap_durable(file, b"2", None), "it is there already"
    assert not files.swap_durable(file, b"2", b"other")
    assert file.read_bytes() == b"1"
    assert files.swap_durable(file, b"2", b"1")
    assert file.read_bytes() == b"2"
    file.unlink()
    assert not files.swap_durable(file, b"3", b"2"), "it is gone"
    assert os.listdir(tmp_path) == []


def test_swap_notices_a_writer_in_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "index"
    file.write_bytes(b"1")
    real, calls = files._exchange, []

    def late(one: Path, other: Path) -> bool:
        if not calls:
            file.write_bytes(b"theirs")  # after our look, before our rename
        calls.append(one)
        return real(one, other)

    monkeypatch.setattr(files, "_exchange", late)
    assert not files.swap_durable(file, b"2", b"1")
    assert file.read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["index"]


def test_swap_on_a_filesystem_that_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    file = tmp_path / "index"
    file.write_bytes(b"1")
    assert files.swap_durable(file, b"2", b"1")
    assert not files.swap_durable(file, b"3", b"1")
    assert file.read_bytes() == b"2"
