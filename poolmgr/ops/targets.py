"""What ``verify`` is asked to look at: files, folders, lists of both, and blobs of a pool.

A file in a pool is known by its path there, so that what is recorded of it can be compared and
what is found can be attested.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from poolmgr.errors import BadFileError, IndexInvalidError, UsageError
from poolmgr.model.blob import INDEX_NAME, STATE_DIR, Blob, path_trouble
from poolmgr.model.digest import parse_sha256
from poolmgr.model.finding import Finding
from poolmgr.ops.view import PoolView, open_folder
from poolmgr.sif.header import finding
from poolmgr.store.base import RangeSource

SUFFIXES = (".sif", ".simg", ".img", ".sqfs", ".squashfs")
"""Names that images have; in a folder, other files are not looked at unless the index names them."""
MAX_SUMS = 64 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """One image to be looked at."""

    shown: str
    """As the user named it, or its path in the pool."""
    file: Path | None = None
    """None for a blob that is reached by byte ranges."""
    view: PoolView | None = None
    """The pool that it lies in, where that is known."""
    path: str | None = None
    """Its path in that pool."""
    blob: Blob | None = None
    """As the pool lists or records it."""
    wrong: Finding | None = None
    """Why there is nothing to look at, where that is known already."""

    def remote(self) -> RangeSource:
        assert self.view is not None
        assert self.blob is not None
        return RangeSource(self.view.store, self.blob.path, self.blob.size)


class Finder:
    """Finds targets, and the pool that each belongs to, once for each folder."""

    def __init__(self, attest: Path | None = None, *, keep: bool = False) -> None:
        self.attest = attest
        self.keep = keep
        """Treat a folder that was named as a pool although nothing marks it as one."""
        self._views: dict[str, PoolView | None] = {}
        """Absolute folder -> the pool that it lies in."""

    def find(self, words: Iterable[str]) -> Iterator[Target]:
        """The targets that files and folders lead to, each path once, in order."""
        seen: set[str] = set()
        for word in words:
            if "://" in word:
                raise UsageError(
                    f"{word!r} is an address, not a path",
                    hint="verify -p ADDRESS-OF-THE-POOL [PATH IN IT]",
                )
            path = Path(word)
            found = self._folder(path) if path.is_dir() and not _is_sandbox(path) else [self._file(word)]
            for target in found:
                if target.shown not in seen:
                    seen.add(target.shown)
                    yield target

    def in_pool(self, view: PoolView, words: Iterable[str]) -> Iterator[Target]:
        """The blobs of ``view`` that ``words`` name (paths or folders in it); all of them without any."""
        wanted = list(words)
        listed = view.listing.blobs
        if not wanted:
            wanted = sorted(p for p in listed if p.lower().endswith(SUFFIXES) or p in view.index.blobs())
        for word in wanted:
            clean = word.rstrip("/")
            if word in listed:
                yield self._blob(view, listed[word])
                continue
            below = sorted(p for p in listed if p.startswith(clean + "/") and p.lower().endswith(SUFFIXES))
            if not below:
                trouble = path_trouble(clean)
                why = f"the path {trouble}" if trouble else "no such blob or folder in the pool"
                yield Target(word, wrong=finding("missing", why))
            for path in below:
                yield self._blob(view, listed[path])

    def _blob(self, view: PoolView, blob: Blob) -> Target:
        recorded = view.recorded(blob.path) or blob
        if view.root is not None:
            return Target(blob.path, view.file(blob.path), view, blob.path, recorded)
        return Target(blob.path, None, view, blob.path, blob)

    def _file(self, shown: str) -> Target:
        path = os.path.abspath(shown)
        view = self._view_of(os.path.dirname(path))
        if view is None or view.root is None:
            return Target(shown, Path(shown))
        inside = os.path.relpath(path, os.path.abspath(view.root))
        if path_trouble(inside):
            return Target(shown, Path(shown))
        return Target(shown, Path(shown), view, inside, view.recorded(inside))

    def _folder(self, folder: Path) -> Iterator[Target]:
        view = self._view_of(os.path.abspath(folder), named=self.keep)
        indexed = _indexed(view)
        for file in _walk(str(folder)):
            if isinstance(file, Target):
                yield file
                continue
            target = self._file(file)
            if file.lower().endswith(SUFFIXES) or target.path in indexed:
                yield target

    def _view_of(self, folder: str, *, named: bool = False) -> PoolView | None:
        """The pool that ``folder`` lies in: the nearest folder above with an index or a state folder."""
        if folder in self._views and not named:
            return self._views[folder]
        view: PoolView | None = None
        marked = os.path.isdir(f"{folder}/{STATE_DIR}") or os.path.isfile(f"{folder}/{INDEX_NAME}")
        parent = os.path.dirname(folder)
        if marked or named:
            view = open_folder(Path(folder))
            if self.attest is not None:
                view.attest_folder = self.attest
        elif parent != folder:
            view = self._view_of(parent)
        self._views[folder] = view
        return view


def _is_sandbox(path: str | Path) -> bool:
    return os.path.isdir(f"{path}/.singularity.d")


def _indexed(view: PoolView | None) -> frozenset[str]:
    if view is None or view.root is None:
        return frozenset()
    try:
        return frozenset(view.index.blobs())
    except IndexInvalidError:
        return frozenset()


def _walk(folder: str) -> Iterator[str | Target]:
    """Every entry below that is no folder, in order, but no name that begins with a dot.

    A folder that cannot be read is a target of its own: what lies in it is unknown, not absent.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda e: e.name)
    except PermissionError as e:
        yield Target(folder, wrong=finding("unreadable", f"the folder: {e.strerror}"))
        return
    except OSError as e:
        yield Target(folder, wrong=finding("io-error", f"the folder: {e.strerror}"))
        return
    for entry in found:
        if entry.name.startswith("."):
            continue
        path = entry.name if folder == "." else entry.path
        if entry.is_dir(follow_symlinks=False) and not (
            entry.name.lower().endswith(SUFFIXES) and _is_sandbox(path)
        ):
            yield from _walk(path)
        else:
            yield path


