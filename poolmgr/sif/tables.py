"""Level ``tables``: every metadata table of a squashfs unpacked, parsed and cross-checked."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from poolmgr.sif.directories import check_directories
from poolmgr.sif.inodes import read_inodes
from poolmgr.sif.metadata import Table, Unpacker
from poolmgr.sif.squashfs import SIZE_BITS, STORED_BLOCK, SUPER, DamageError, Squashfs
from poolmgr.sif.xattrs import XattrSet, read_xattrs

READAHEAD = 1 << 18
_FRAGMENT = struct.Struct("<QII")


@dataclass(frozen=True, slots=True)
class Tables:
    """All metadata of one filesystem, checked."""

    fs: Squashfs
    inodes: Table
    directories: Table
    ids: tuple[int, ...]
    fragments: Sequence[tuple[int, int]]
    """(position, size word) of each fragment block."""
    fragment_need: array[int]
    """Bytes that files want of each fragment block."""
    refs: array[int]
    """Inode number -> its reference; [0] is unused."""
    types: bytearray
    """Inode number -> its basic type."""
    blocks: dict[int, int]
    """Key of each data block -> bytes that it must unpack to."""
    xattr_kv: Table | None
    xattr_ids: Sequence[XattrSet]


def read_tables(fs: Squashfs, *, threads: int = 1) -> Tables:
    """Unpack and check all metadata of ``fs``; ``threads`` unpack where the compressor is slow.

    Raises ``DamageError`` at the first thing that cannot be, ``MissingCodecError`` without the codec.
    """
    sb = fs.sb
    fs.readahead = READAHEAD
    unpacker = Unpacker(fs, threads)
    inodes = unpacker.stream("inode", sb.inode_table, sb.directory_table)
    directories = unpacker.stream("directory", sb.directory_table, _after_directories(fs))
    if sb.fragments > sb.inodes or sb.ids > 2 * sb.inodes:  # unsquashfs refuses both
        raise DamageError(
            "sq-counts", f"{sb.fragments} fragments and {sb.ids} owners for {sb.inodes} inodes: too many"
        )
    raw = unpacker.indexed("id", fs.id_index, sb.ids * 4, sb.id_table)
    ids = struct.unpack(f"<{sb.ids}I", raw)
    fragments = _fragments(unpacker)
    xattr_kv, xattr_ids = read_xattrs(unpacker)
    found = read_inodes(fs, inodes, fragments)
    check_directories(sb.root, directories, found)
    if fs.export_index:
        raw = unpacker.indexed("export", fs.export_index, sb.inodes * 8, sb.export_table)
        if raw != _little(found.refs)[8:]:
            raise DamageError("sq-export", "the export table does not lead to the inodes")
    return Tables(
        fs, inodes, directories, ids, fragments, found.fragment_need, found.refs, found.types,
        found.blocks, xattr_kv, xattr_ids,
    )  # fmt: skip


def _little(numbers: array[int]) -> bytes:
    if struct.pack("=H", 1) != struct.pack("<H", 1):
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _after_directories(fs: Squashfs) -> int:
    """Where the directory table ends: where the first table after it begins."""
    for index in (fs.fragment_index, fs.export_index, fs.id_index):
        if index:
            return index[0]
    return fs.sb.bytes_used


def _fragments(unpacker: Unpacker) -> Sequence[tuple[int, int]]:
    sb = unpacker.fs.sb
    if not sb.fragments:
        return ()
    size = sb.fragments * _FRAGMENT.size
    raw = unpacker.indexed("fragment", unpacker.fs.fragment_index, size, sb.fragment_table)
    result = []
    for number, (start, word, _) in enumerate(_FRAGMENT.iter_unpack(raw)):
        length = word & (STORED_BLOCK - 1)
        last = sb.inode_table - length
        if not 0 < length <= sb.block_size or word >> SIZE_BITS or not SUPER.size <= start <= last:
            raise DamageError("sq-fragment", f"fragment {number}: {length} bytes at {start} cannot be")
        result.append((start, word))
    return tuple(result)
