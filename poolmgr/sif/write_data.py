"""The data part of a squashfs: blocks and fragments, written as they come, equal contents once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import BinaryIO

from poolmgr.sif.squashfs import NO_FRAGMENT, STORED_BLOCK
from poolmgr.sif.write_codec import Codec
from poolmgr.sif.write_node import Placement


class Sink:
    """A seekable file, written forwards from where it stands; positions count from there."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.base = out.tell()
        self.at = 0

    def write(self, data: bytes) -> int:
        """Writes ``data`` and says where it begins."""
        start = self.at
        self.out.write(data)
        self.at += len(data)
        return start

    def patch(self, at: int, data: bytes) -> None:
        """Writes ``data`` over what stands at ``at``."""
        self.out.seek(self.base + at)
        self.out.write(data)
        self.out.seek(self.base + self.at)


class DataWriter:
    """Places file contents. ``fragments`` is the table that the filesystem then needs."""

    def __init__(
        self,
        sink: Sink,
        codec: Codec,
        block_size: int,
        *,
        use_fragments: bool = True,
        fragments: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.sink = sink
        self.codec = codec
        self.block_size = block_size
        self.use_fragments = use_fragments
        self.fragments = list(fragments)
        """(start, size word) of each fragment block, those that are there already first."""
        self._open = bytearray()
        self._known: dict[bytes, Placement] = {}

    def place(self, data: bytes) -> Placement:
        """Stores ``data`` unless the same content is there already; says where it lies."""
        if not data:
            return Placement()
        key = hashlib.sha256(data).digest()
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._store(data)
        return known

    def finish(self) -> None:
        """Writes the fragment block that is still open."""
        if self._open:
            start, word = self._block(bytes(self._open))
            self.fragments.append((start, word))
            self._open.clear()

    def _store(self, data: bytes) -> Placement:
        if self.use_fragments and len(data) < self.block_size:
            if len(self._open) + len(data) > self.block_size:
                self.finish()
            offset = len(self._open)
            self._open += data
            return Placement(len(data), 0, (), len(self.fragments), offset)
        start = self.sink.at
        words = []
        sparse = 0
        for at in range(0, len(data), self.block_size):
            chunk = data[at : at + self.block_size]
            if not chunk.strip(b"\0"):
                words.append(0)
                sparse += len(chunk)
            else:
                words.append(self._block(chunk)[1])
        # A file of nothing but holes keeps one byte, as mksquashfs does: its block count stays sane.
        return Placement(len(data), start, tuple(words), NO_FRAGMENT, 0, min(sparse, len(data) - 1))

    def _block(self, data: bytes) -> tuple[int, int]:
        packed, compressed = self.codec.pack(data)
        return self.sink.write(packed), len(packed) | (0 if compressed else STORED_BLOCK)
