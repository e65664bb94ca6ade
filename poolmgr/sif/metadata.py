"""Metadata tables: their blocks found, unpacked within bounds, and laid together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from poolmgr.sif.codecs import LZMA, XZ, Codec
from poolmgr.sif.squashfs import METADATA, DamageError, Squashfs, unpack_block

MAX_UNPACKED = 16 << 20
"""Bytes of metadata that any file may unpack to …"""
MAX_RATIO = 16
"""… and how many more for every byte that it has."""
SLOW = frozenset({XZ, LZMA})
"""Compressors that take so long for a block that a second thread is worth it …"""
WORTH_THREADS = 64 << 10
"""… for a table of so many bytes."""
BATCH = 8


@dataclass(slots=True)
class Table:
    """One table, unpacked."""

    data: bytes
    starts: tuple[int, ...]
    """Where each of its blocks begins, relative to the table."""
    index: dict[int, int] = field(default_factory=dict)
    """Block start -> where its bytes begin in ``data``."""

    def place(self, block: int, offset: int, what: str) -> int:
        """Where in ``data`` the metadata reference (block, offset) leads."""
        base = self.index.get(block)
        if base is None or offset >= METADATA or base + offset > len(self.data):
            raise DamageError("sq-reference", f"{what}: no metadata at block {block}, offset {offset}")
        return base + offset


class Unpacker:
    """Unpacks the tables of one filesystem; a small file that unpacks without end is stopped."""

    def __init__(self, fs: Squashfs, threads: int = 1) -> None:
        self.fs = fs
        self.threads = threads
        self.codec: Codec = fs.codec()
        self.left = MAX_UNPACKED + MAX_RATIO * fs.sb.bytes_used

    def stream(self, name: str, start: int, end: int) -> Table:
        """A table of metadata blocks that fill ``start`` to ``end`` exactly, all but the last one whole."""
        data = bytearray()
        starts: list[int] = []
        for at, block in self._blocks(start, end):
            if len(data) % METADATA:
                raise DamageError("sq-meta", f"a block in the middle of the {name} table is not whole")
            starts.append(at - start)
            self._take(len(block))
            data += block
        return Table(bytes(data), tuple(starts), {at: n * METADATA for n, at in enumerate(starts)})

    def indexed(self, name: str, index: tuple[int, ...], size: int, end: int) -> bytes:
        """A table whose blocks an index points to: ``size`` bytes, the last block ending at ``end``."""
        data = bytearray()
        for place, at in enumerate(index):
            until = index[place + 1] if place + 1 < len(index) else end
            block, after = self.fs.metadata_block(self.codec, at, until)
            if after != until:
                raise DamageError("sq-meta", f"a block of the {name} table ends at {after}, not at {until}")
            self._take(len(block))
            data += block
            if len(data) != min(size, METADATA * (place + 1)):
                raise DamageError("sq-meta", f"the {name} table unpacks to {len(data)} bytes, not to {size}")
        return bytes(data)

    def _take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _bomb()

    def _blocks(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """(position, unpacked bytes) of the blocks from ``start`` to ``end``."""
        fs, at = self.fs, start
        if self.threads < 2 or fs.sb.compressor not in SLOW or end - start < WORTH_THREADS:
            while at < end:
                block, after = fs.metadata_block(self.codec, at, end)
                yield at, block
                at = after
            return
        packed: list[tuple[int, bool, bytes]] = []
        while at < end:
            stored, body, after = fs.packed_block(at, end)
            packed.append((at, stored, body))
            at = after
            if len(packed) * METADATA > self.left + METADATA:
                raise _bomb()
        batches = [packed[i : i + BATCH] for i in range(0, len(packed), BATCH)]
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="tables")
        try:
            yield from chain.from_iterable(pool.map(self._several, batches))
        finally:
            pool.shutdown(cancel_futures=True)

    def _several(self, packed: list[tuple[int, bool, bytes]]) -> list[tuple[int, bytes]]:
        codec = self.fs.codec()
        return [(at, body if stored else unpack_block(codec, at, body)) for at, stored, body in packed]


def _bomb() -> DamageError:
    return DamageError("sq-bomb", "the metadata unpacks to far more than a file of this size can need")
