"""A folder as a store: one walk for the listing, reads that never leave the folder, puts that never replace.

Links are followed where they stay inside the folder; whatever else a name leads to is listed with
its trouble, so that a check can name it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from poolmgr.errors import BadFileError, FileMissingError, PoolNotFoundError, UnsafePathError
from poolmgr.model.blob import (
    INDEX_NAME,
    STATE_DIR,
    Blob,
    Listing,
    check_path,
    path_trouble,
    shown,
)
from poolmgr.store.files import (
    create_durable,
    fsync_dir,
    make_dirs,
    mapped_os_errors,
    publish,
    sync_fd,
    temp_file,
    write_all,
)
from poolmgr.temporary import TEMP_PREFIX

CHUNK = 1 << 20
MAX_LISTED = 2_000_000
"""Entries after which a folder is taken for no pool (``-p /``, links that multiply)."""


class LocalStore:
    """A folder (``store.base.WritableStore``); every listing is a fresh look. Safe from many threads.

    ``PoolNotFoundError`` when ``root`` is no folder at the time of a listing.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.address = str(self.root)

    @property
    def commit(self) -> str | None:
        """None: a folder has no commits."""
        return None

    def list(self) -> Listing:
        """Every file below the root. Dot-leading names are no part of a pool, nor is the index a blob.

        An entry that is no readable file keeps its place with its trouble; for a folder that cannot
        be looked into, the entry bears the folder's path and stands for all below it.
        """
        walk = _Walk(self.root)
        walk.run()
        return Listing(
            source=self.address,
            commit=None,
            blobs=walk.blobs,
            refused=tuple(sorted(walk.refused)),
            directories=frozenset(walk.folders),
            entries=walk.entries,
        )

    def read(self, path: str, *, limit: int) -> bytes:
        """The whole file; ``BadFileError`` when it is larger than ``limit`` bytes."""
        with self._open(path) as fd:
            data = self._pread(fd, path, 0, limit + 1)
        if len(data) > limit:
            raise BadFileError(f"{self.root / path}: larger than the {limit:,} bytes that it may have")
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``start``, fewer only where the file ends."""
        if start < 0 or length <= 0:
            return b""
        with self._open(path) as fd:
            return self._pread(fd, path, start, length)

    @contextmanager
    def stream(self, path: str, start: int = 0) -> Iterator[LocalBody]:
        """The bytes from ``start`` on, a megabyte at a time."""
        with self._open(path) as fd:
            yield LocalBody(self, fd, path, max(0, start))

    def put(self, path: str, source: Path | bytes) -> None:
        """Create ``path`` on disk, complete or not at all; ``AlreadyExistsError`` if the name is taken."""
        if path != INDEX_NAME:
            check_path(path, self.address)
        final = self.root / path
        self._refuse_escape(final.parent, path)
        make_dirs(final.parent)
        self._refuse_escape(final.parent, path)
        if isinstance(source, bytes):
            create_durable(final, source)
            return
        with temp_file(final.parent) as (fd, temp):
            _copy(source, fd, final)
            publish(temp, final)
        fsync_dir(final.parent)

    @contextmanager
    def _open(self, path: str) -> Iterator[int]:
        """An open descriptor of a regular file inside the root."""
        if path != INDEX_NAME:
            check_path(path, self.address)
        place = self.root / path
        try:
            self._refuse_escape(place, path)
            # Without waiting: a pipe under a blob's name must not stop the run.
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(place):
                raise BadFileError(f"{place}: a symbolic link that leads nowhere") from None
            raise FileMissingError(f"{place}: no such file") from None
        except OSError as e:
            raise BadFileError(f"{place}: cannot be opened: {e.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadFileError(f"{place}: not a regular file")
            yield fd
        finally:
            os.close(fd)

    def _refuse_escape(self, place: Path, path: str) -> None:
        """No symbolic link on the way may lead out of the pool."""
        if not _inside(os.path.realpath(place), os.path.realpath(self.root)):
            raise UnsafePathError(
                f"{self.address}: {path} leads out of the pool through a symbolic link",
                hint="put the file itself into the pool: bind mounts do not follow links",
            )

    def _pread(self, fd: int, path: str, start: int, length: int) -> bytes:
        parts = []
        try:
            while length > 0 and (part := os.pread(fd, min(length, 64 * CHUNK), start)):
                parts.append(part)
                start += len(part)
                length -= len(part)
        except OSError as e:
            raise BadFileError(
                f"{self.root / path}: reading failed at byte {start:,}: {e.strerror}"
            ) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)


class LocalBody:
    """The bytes of an open file from ``start`` on (``store.base.Body``)."""

    def __init__(self, store: LocalStore, fd: int, path: str, start: int) -> None:
        self.start = start
        self.total: int | None = os.fstat(fd).st_size
        self._store = store
        self._fd = fd
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        at = self.start
        while chunk := self._store._pread(self._fd, self._path, at, CHUNK):
            at += len(chunk)
            yield chunk


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that is still to be looked into."""

    path: str
    real: str
    """Its place when all links are followed."""
    jumps: tuple[str, ...]
    """The real folders from which a link was followed on the way here."""