def read_sums(file: Path) -> Mapping[str, str]:
    """Name -> sha256, from a file as ``sha256sum`` writes it.

    Raises ``BadFileError`` naming the line that cannot be read.
    """
    try:
        with open(file, "rb") as opened:  # which may be a pipe, and then has no size
            data = opened.read(MAX_SUMS + 1)
    except OSError as e:
        raise BadFileError(f"--sums {file}: {e.strerror}") from None
    if len(data) > MAX_SUMS:
        raise BadFileError(f"{file} is larger than {MAX_SUMS >> 20} MiB")
    lines = [line.removesuffix("\r") for line in data.decode("utf-8", "surrogateescape").split("\n")]
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        digest, _, name = line.partition(" ")
        name = name[1:] if name[:1] in (" ", "*") else name
        escaped = digest.startswith("\\")
        if escaped:
            name = name.replace("\\n", "\n").replace("\\\\", "\\")
        try:
            value = parse_sha256(digest.lstrip("\\"))
        except ValueError:
            name = ""
        if not name:
            raise BadFileError(f"{file}:{number}: not a line of sha256sum: {line[:80]!r}")
        if sums.setdefault(name, value) != value:
            raise BadFileError(f"{file}:{number}: another sha256 than before is given for {name[:80]!r}")
    if not sums:
        raise UsageError(f"--sums {file} holds no sums")
    return sums


def unmet_sums(
    file: Path, by_name: Mapping[str, str], words: Sequence[str], targets: Sequence[Target], *, in_pool: bool
) -> tuple[list[Target], int]:
    """What ``file`` lists in the folders that were named, and is not there; and how many other names it has.

    ``by_name`` is what ``read_sums`` found in ``file``, whose names are relative to its folder, or
    paths in the pool. The others lie elsewhere, or are files that are no images.
    """
    known = {os.path.abspath(t.file) for t in targets if t.file is not None}
    known_paths = {t.path for t in targets if t.path is not None}
    folders = [os.path.abspath(w) for w in words if os.path.isdir(w)]
    absent: list[Target] = []
    others = 0
    for name in by_name:
        path = os.path.normpath(file.parent / name)
        place = os.path.abspath(path)
        if place in known or (in_pool and name in known_paths):
            continue
        if in_pool:
            is_wanted = not words or any(name == w or name.startswith(w.rstrip("/") + "/") for w in words)
            path = name
        else:
            is_wanted = any(place.startswith(folder.rstrip("/") + "/") for folder in folders)
        if is_wanted and (in_pool or not os.path.lexists(place)):
            absent.append(Target(path, wrong=finding("missing", f"{file} lists it, and it is not there")))
        else:
            others += 1
    return absent, others
