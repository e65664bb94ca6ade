"""A task dataset, wherever it lies, as rows: a file, a folder, ``hf://…`` or any fsspec URL."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from poolmgr.errors import DatasetInvalidError, PoolNotFoundError
from poolmgr.harbor.dataset import rows, shape_of
from poolmgr.harbor.rows import Opener
from poolmgr.model.blob import Blob
from poolmgr.model.task import Row
from poolmgr.settings import Settings
from poolmgr.store.address import is_url
from poolmgr.store.base import OnRetry, Store
from poolmgr.store.locate import locate

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER = 1 << 20
"""Bytes that a read of a remote file brings at least."""


@dataclass(frozen=True)
class Dataset:
    address: str
    """Printable."""
    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """(name, why) of what looks like rows and was not read."""


def open_dataset(address: str, settings: Settings, *, on_retry: OnRetry | None = None) -> Dataset:
    """Every row of the dataset at ``address``.

    Raises ``DatasetInvalidError`` where there are no rows, and what the store raises.
    """
    if not is_url(address) and Path(address).expanduser().is_file():
        file = Path(address).expanduser()
        shape = shape_of([file.name], address)
        return Dataset(address, tuple(rows(shape, lambda _: file.open("rb"))), shape.skipped)
    if not is_url(address) and not Path(address).expanduser().is_dir():
        raise DatasetInvalidError(
            f"{address}: no such file or folder",
            hint="a dataset is a file, a folder, or hf://datasets/ORG/NAME",
        )
    try:
        store = locate(address, settings, on_retry=on_retry).store
        listing = store.list()
    except PoolNotFoundError as e:
        raise DatasetInvalidError(e.message, hint=e.hint) from None
    shape = shape_of(listing.blobs, store.address)
    return Dataset(store.address, tuple(rows(shape, opener_of(store, listing.blobs))), shape.skipped)


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
