"""Durable files: whole or not there at all, never over another file unless that was asked for.

Everything that poolmgr writes goes through here: a temporary file in the target's own folder,
fsync of the file, a link or a rename, fsync of the folder. An ``OSError`` becomes an error that
names the place and what to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from poolmgr.errors import AlreadyExistsError, DestinationError, NoSpaceError, PoolError
from poolmgr.temporary import temp_name

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
_NO_FSYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_RENAME_EXCHANGE = 2

_WHY: dict[int, tuple[str, str]] = {
    errno.EROFS: ("the filesystem is read-only", "choose a folder on a filesystem that can be written"),
    errno.EACCES: ("this user may not write there", "choose another folder, or ask its owner for the right"),
    errno.EPERM: ("this user may not do that there", "choose another folder, or ask its owner for the right"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "give the path of a folder"),
    errno.EISDIR: ("the path is a folder", "give the path of a file"),
    errno.ENOENT: ("the folder does not exist", "make the folder first, or correct the path"),
    errno.EXDEV: (
        "the two names lie on different filesystems",
        "a file gets its name by a link or a rename, which cannot cross filesystems: "
        "use a folder that is one filesystem throughout",
    ),
    errno.ENAMETOOLONG: ("the name is too long for the filesystem", "use a shorter path"),
    errno.ELOOP: ("symbolic links lead round in a circle", "correct the links"),
    errno.EIO: ("the device reported an input/output error", "look at the device or the file server"),
}


def destination_error(error: OSError, doing: str, where: str | os.PathLike[str]) -> PoolError:
    """What ``error`` means for a user who wanted to do ``doing`` (``write``, ``make``) at ``where``."""
    place = os.fspath(where)
    number = error.errno or 0
    if number == errno.ENOSPC:
        return NoSpaceError(
            f"cannot {doing} {place}: the filesystem is full",
            hint="make room (blocks or inodes: df, df -i) or choose another filesystem; then run it again",
        )
    if number == errno.EDQUOT:
        return NoSpaceError(
            f"cannot {doing} {place}: the disk quota is used up",
            hint="free some of it (quota -s, lfs quota: per user, group or project) or choose another place",
        )
    if number == errno.EFBIG:
        return NoSpaceError(
            f"cannot {doing} {place}: the file is larger than the filesystem or ulimit -f allows",
            hint="choose a filesystem without that limit",
        )
    if number == errno.EEXIST:
        return AlreadyExistsError(f"cannot {doing} {place}: the name is taken", hint="nothing is overwritten")
    why, hint = _WHY.get(number, (error.strerror or type(error).__name__, ""))
    return DestinationError(f"cannot {doing} {place}: {why}", hint=hint)


@contextlib.contextmanager
def mapped_os_errors(where: str | os.PathLike[str], doing: str = "write") -> Iterator[None]:
    """Turn an ``OSError`` of the block into the error of ``destination_error``."""
    try:
        yield
    except OSError as e:
        raise destination_error(e, doing, where) from e


@contextlib.contextmanager
def temp_file(folder: str | os.PathLike[str], mode: int = 0o666) -> Iterator[tuple[int, Path]]:
    """A new file in ``folder``, open for writing: (descriptor, path).

    The descriptor is closed and what is still under the temporary name is removed at the end.
    """
    path = temp_name(folder)
    with mapped_os_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        yield fd, path
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            path.unlink()


def write_all(fd: int, data: bytes) -> None:
    """Every byte of ``data``; ``os.write`` alone may stop short."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_fd(fd: int) -> None:
    """fsync; filesystems that have none are taken at their word."""
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in _NO_FSYNC:
            raise


def fsync_file(path: str | os.PathLike[str]) -> None:
    """Put the file's bytes on disk, whoever wrote them."""
    _fsync(path, os.O_RDONLY | os.O_CLOEXEC)


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """Put the folder's entries on disk, so that a new name survives a crash."""
    _fsync(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)


def _fsync(path: str | os.PathLike[str], flags: int) -> None:
    with mapped_os_errors(path, "put on disk"):
        fd = os.open(path, flags)
        try:
            sync_fd(fd)
        finally:
            os.close(fd)


def make_dirs(path: str | os.PathLike[str]) -> None:
    """The folder and those above it that are missing, each put on disk in its parent."""
    missing: list[Path] = []
    folder = Path(path)
    with mapped_os_errors(path, "make the folder"):
        while not folder.is_dir():
            missing.append(folder)
            if folder == folder.parent:
                break
            folder = folder.parent
        for folder in reversed(missing):
            try:
                os.mkdir(folder)
            except FileExistsError:
                if not folder.is_dir():
                    raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(folder)) from None
            fsync_dir(folder.parent)


