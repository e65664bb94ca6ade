"""A task dataset, wherever it lies, as rows: a file, a folder, ``hf://…`` or any fsspec URL."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from poolmgr.errors import DatasetInvalidError, PoolNotFoundError
from poolmgr.harbor.dataset import IMAGE_FILE, TASK_FILE, Shape, is_row_file, rows, shape_of, shape_of_file
from poolmgr.harbor.rows import Opener
from poolmgr.model.blob import Blob
from poolmgr.model.index import nearest
from poolmgr.model.task import Row
from poolmgr.settings import Settings
from poolmgr.store.address import file_url_path, is_url, printable
from poolmgr.store.base import OnRetry, Store
from poolmgr.store.locate import locate

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_HUB = re.compile(
    r"(?P<store>hf://(?:(?:datasets|spaces|models)/)?[^/@?#]+/[^/@?#]+(?:@(?:refs/(?:pr|convert)/)?[^/@?#]+)?)"
    r"(?P<inside>(?:/[^?#]*)?)"
)
MAX_DEPTH = 8
"""Folders below a local dataset that are looked into for rows and tasks."""
BUFFER = 1 << 20
"""Bytes that a read of a remote file brings at least."""


@dataclass(frozen=True)
class Dataset:
    address: str
    """Printable."""
    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """(name, why) of what looks like rows and was not read."""


@dataclass(frozen=True)
class Origin:
    """Where a dataset's files are, before its rows are read."""

    address: str
    """Printable."""
    shape: Shape
    opener: Opener
    names: tuple[str, ...]
    """Every file that is known by name; of a local task folder only those that make it one."""
    root: Path | None = None
    """The folder that names are relative to, for a dataset that lies here."""
    is_file: bool = False
    """The address names one file."""


def open_dataset(address: str, settings: Settings, *, on_retry: OnRetry | None = None) -> Dataset:
    """Every row of the dataset at ``address``.

    Raises ``DatasetInvalidError`` where there are no rows, and what the store raises.
    """
    origin = origin_of(address, settings, on_retry=on_retry)
    return Dataset(origin.address, tuple(rows(origin.shape, origin.opener)), origin.shape.skipped)


def origin_of(address: str, settings: Settings, *, on_retry: OnRetry | None = None) -> Origin:
    """The dataset at ``address``, its shape known and no row read; raises as ``open_dataset`` does."""
    if not is_url(address):
        return _local(Path(address).expanduser(), address)
    if (path := file_url_path(address)) is not None:
        return _local(Path(path), printable(address))
    there = remote(address, settings, on_retry=on_retry)
    opener, prefix = opener_of(there.store, there.files), f"{there.inside}/" if there.inside else ""
    if there.is_file:
        folder, _, name = there.inside.rpartition("/")
        prefix = f"{folder}/" if folder else ""
        names = [name]
        shape = shape_of_file(name, there.address)
    else:
        names = [n.removeprefix(prefix) for n in there.files]
        shape = shape_of(names, there.address, own_name=there.inside.rpartition("/")[2])
    return Origin(
        there.address, shape, lambda name: opener(prefix + name), tuple(names), is_file=there.is_file
    )


@dataclass(frozen=True)
class Remote:
    """A dataset elsewhere: the store that it lies in, and what of it was named."""

    store: Store
    inside: str
    """The file or folder inside the store that the address names; empty: all of it."""
    files: Mapping[str, Blob]
    """What lies there, under its whole name in the store."""

    @property
    def is_file(self) -> bool:
        return self.inside in self.files

    @property
    def address(self) -> str:
        """Printable."""
        return f"{self.store.address}/{self.inside}" if self.inside else self.store.address


def remote(address: str, settings: Settings, *, on_retry: OnRetry | None = None) -> Remote:
    """What lies at ``hf://datasets/ORG/NAME[@REVISION][/PATH]`` or an fsspec URL of a folder or a row file.

    A REVISION holds no slash, but for ``refs/pr/N`` and ``refs/convert/NAME``. Raises
    ``DatasetInvalidError`` where there is nothing, and what the store raises.
    """
    where, inside = _divided(address)
    try:
        store = locate(where, settings, on_retry=on_retry).store
        listing = store.list()
    except PoolNotFoundError as e:
        raise DatasetInvalidError(e.message, hint=e.hint) from None
    if not inside:
        return Remote(store, "", listing.blobs)
    files = {n: b for n, b in listing.blobs.items() if n == inside or n.startswith(f"{inside}/")}
    if not files:
        close = nearest(inside, listing.blobs)
        raise DatasetInvalidError(
            f"{store.address} holds no file or folder {inside}",
            hint=f"nearest there: {', '.join(close)}" if close else "",
        )
    return Remote(store, inside, files)


def _divided(address: str) -> tuple[str, str]:
    """(address of a store, path inside it)."""
    if match := _HUB.fullmatch(address):
        return match["store"], match["inside"].strip("/")
    folder, _, name = address.rpartition("/")
    return (folder, name) if is_row_file(name) and "://" in folder else (address, "")


def _local(place: Path, address: str) -> Origin:
    is_file = place.is_file()
    if not is_file and not place.is_dir():
        raise DatasetInvalidError(
            f"{address}: no such file or folder",
            hint="a dataset is a file, a folder, or hf://datasets/ORG/NAME",
        )
    root = place.parent if is_file else place
    names = (place.name,) if is_file else tuple(_walk(place))

    def opener(name: str) -> BinaryIO:
        try:
            return (root / name).open("rb")
        except OSError as e:
            raise DatasetInvalidError(f"{root / name}: cannot be read: {e.strerror}") from None

    if is_file:
        shape = shape_of_file(place.name, address)
    else:
        shape = shape_of(names, address, own_name=place.resolve().name)
    return Origin(address, shape, opener, names, root, is_file)


def _walk(root: Path) -> Iterator[str]:
    """Names of the files under ``root``, links followed; of a task folder those that make it one."""

    def enter(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
        try:
            with os.scandir(root / folder) as scan:
                entries = sorted((e for e in scan if not e.name.startswith(".")), key=lambda e: e.name)
            st = os.stat(root / folder)
        except OSError as e:
            raise DatasetInvalidError(f"{root / folder}: cannot be read: {e.strerror}") from None
        prefix = f"{folder}/" if folder else ""
        marks = {e.name for e in entries} & ({TASK_FILE, IMAGE_FILE} if folder else {TASK_FILE})
        if marks:
            yield from (prefix + name for name in sorted(marks))
            return
        me = (st.st_dev, st.st_ino)
        for entry in entries:
            if entry.is_dir():
                if me not in above and len(above) < MAX_DEPTH:
                    yield from enter(prefix + entry.name, (*above, me))
            elif entry.is_file():
                yield prefix + entry.name

    yield from enter("", ())


def opener_of(store: Store, files: Mapping[str, Blob]) -> Opener:
    """Opens the listed files of a store by name, for reading anywhere by ranges."""

    def opener(name: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_StoreFile(store, name, files[name].size), BUFFER))

    return opener


class _StoreFile(io.RawIOBase):
    """A file of a store, readable anywhere; each read is one range."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._size - self._at))
        data = self._store.read_range(self._path, self._at, length) if length else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
