"""The files of one task, wherever they lie: a folder here, an archive in harbor/archive.py.

Nothing is followed out of the task: a link that leads outside is never read through.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum

CHUNK = 1 << 20
MAX_LINKS = 40  # as the kernel's own limit on links in one path


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    OTHER = "special file"
    """A FIFO, a socket or a device: it is never opened."""


class UnreadableError(Exception):
    """A file or folder of the task that could not be read; the text says which and why."""


class OutwardLinkError(Exception):
    """A symbolic link that leads out of the task, or round in a loop; the text says which."""


class Tree(ABC):
    """Paths are POSIX, relative to the task; names that are not UTF-8 hold surrogate escapes."""

    @abstractmethod
    def kind(self, path: str) -> Kind | None:
        """What stands at ``path`` itself (a link is a link), or None; ``''`` is the task's folder."""

    @abstractmethod
    def entries(self, top: str) -> dict[str, Kind]:
        """Everything below the folder ``top`` by its path relative to ``top``; {} where there is none.

        Links below ``top`` are listed and not followed. ``UnreadableError`` when a folder is closed.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of what lies directly in ``folder``."""

    @abstractmethod
    def chunks(self, path: str) -> tuple[int, Iterator[bytes]]:
        """Size and bytes of the regular file at ``path``; ``UnreadableError``."""

    @abstractmethod
    def mode(self, path: str) -> int:
        """The permission bits of what stands at ``path`` itself."""

    @abstractmethod
    def target(self, path: str) -> str:
        """The text of the link at ``path``."""

    def real_root(self) -> str | None:
        """The absolute path under which the task lies, None for an archive."""
        return None

    def read(self, path: str, limit: int) -> bytes:
        """The whole file; ``UnreadableError`` when it has more than ``limit`` bytes."""
        size, chunks = self.chunks(path)
        if size > limit:
            raise UnreadableError(f"{path}: {size:,} bytes, more than the {limit:,} that it may have")
        return b"".join(chunks)

    def resolve(self, path: str) -> str:
        """``path`` with every link followed; ``OutwardLinkError`` when that leaves the task or loops."""
        todo = [part for part in reversed(path.split("/")) if part]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                if not done:
                    raise OutwardLinkError(f"the link {path!r} leads out of the task")
                done.pop()
                continue
            done.append(part)
            here = "/".join(done)
            if self.kind(here) is not Kind.LINK:
                continue
            links += 1
            if links > MAX_LINKS:
                raise OutwardLinkError(f"the link {path!r} leads round in a loop")
            target = self.target(here)
            if target.startswith("/"):
                root = self.real_root()
                if root is None or not f"{target}/".startswith(f"{root}/"):
                    raise OutwardLinkError(f"the link {path!r} leads out of the task, to {target!r}")
                done.clear()
                target = target[len(root) :]
            else:
                done.pop()
            todo.extend(reversed([p for p in target.split("/") if p]))
        return "/".join(done)

    def final_kind(self, path: str) -> Kind | None:
        """What ``path`` is with links followed; None when nothing is there or the link leaves."""
        try:
            return self.kind(self.resolve(path))
        except OutwardLinkError:
            return None


