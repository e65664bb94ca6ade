"""A filesystem made anew from another: what stays is copied as it lies, what goes is really gone.

Compressed data blocks of files that stay are copied verbatim. A fragment block that held bytes of
a file that goes is unpacked and written again without them. The tables are new. So a removal
costs a copy and the tables, not a compression of everything.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import BinaryIO

from poolmgr.sif import codecs, write_codec
from poolmgr.sif.changes import Changes, apply, drop
from poolmgr.sif.codecs import CodecError
from poolmgr.sif.graph import read_graph, walk
from poolmgr.sif.squashfs import NO_FRAGMENT, STORED_BLOCK, DamageError
from poolmgr.sif.tables import Tables
from poolmgr.sif.write_data import DataWriter, Sink
from poolmgr.sif.write_node import Inode, Kind, Placement
from poolmgr.sif.write_squashfs import begin, end

NONE = -1
_CHUNK = 1 << 20
_SUPERBLOCK = 96
_NO_FRAGMENTS, _OPTIONS = 0x10, 0x400
_SIZE = STORED_BLOCK - 1


def write_codec_of(t: Tables) -> write_codec.Codec:
    """The codec that continues the filesystem: its compressor, with the options that it was made with.

    lzo can be read and not written here; its tables and new blocks are stored as they are.
    """
    sb = t.fs.sb
    options = b""
    if sb.flags & _OPTIONS:
        word = struct.unpack("<H", t.fs.read(_SUPERBLOCK, 2))[0]
        options = t.fs.read(_SUPERBLOCK + 2, word & 0x7FFF)
        if not word & 0x8000:
            options = codecs.open_codec(sb.compressor)(options, write_codec.METADATA)
    name = codecs.NAMES[sb.compressor]
    level = dictionary = None
    if name in ("gzip", "zstd") and len(options) >= 4:
        level = struct.unpack_from("<I", options)[0]
    elif name == "xz" and len(options) >= 8:
        dictionary = struct.unpack_from("<I", options)[0]
    if name not in write_codec.WRITABLE:
        return write_codec.Codec(name, sb.compressor, None, options)
    made = write_codec.codec(name, sb.block_size, level, dictionary)
    return replace(made, options=options)


def rebuild(t: Tables, changes: Changes, out: BinaryIO) -> int:
    """Writes the filesystem of ``t`` with ``changes`` into ``out`` where it stands; its size in bytes.

    ``ValueError`` where a change cannot be made, ``DamageError`` where the source cannot be read.
    """
    graph = read_graph(t)
    before = _fragment_users(graph.numbers.values())
    drop(graph.root, changes)
    kept = _files(graph.root)
    chosen = write_codec_of(t)
    sb = t.fs.sb
    sink = Sink(out)
    begin(sink, chosen)
    mover = _Mover(t, sink, chosen)
    mover.copy(kept, before)
    for inode in kept:
        inode.place = mover.moved(inode.place)
    use_fragments = not sb.flags & _NO_FRAGMENTS
    data = DataWriter(sink, chosen, sb.block_size, use_fragments=use_fragments, fragments=mover.fragments)
    apply(graph.root, changes, data.place)
    data.finish()
    return end(
        sink, graph.root, chosen, data.fragments, block_size=sb.block_size, export=sb.export_table != NONE,
        time=sb.mkfs_time, use_fragments=use_fragments, stored_data=False,
    )  # fmt: skip


def _files(root: Inode) -> list[Inode]:
    return list({id(i): i for _, i in walk(root) if i.kind is Kind.FILE}.values())


def _fragment_users(inodes: Iterable[Inode]) -> dict[int, set[tuple[int, int]]]:
    """Fragment -> (offset of its tail, size) of every file that has one there."""
    users: dict[int, set[tuple[int, int]]] = {}
    for inode in inodes:
        if inode.kind is Kind.FILE and inode.place.fragment != NO_FRAGMENT:
            users.setdefault(inode.place.fragment, set()).add((inode.place.offset, inode.place.size))
    return users


@dataclass(slots=True)
class _Piece:
    """Bytes [start, end) of the old place, now at ``to``."""

    start: int
    end: int
    to: int


class _Mover:
    """Copies what stays, and knows where each thing went."""

    def __init__(self, t: Tables, sink: Sink, chosen: write_codec.Codec) -> None:
        self.t = t
        self.sink = sink
        self.chosen = chosen
        self.block_size = t.fs.sb.block_size
        self.codec = codecs.open_codec(t.fs.sb.compressor)
        self.pieces: list[_Piece] = []
        self.starts: list[int] = []
        self.fragments: list[tuple[int, int]] = []
        self.renumbered: dict[int, int] = {}
        self.inside: dict[int, list[_Piece]] = {}
        """Fragment that was written again -> where its bytes went."""

    def copy(self, kept: list[Inode], before: dict[int, set[tuple[int, int]]]) -> None:
        after = _fragment_users(kept)
        whole = [n for n in sorted(after) if after[n] == before[n]]
        ranges = []
        for inode in kept:
            size = sum(word & _SIZE for word in inode.place.words)
            if size:
                ranges.append((inode.place.start, inode.place.start + size))
        for number in whole:
            start, word = self.t.fragments[number]
            ranges.append((start, start + (word & _SIZE)))
        for start, stop in _merged(ranges):
            self.pieces.append(_Piece(start, stop, self.sink.at))
            for at in range(start, stop, _CHUNK):
                self.sink.write(self.t.fs.read(at, min(_CHUNK, stop - at)))
        self.starts = [piece.start for piece in self.pieces]
        untouched = set(whole)
        tails: dict[int, list[tuple[int, int]]] = {}
        for inode in kept:
            place = inode.place
            if place.fragment != NO_FRAGMENT:
                tail = (place.offset, place.offset + place.size % self.block_size)
                tails.setdefault(place.fragment, []).append(tail)
        for number in sorted(after):
            self.renumbered[number] = len(self.fragments)
            start, word = self.t.fragments[number]
            if number in untouched:
                self.fragments.append((self._moved(start), word))
            else:
                self.fragments.append(self._again(number, start, word, tails[number]))

    def moved(self, place: Placement) -> Placement:
        """Where the content at the old ``place`` is now."""
        start = self._moved(place.start) if any(place.words) else 0
        if place.fragment == NO_FRAGMENT:
            return replace(place, start=start)
        offset = place.offset
        for piece in self.inside.get(place.fragment, ()):
            if piece.start <= offset < piece.end:
                offset += piece.to - piece.start
                break
        return replace(place, start=start, fragment=self.renumbered[place.fragment], offset=offset)

    def _moved(self, at: int) -> int:
        piece = self.pieces[bisect.bisect_right(self.starts, at) - 1]
        return at + piece.to - piece.start

    def _unpack(self, start: int, word: int) -> bytes:
        raw = self.t.fs.read(start, word & _SIZE)
        if word & STORED_BLOCK:
            return raw
        try:
            return self.codec(raw, self.block_size)
        except CodecError as e:
            raise DamageError("sq-data", f"the block at {start} does not unpack: {e}") from None

    def _again(self, number: int, start: int, word: int, tails: list[tuple[int, int]]) -> tuple[int, int]:
        """The fragment written anew, holding the tails of files that stay and nothing else."""
        old = self._unpack(start, word)
        new = bytearray()
        pieces = self.inside[number] = []
        for first, last in _merged(tails):
            if last > len(old):
                raise DamageError("sq-fragment", f"fragment {number} is too short for a file's tail")
            pieces.append(_Piece(first, last, len(new)))
            new += old[first:last]
        packed, compressed = self.chosen.pack(bytes(new))
        return self.sink.write(packed), len(packed) | (0 if compressed else STORED_BLOCK)


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes, as the fewest ranges, in order."""
    result: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result