class _Walk:
    """One look at a folder. Names and links are hostile; it ends whatever they do."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.real = os.path.realpath(root)
        self.blobs: dict[str, Blob] = {}
        self.refused: list[tuple[str, str]] = []
        self.folders: set[str] = set()
        self.entries: dict[str, int] = {}
        self.seen = 0

    def run(self) -> None:
        todo = [_Folder("", self.real, ())]
        while todo:
            folder = todo.pop()
            try:
                with os.scandir(os.path.join(self.root, folder.path)) as entries:
                    todo.extend(self.look(folder, entries))
            except OSError as e:
                if not folder.path:
                    raise _no_folder(self.root, e) from None
                if not isinstance(e, FileNotFoundError):  # else gone since its parent was read
                    self.blobs[folder.path] = Blob(folder.path, 0, trouble="unreadable")

    def look(self, folder: _Folder, entries: Iterator[os.DirEntry[str]]) -> Iterator[_Folder]:
        """Record a folder's entries; yields the folders to look into."""
        count = 0
        prefix = f"{folder.path}/" if folder.path else ""
        for entry in entries:
            name = entry.name
            if not name.startswith(TEMP_PREFIX) and (prefix or name != STATE_DIR):
                count += 1
            path = prefix + name
            if name[0] == "." or path == INDEX_NAME:
                continue
            self.seen += 1
            if self.seen > MAX_LISTED:
                raise PoolNotFoundError(
                    f"{self.root}: more than {MAX_LISTED:,} entries, which no pool has",
                    hint="name the folder that holds the blobs and the index",
                )
            if trouble := path_trouble(path):
                self.refused.append((shown(path), trouble))
            elif entry.is_symlink():
                yield from self.link(path, folder)
            elif entry.is_dir(follow_symlinks=False):
                self.folders.add(path)
                yield _Folder(path, f"{folder.real}/{name}", folder.jumps)
            else:
                self.file(path, entry)
        self.entries[folder.path] = count

    def file(self, path: str, entry: os.DirEntry[str]) -> None:
        try:
            self.blobs[path] = _blob(path, entry.path, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            pass  # gone since the folder was read
        except OSError:
            self.blobs[path] = Blob(path, 0, trouble="unreadable")

    def link(self, path: str, folder: _Folder) -> Iterator[_Folder]:
        place = os.path.join(self.root, path)
        try:
            st = os.stat(place)
        except PermissionError:
            self.blobs[path] = Blob(path, 0, trouble="unreadable")
            return
        except OSError:
            self.blobs[path] = Blob(path, 0, trouble="dangling-link")
            return
        real = os.path.realpath(place)
        if not _inside(real, self.real):
            self.blobs[path] = Blob(path, st.st_size, trouble="outward-link")
        elif not stat.S_ISDIR(st.st_mode):
            self.blobs[path] = _blob(path, place, st)
        else:
            jumps = (*folder.jumps, folder.real)
            self.folders.add(path)
            if not any(_inside(jump, real) for jump in jumps):  # else it leads back to where we are
                yield _Folder(path, real, jumps)


def _blob(path: str, place: str, st: os.stat_result) -> Blob:
    if not stat.S_ISREG(st.st_mode):
        return Blob(path, 0, trouble="not-a-file")
    # All three read bits answer without another call; else the kernel does, as it knows ACLs and groups.
    if st.st_mode & 0o444 == 0o444 or os.access(
        place, os.R_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        return Blob(path, st.st_size)
    return Blob(path, st.st_size, trouble="unreadable")


def _inside(real: str, root: str) -> bool:
    return real == root or real.startswith(root.rstrip("/") + "/")


def _no_folder(root: str, error: OSError) -> PoolNotFoundError:
    if isinstance(error, NotADirectoryError):
        return PoolNotFoundError(
            f"{root} is a file; a pool is a folder", hint="name the folder that holds the blobs"
        )
    if isinstance(error, FileNotFoundError):
        return PoolNotFoundError(f"{root}: no such folder")
    return PoolNotFoundError(f"{root}: cannot be read: {error.strerror}")


def _copy(source: Path, fd: int, final: Path) -> None:
    """All bytes of ``source`` into ``fd``, on disk; ``BadFileError`` if it changes meanwhile."""
    try:
        reader = source.open("rb")
    except OSError as e:
        raise BadFileError(f"{source}: cannot be read: {e.strerror}") from None
    with reader:
        before = os.fstat(reader.fileno())
        done = 0
        while done <= before.st_size:  # a file that grows all the time has no end
            try:
                chunk = reader.read(CHUNK)
            except OSError as e:
                raise BadFileError(f"{source}: reading failed at byte {done:,}: {e.strerror}") from None
            if not chunk:
                break
            done += len(chunk)
            with mapped_os_errors(final):
                write_all(fd, chunk)
        after = os.fstat(reader.fileno())
    if done != before.st_size or after.st_mtime_ns != before.st_mtime_ns:
        raise BadFileError(
            f"{source}: changed while it was being copied", hint="copy it when its writer is done"
        )
    with mapped_os_errors(final):
        sync_fd(fd)
