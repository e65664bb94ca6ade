"""The protocol of a store: what every place that holds a pool can do.

Small on purpose. Retries, limits and time-outs are a store's own affair; what is good or bad is
the caller's. Every store passes tests/store/test_conformance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeGuard

from poolmgr.model.blob import Listing

OnRetry = Callable[[str], None]
"""Told in one line what is being retried, why, and after how many seconds."""


class Body(Protocol):
    """Bytes on their way."""

    start: int
    """Offset of the first byte that will come: the one asked for, or 0 if the server ignored it."""
    total: int | None
    """Size of the whole file where the server says it."""

    def __iter__(self) -> Iterator[bytes]: ...


class Store(Protocol):
    """Reading. Paths are blob paths (model/blob.py) or the name of an index or dataset file.

    Errors: a missing path is ``FileMissingError``; refusals and passing trouble are
    ``CredentialsError``, ``RemoteRefusedError`` and ``RemoteTroubleError``.
    """

    address: str
    """Printable: without user info, query string or token."""

    @property
    def commit(self) -> str | None:
        """The commit that every read uses, pinned on first need; None where there are none."""
        ...

    def list(self) -> Listing:
        """Everything the pool holds, at the pinned commit; a fresh look for stores without commits."""
        ...

    def read(self, path: str, *, limit: int) -> bytes:
        """The whole file; ``BadFileError`` when it is larger than ``limit`` bytes."""
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``start``, fewer only where the file ends."""
        ...

    def stream(self, path: str, start: int = 0) -> AbstractContextManager[Body]:
        """The bytes from ``start`` on, as they arrive."""
        ...


class WritableStore(Store, Protocol):
    """A store that takes new files."""

    def put(self, path: str, source: Path | bytes) -> None:
        """Create ``path``, complete or not at all; ``AlreadyExistsError`` if the name is taken."""
        ...


class CommittingStore(WritableStore, Protocol):
    """A store whose changes are commits, as the Hub's are."""

    def commit_files(self, files: Mapping[str, Path | bytes], *, message: str, parent: str | None) -> str:
        """One commit on top of ``parent``; returns its id. ``PoolChangedError`` if the head moved."""
        ...


# Not isinstance() on these protocols: Python 3.11 would read every member of the store for it,
# ``commit`` among them, which asks the Hub.


def can_write(store: Store) -> TypeGuard[WritableStore]:
    """Whether the store takes new files; asks nothing of it."""
    return hasattr(type(store), "put")


def can_commit(store: Store) -> TypeGuard[CommittingStore]:
    """Whether the store's changes are commits; asks nothing of it."""
    return hasattr(type(store), "commit_files")


class RangeSource:
    """A file of a store as the byte source that the image reader takes (sif/source.py).

    The first read brings the head (where a SIF keeps its header and descriptors) in one request;
    further reads are as asked for, and small neighbouring ones are served from what is here.
    """

    HEAD = 36 * 1024
    STEP = 4 * 1024

    def __init__(self, store: Store, path: str, size: int) -> None:
        self.size = size
        self._store = store
        self._path = path
        self._start = 0
        self._data = b""

    def read_at(self, offset: int, length: int) -> bytes:
        """``length`` bytes at ``offset``, fewer only at the end of the file."""
        length = max(0, min(length, self.size - offset))
        if length == 0:
            return b""
        end = offset + length
        if not (self._start <= offset and end <= self._start + len(self._data)):
            want = max(length, self.HEAD if offset == 0 else self.STEP)
            begin = max(0, min(offset, self.size - want))
            if begin + want < end:
                begin = offset
            self._data = self._store.read_range(self._path, begin, max(want, end - begin))
            self._start = begin
        at = offset - self._start
        return self._data[at : at + length]
