"""Task folders that lie on the Hub, read file by file at the pinned commit: one listing, then what counts.

Of a task only task.toml and the files of its environments are read, several tasks at once, paced and
tried again by the store, each file proven against the hash that the commit records. Equal files (by
that hash) are read once.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from functools import partial

from poolmgr.errors import BadTransferError, DatasetInvalidError
from poolmgr.harbor.listed import ListedTree, task_folders
from poolmgr.harbor.source import Part
from poolmgr.harbor.tasks import finding
from poolmgr.model.environment import NotTask
from poolmgr.store.hub import HubStore

MAX_FILES = 50_000
"""Files that would be read one by one at most: more than the Hub answers in some minutes."""
WHOLE = 16 << 20
"""Larger files are read in pieces of this size."""
KEPT_FILE = 256 << 10
KEPT = 64 << 20
"""Bytes of small files that are kept for the next task that has them too."""


class _Files:
    """The bytes of a repository's files."""

    def __init__(self, store: HubStore) -> None:
        self._store = store
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self._readers: dict[str, threading.Lock] = {}
        """Git blob id -> held by the one that reads these bytes, while the others wait for them."""

    def read(self, path: str, size: int) -> tuple[int, Iterator[bytes]]:
        if size > WHOLE:
            return size, self._pieces(path, size)
        key = self._store.files()[path][1]
        with self._lock:
            one_reader = self._readers.setdefault(key, threading.Lock())
        with one_reader:
            with self._lock:
                data = self._kept.get(key)
            if data is None:
                data = self._store.read(path, limit=size)
                self._keep(key, data)
        return size, iter((data,))

    def _keep(self, key: str, data: bytes) -> None:
        if len(data) > KEPT_FILE:
            return
        with self._lock:
            if key not in self._kept:
                self._kept[key] = data
                self._size += len(data)
            while self._size > KEPT:
                self._size -= len(self._kept.popitem(last=False)[1])

    def _pieces(self, path: str, size: int) -> Iterator[bytes]:
        recorded = self._store.files()[path][2]
        digest = hashlib.sha256()
        for start in range(0, size, WHOLE):
            piece = self._store.read_range(path, start, min(WHOLE, size - start))
            digest.update(piece)
            yield piece
        if recorded is not None and digest.hexdigest() != recorded:
            raise BadTransferError(
                f"{self._store.address}/{path}: expected sha256 {recorded}, found {digest.hexdigest()}",
                hint="something between you and the Hub changes what it sends",
            )


def folder_parts(
    store: HubStore, below: str, label: str, archives: Collection[str]
) -> tuple[list[Part], frozenset[str]]:
    """The task folders at or below ``below`` as parts, and all those folders.

    Raises ``DatasetInvalidError`` where they have more files than are read one by one.
    """
    sizes = {path: size for path, (size, _, _) in store.files().items()}
    sizes |= {path: -1 for path, _ in store.list().refused if path not in sizes}
    bad = [path for path in sizes if not all(p not in ("", "..") for p in path.split("/"))]
    for path in bad:
        del sizes[path]
    inside = [p for p in sizes if not below or p.startswith(f"{below}/")]
    found = task_folders(inside, below, archives)
    folders = {folder: {} for group in found.values() for folder in group}  # type: dict[str, dict[str, int]]
    for path in inside:
        at = path.rpartition("/")[0]
        while at and at not in folders:
            at = at.rpartition("/")[0]
        if at in folders:
            folders[at][path[len(at) + 1 if at else 0 :]] = sizes[path]
    count = sum(
        name == "task.toml" or name.startswith("environment/") for files in folders.values() for name in files
    )
    if count > MAX_FILES:
        raise DatasetInvalidError(
            f"{store.address}: its task folders have {count:,} files to be read one by one, "
            f"more than {MAX_FILES:,}",
            hint="download the folder first, and name it here",
        )
    reader = _Files(store).read
    parts = []
    for folder, group in found.items():
        name = folder[len(below) :].strip("/")
        parts.append(
            Part(
                f"{label}/{name}" if name else label,
                f"{store.address}/{folder}".rstrip("/"),
                listed=tuple(
                    (
                        f.rpartition("/")[2] or label.rpartition("/")[2],
                        f"{store.address}/{f}".rstrip("/"),
                        ListedTree(f, folders[f], partial(reader)),
                    )
                    for f in group
                ),
                close=store.close,
            )
        )
    if bad:
        why = finding("task-unreadable", "its path leaves the repository")
        refused = tuple(NotTask(label, path, store.address, why) for path in bad)
        parts.append(Part(label, store.address, refused=refused))
    return parts, frozenset(folders)