def write_durable(path: str | os.PathLike[str], data: bytes, mode: int = 0o666) -> None:
    """``path`` holds ``data``, on disk, in one step; what it held before is replaced."""
    final = Path(path)
    with temp_file(final.parent, mode) as (fd, temp):
        with mapped_os_errors(final):
            write_all(fd, data)
            sync_fd(fd)
        replace(temp, final)
    fsync_dir(final.parent)


def create_durable(path: str | os.PathLike[str], data: bytes, mode: int = 0o666) -> None:
    """``path`` holds ``data``, on disk, in one step; ``AlreadyExistsError`` if the name is taken."""
    final = Path(path)
    with temp_file(final.parent, mode) as (fd, temp):
        with mapped_os_errors(final):
            write_all(fd, data)
            sync_fd(fd)
        publish(temp, final)
    fsync_dir(final.parent)


def replace(temp: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """Give ``temp`` the name ``final``, over whatever has it; both on one filesystem.

    The name only: the caller has synced ``temp`` before, and syncs the folder after (once for
    many files, where there are many).
    """
    with mapped_os_errors(final):
        os.replace(temp, final)


def exchange(temp: str | os.PathLike[str], final: str | os.PathLike[str]) -> bool:
    """Swap two files' names in one step, so that ``temp`` is what was replaced; False where it cannot be.

    The names only, as with ``replace``.
    """
    rename = _renameat2()
    return (
        rename is not None
        and rename(_AT_FDCWD, os.fsencode(temp), _AT_FDCWD, os.fsencode(final), _RENAME_EXCHANGE) == 0
    )


def publish(temp: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """Give ``temp`` the name ``final`` if nothing has it; ``AlreadyExistsError`` otherwise.

    By a hard link, which never replaces, not even on NFS; where the filesystem has none, by
    renameat2 with RENAME_NOREPLACE; where it has neither, the name is claimed by an empty file
    made with O_EXCL and then renamed over (a crash in between leaves the empty file, which every
    check reports as ``zero-byte``). A folder, which has no links, by the same two last ways; an
    empty folder that has the name stays, too. The name only, as with ``replace``.
    """
    with mapped_os_errors(final):
        try:
            _link(temp, final)
        except FileExistsError:
            raise AlreadyExistsError(
                f"{os.fspath(final)}: the name is taken",
                hint="nothing is overwritten: a new version needs a new name",
            ) from None


def publish_durable(temp: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """``publish`` of a file that somebody else wrote, with its bytes and its new name on disk."""
    fsync_file(temp)
    publish(temp, final)
    fsync_dir(Path(final).parent)


def publish_folder_durable(temp: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """``publish`` of a folder, with all that is in it on disk before it has the name."""
    for folder, _, names in os.walk(temp):
        for name in names:
            file = os.path.join(folder, name)
            if not os.path.islink(file):
                fsync_file(file)
        fsync_dir(folder)
    publish(temp, final)
    fsync_dir(Path(final).absolute().parent)


def _link(temp: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    try:
        os.link(temp, final)
    except FileExistsError:
        # An NFS server that answers a repeated request says "exists" of the link it just made.
        if not os.path.samestat(os.lstat(temp), os.lstat(final)):
            raise
    except OSError as e:
        if e.errno not in _NO_LINKS:
            raise
        _rename_no_replace(temp, final)
        return
    os.unlink(temp)


def _rename_no_replace(temp: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    rename = _renameat2()
    if rename is not None:
        if rename(_AT_FDCWD, os.fsencode(temp), _AT_FDCWD, os.fsencode(final), _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(number, os.strerror(number), os.fspath(final))
    is_folder = os.path.isdir(temp)
    if is_folder:
        os.mkdir(final)
    else:
        os.close(os.open(final, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))
    try:
        os.replace(temp, final)
    except OSError:
        (os.rmdir if is_folder else os.unlink)(final)
        raise


def swap_durable(path: str | os.PathLike[str], data: bytes, expected: bytes | None) -> bool:
    """``path`` holds ``data``, on disk, if it held ``expected`` (None: nothing); whether it did.

    Where the filesystem can exchange two names (renameat2), nothing of another writer is lost even
    if it wrote between our look and our rename: what came out is looked at, and put back.
    """
    final = Path(path)
    if expected is None:
        try:
            create_durable(final, data)
        except AlreadyExistsError:
            return False
        return True
    with temp_file(final.parent) as (fd, temp):
        with mapped_os_errors(final):
            write_all(fd, data)
            sync_fd(fd)
        if _content(final) != expected:
            return False
        if not _exchange(temp, final):
            replace(temp, final)
        elif _content(temp) != expected:
            _exchange(temp, final)
            return False
    fsync_dir(final.parent)
    return True


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names; False where this filesystem cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOENT):
        return False
    raise destination_error(OSError(number, os.strerror(number)), "write", other)


@cache
def _renameat2() -> ctypes._NamedFuncPointer | None:
    """The C library's renameat2 (glibc 2.28, musl 1.2.4), or None."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function