class NamedTree(Tree):
    """A tree of which every name is known from the start: an archive, a repository's listing."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {"": Kind.FOLDER}
        self._inside_of: dict[str, list[str]] = {"": []}

    def _put_folder(self, path: str) -> list[str]:
        """Make ``path`` a folder, and all above it; [the one that is something else], if there is one."""
        new: list[str] = []
        while path not in self._inside_of:
            if path in self._kinds:
                return [path]
            new.append(path)
            path = path.rpartition("/")[0]
        for folder in reversed(new):
            self._kinds[folder] = Kind.FOLDER
            self._inside_of[folder] = []
            self._inside_of[folder.rpartition("/")[0]].append(folder)
        return []

    def kind(self, path: str) -> Kind | None:
        return self._kinds.get(path)

    def entries(self, top: str) -> dict[str, Kind]:
        start = self.resolve(top)
        skip = len(start) + 1 if start else 0
        found: dict[str, Kind] = {}
        folders = [start]
        while folders:
            for path in self._inside_of.get(folders.pop(), ()):
                kind = self._kinds[path]
                found[path[skip:]] = kind
                if kind is Kind.FOLDER:
                    folders.append(path)
        return found

    def names(self, folder: str) -> list[str]:
        return [path.rpartition("/")[2] for path in self._inside_of.get(folder, ())]


class FolderTree(Tree):
    """A task folder on this machine."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: dict[str, dict[str, Kind]] = {}

    def kind(self, path: str) -> Kind | None:
        if not path:
            return Kind.FOLDER
        parent, _, name = path.rpartition("/")
        listed = self._listing(parent)
        if listed is None:
            return None
        return listed.get(name)

    def _listing(self, folder: str) -> dict[str, Kind] | None:
        """Name -> kind of what lies directly in ``folder``; None where it is no folder."""
        if folder not in self._known:
            try:
                with os.scandir(f"{self.root}/{folder}" if folder else self.root) as found:
                    self._known[folder] = {entry.name: _kind(entry) for entry in found}
            except (NotADirectoryError, FileNotFoundError):
                return None
            except OSError as e:
                raise UnreadableError(f"{folder or '.'}: {e.strerror or e}") from None
        return self._known[folder]

    def entries(self, top: str) -> dict[str, Kind]:
        found: dict[str, Kind] = {}
        start = self.resolve(top)
        folders = [""]
        while folders:
            folder = folders.pop()
            listed = self._listing("/".join(p for p in (start, folder) if p))
            for name, kind in (listed or {}).items():
                path = f"{folder}/{name}" if folder else name
                found[path] = kind
                if kind is Kind.FOLDER:
                    folders.append(path)
        return found

    def names(self, folder: str) -> list[str]:
        return list(self._listing(folder) or ())

    def chunks(self, path: str) -> tuple[int, Iterator[bytes]]:
        fd = self._open(path)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableError(f"{path}: not a regular file any more")
            size = status.st_size
            if size > CHUNK:
                return size, self._stream(path, size)
            data = os.read(fd, size + 1)
        except OSError as e:
            raise UnreadableError(f"{path}: {e.strerror or e}") from None
        finally:
            os.close(fd)
        if len(data) != size:
            raise UnreadableError(f"{path}: changed while it was read")
        return size, iter((data,))

    def _open(self, path: str) -> int:
        try:
            # A FIFO put in the file's place since the listing must not hang the run.
            return os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as e:
            raise UnreadableError(f"{path}: {e.strerror or e}") from None

    def _stream(self, path: str, size: int) -> Iterator[bytes]:
        with os.fdopen(self._open(path), "rb", buffering=0) as file:
            left = size
            try:
                while chunk := file.read(CHUNK):
                    left -= len(chunk)
                    yield chunk
            except OSError as e:
                raise UnreadableError(f"{path}: {e.strerror or e}") from None
            if left:
                raise UnreadableError(f"{path}: changed while it was read")

    def mode(self, path: str) -> int:
        return stat.S_IMODE(self._lstat(path).st_mode)

    def _lstat(self, path: str) -> os.stat_result:
        try:
            return os.lstat(f"{self.root}/{path}")
        except OSError as e:
            raise UnreadableError(f"{path}: {e.strerror or e}") from None

    def target(self, path: str) -> str:
        try:
            return os.readlink(f"{self.root}/{path}")
        except OSError as e:
            raise UnreadableError(f"{path}: {e.strerror or e}") from None

    def real_root(self) -> str | None:
        return os.path.realpath(self.root)


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return Kind.LINK
    if entry.is_file(follow_symlinks=False):
        return Kind.FILE
    if entry.is_dir(follow_symlinks=False):
        return Kind.FOLDER
    return Kind.OTHER
