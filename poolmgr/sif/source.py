"""Byte sources: what the image reader reads from, always by position and never by mmap.

mmap turns a short read on a network filesystem into a SIGBUS (facts: sif section 6, row 20).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, runtime_checkable


class Source(Protocol):
    """A file of known size that can be read anywhere."""

    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """``length`` bytes at ``offset``, fewer only at the end of the file."""
        ...


@runtime_checkable
class IntoSource(Source, Protocol):
    """A source that can fill memory which is there already."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``offset`` on; how many bytes came, fewer only at the end of the file."""
        ...


class BytesSource:
    """An image that lies in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length] if offset >= 0 and length > 0 else b""


class FileSource:
    """An open file; a context manager that closes it. Follows a symbolic link."""

    def __init__(self, path: str | Path) -> None:
        # O_NONBLOCK: opening a pipe must not wait for its writer
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.stat = os.fstat(self.fd)
        except OSError:
            os.close(self.fd)
            raise
        self.size = self.stat.st_size

    def read_at(self, offset: int, length: int) -> bytes:
        if offset < 0 or length <= 0:
            return b""
        data = os.pread(self.fd, length, offset)
        if len(data) == length or not data or offset + len(data) >= self.size:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            more = os.pread(self.fd, length - got, offset + got)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        got = 0
        while got < len(buffer):
            more = os.preadv(self.fd, [buffer[got:]], offset + got)
            if not more:
                break
            got += more
        return got

    def first_hole(self) -> int | None:
        """Where the file has no bytes on disk before its end; None where it is whole."""
        if self.stat.st_blocks * 512 >= self.size:
            return None
        try:
            hole = os.lseek(self.fd, 0, os.SEEK_HOLE)
        except OSError:
            return None
        return hole if hole < self.size else None

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
