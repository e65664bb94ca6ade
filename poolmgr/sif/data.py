"""Level ``data``: every data block unpacked, in one pass over the file that hashes what is asked for.

The file is read in pieces, front to back, once. The pieces are hashed in their order by the reading
thread; the blocks in them are unpacked by others meanwhile (the libraries let go of the interpreter
lock). Handing over whole pieces and not single blocks is what makes two threads twice as fast.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from poolmgr.model.finding import Finding
from poolmgr.sif import codecs
from poolmgr.sif.codecs import Codec, CodecError
from poolmgr.sif.header import finding
from poolmgr.sif.source import IntoSource, Source
from poolmgr.sif.squashfs import SIZE_BITS, STORED_BLOCK
from poolmgr.sif.stop import Stop, StoppedError, never
from poolmgr.sif.tables import Tables

PIECE = 1 << 21
"""Bytes of a piece at most; less where a file would not give work to every thread."""
PIECES = 64
LEAST_PIECE = 1 << 18
GAP = 1 << 16
"""Unused bytes between two blocks that are read over rather than skipped."""
MAX_FINDINGS = 10


@dataclass(slots=True)
class Digest:
    """A hash of the bytes from ``start`` to ``end`` of the file."""

    start: int
    end: int
    algorithm: str = "sha256"
    state: Any = None

    def __post_init__(self) -> None:
        self.state = hashlib.new(self.algorithm, usedforsecurity=False)

    def feed(self, at: int, data: memoryview) -> None:
        begin, end = max(self.start, at), min(self.end, at + len(data))
        if begin < end:
            whole = begin == at and end == at + len(data)
            self.state.update(data if whole else data[begin - at : end - at])

    @property
    def hex(self) -> str:
        return str(self.state.hexdigest())


@dataclass(frozen=True, slots=True)
class Filesystem:
    """One filesystem whose blocks are to be read."""

    where: str
    tables: Tables


@dataclass(slots=True)
class Outcome:
    """What the pass found."""

    findings: list[Finding] = field(default_factory=list)
    bad_blocks: int = 0
    blocks: int = 0
    unsummed: int = 0
    """Blocks without a checksum of their own, and the bytes they have in the file."""
    unsummed_bytes: int = 0


@dataclass(slots=True)
class _Piece:
    start: int
    end: int
    items: list[tuple[int, int]] = field(default_factory=list)
    """(number of the filesystem, key) of the blocks in it."""


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_through(
    source: Source,
    filesystems: Sequence[Filesystem],
    digests: Sequence[Digest],
    *,
    threads: int | None = None,
    stop: Stop = never,
) -> Outcome:
    """Unpack every block of ``filesystems`` and feed every digest, reading each byte at most once.

    Raises ``StoppedError`` soon after ``stop`` says so.
    """
    outcome = Outcome()
    work = _Unpacker(filesystems, stop)
    threads = threads or processors()
    with ThreadPoolExecutor(threads, thread_name_prefix="unpack") as pool:
        ahead: dict[Future[Outcome], memoryview] = {}
        size = min(PIECE, max(LEAST_PIECE, source.size // PIECES))
        memory = _Memory(source, size)
        for piece in _pieces(filesystems, digests, outcome, size):
            if outcome.bad_blocks >= MAX_FINDINGS and not digests:
                break
            if stop():
                raise StoppedError
            wanted = piece.end - piece.start
            data = memory.read(piece.start, wanted)
            if len(data) != wanted:
                outcome.findings.append(
                    finding("short-read", f"{wanted} bytes at {piece.start} expected, {len(data)} read")
                )
                break
            if piece.items:
                ahead[pool.submit(work, piece, data)] = data
            for digest in digests:
                digest.feed(piece.start, data)
            if not piece.items:
                memory.give_back(data)
            while len(ahead) > 2 * threads:
                for future in wait(ahead, return_when=FIRST_COMPLETED).done:
                    _join(outcome, future.result())
                    memory.give_back(ahead.pop(future))
        for future in ahead:
            _join(outcome, future.result())
    outcome.findings.sort(key=lambda f: f.where)
    if outcome.bad_blocks > MAX_FINDINGS:
        more = outcome.bad_blocks - MAX_FINDINGS
        outcome.findings.append(finding("sq-data", f"{more} or more further blocks do not unpack either"))
    return outcome


class _Memory:
    """The memory that pieces are read into, used again: fresh pages for each would cost up to a third."""

    def __init__(self, source: Source, size: int) -> None:
        self.source = source
        self.size = size
        """Bytes of most pieces, at most."""
        self.free: list[memoryview] = []

    def read(self, at: int, length: int) -> memoryview:
        """``length`` bytes at ``at``; fewer only at the end of the file."""
        if not isinstance(self.source, IntoSource):
            return memoryview(self.source.read_at(at, length))
        whole = self.free.pop() if self.free else memoryview(bytearray())
        if len(whole) < length:
            whole = memoryview(bytearray(max(length, self.size)))
        return whole[: self.source.read_into(at, whole[:length])]

    def give_back(self, data: memoryview) -> None:
        """``data`` is needed no more."""
        if isinstance(data.obj, bytearray):
            self.free.append(memoryview(data.obj))


def _join(total: Outcome, part: Outcome) -> None:
    total.findings += part.findings[: max(0, MAX_FINDINGS - len(total.findings))]
    total.bad_blocks += part.bad_blocks
    total.blocks += part.blocks
    total.unsummed += part.unsummed
    total.unsummed_bytes += part.unsummed_bytes


def _keys(tables: Tables) -> list[int]:
    """Every block of a filesystem once, in the order of the file."""
    fragments = (start << SIZE_BITS | word for start, word in tables.fragments)
    return sorted({*tables.blocks, *fragments})


def _pieces(
    filesystems: Sequence[Filesystem], digests: Sequence[Digest], outcome: Outcome, size: int
) -> Iterator[_Piece]:
    """What to read, front to back: all blocks, and all that is hashed."""
    at = 0
    piece: _Piece | None = None
    order = sorted(range(len(filesystems)), key=lambda n: filesystems[n].tables.fs.offset)
    for number in order:
        base = filesystems[number].tables.fs.offset
        for key in _keys(filesystems[number].tables):
            start = base + (key >> SIZE_BITS)
            end = start + (key & (STORED_BLOCK - 1))
            if start < (piece.end if piece else at):
                outcome.bad_blocks += 1
                message = f"the block at {start - base} overlaps the one before it"
                outcome.findings.append(finding("sq-overlap", message, filesystems[number].where))
                return
            if piece is None or start - piece.end > GAP or end - piece.start > size:
                if piece is not None:
                    yield piece
                    at = piece.end
                yield from _between(at, start, digests)
                piece = _Piece(start, end)
            piece.items.append((number, key))
            piece.end = end
    if piece is not None:
        yield piece
        at = piece.end
    yield from _between(at, max((d.end for d in digests), default=at), digests)


def _between(at: int, end: int, digests: Sequence[Digest]) -> Iterator[_Piece]:
    """Pieces without blocks: the parts of ``at`` to ``end`` that some digest wants."""
    while at < end:
        start = min((max(d.start, at) for d in digests if d.end > at and d.start < end), default=end)
        if start >= end:
            return
        stop = min(end, start + PIECE)
        if not any(d.start <= start and stop <= d.end for d in digests):
            edges = [e for d in digests for e in (d.start, d.end) if start < e < stop]
            stop = min(edges, default=stop)
        yield _Piece(start, stop)
        at = stop


class _Unpacker:
    """Unpacks the blocks of one piece, in any thread."""

    def __init__(self, filesystems: Sequence[Filesystem], stop: Stop) -> None:
        self.filesystems = filesystems
        self.stop = stop
        self.fragments = [
            {
                s << SIZE_BITS | word: need
                for (s, word), need in zip(f.tables.fragments, f.tables.fragment_need, strict=True)
            }
            for f in filesystems
        ]
        self.local = threading.local()

    def codec(self, number: int) -> Codec:
        """This thread's codec for the filesystem of that number."""
        try:
            held: dict[int, Codec] = self.local.codecs
        except AttributeError:
            held = self.local.codecs = {}
        if number not in held:
            held[number] = self.filesystems[number].tables.fs.codec()
        return held[number]

    def __call__(self, piece: _Piece, data: memoryview) -> Outcome:
        outcome = Outcome()
        for number, key in piece.items:
            if self.stop():
                raise StoppedError
            tables = self.filesystems[number].tables
            sb = tables.fs.sb
            size = key & (STORED_BLOCK - 1)
            start = (key >> SIZE_BITS) + tables.fs.offset - piece.start
            wanted = tables.blocks.get(key)
            least = self.fragments[number].get(key, 0)
            stored = bool(key & STORED_BLOCK)
            outcome.blocks += 1
            if stored or sb.compressor not in codecs.CHECKSUMMED:
                outcome.unsummed += 1
                outcome.unsummed_bytes += size
            trouble = ""
            got = size
            if not stored:
                try:
                    got = len(self.codec(number)(data[start : start + size], sb.block_size))
                except CodecError as e:
                    trouble = f"does not unpack: {e}"
            if not trouble and ((wanted is not None and got != wanted) or got < least):
                trouble = f"unpacks to {got} bytes, {wanted if wanted is not None else least} are needed"
            if trouble:
                outcome.bad_blocks += 1
                if len(outcome.findings) < MAX_FINDINGS:
                    kind = "block" if wanted is not None else "fragment block"
                    message = f"the {kind} at {key >> SIZE_BITS} ({size} bytes) {trouble}"
                    outcome.findings.append(finding("sq-data", message, self.filesystems[number].where))
        return outcome
