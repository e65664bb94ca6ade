"""The inode table: every inode parsed, its fields compared with all that they refer to.

Inodes are packed without gaps, so parsing them one after another must end exactly at the table's end
and give exactly the number that the superblock promises. Written for speed: 24,000 inodes are an
ordinary image.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from poolmgr.sif.metadata import Table
from poolmgr.sif.squashfs import (
    METADATA,
    NO_FRAGMENT,
    NO_XATTR,
    SIZE_BITS,
    STORED_BLOCK,
    DamageError,
    Squashfs,
)

DIR, REG, SYMLINK, BLOCKDEV, CHARDEV, FIFO, SOCKET = range(1, 8)
EXTENDED = 7
"""Added to a basic inode's type to make the extended one."""
LEAST_FULL = 8
"""No compressor packs a whole block into fewer bytes."""
MAX_NAME = 256
MAX_TARGET = 4095
"""Bytes of a link's target that Linux takes; of more than a page the kernel says 'Invalid argument'."""
WRONG_HEAD = 0xF000FF00
"""Bits that are in no type and no mode: the kernel refuses a mode that holds a type again."""
LISTING = 5
"""Numbers kept of a directory: its inode, its listing's block, offset and size, its parent's inode."""

# type and mode in one number, both owners in another; the time is free
_REG = struct.Struct("<II4xIIIII").unpack_from
_DIR = struct.Struct("<II4xII4xHHI").unpack_from
_HEAD = struct.Struct("<II4xI").unpack_from
_TWO = struct.Struct("<II").unpack_from
_ONE = struct.Struct("<I").unpack_from
_LDIR = struct.Struct("<IIIIHHI").unpack_from
_LREG = struct.Struct("<QQQIIII").unpack_from
_INDEX = struct.Struct("<III").unpack_from


@dataclass(slots=True)
class Inodes:
    """What the inodes of one filesystem say."""

    refs: array[int]
    """Inode number -> its reference; [0] is unused."""
    types: bytearray
    """Inode number -> its basic type."""
    fragment_need: array[int]
    """Bytes that files want of each fragment block."""
    blocks: dict[int, int] = field(default_factory=dict)
    """Key of each data block -> bytes that it must unpack to."""
    listings: array[int] = field(default_factory=lambda: array("Q"))
    """``LISTING`` numbers a directory."""
    lookups: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Directory with an index of its listing -> (position in ``data``, entries) of that index."""
    data: bytes = b""
    """The table itself."""


def read_inodes(fs: Squashfs, table: Table, fragments: Sequence[tuple[int, int]]) -> Inodes:
    """Every inode of ``table``, checked; ``DamageError`` at the first that cannot be."""
    sb = fs.sb
    data, size = table.data, len(table.data)
    if sb.inodes * 20 > size:
        raise DamageError("sq-inode", f"{sb.inodes} inodes do not fit into {size} bytes")
    out = Inodes(
        array("Q", bytes(8 * (sb.inodes + 1))),
        bytearray(sb.inodes + 1),
        array("I", bytes(4 * len(fragments))),
        data=data,
    )
    refs, types, need, directories = out.refs, out.types, out.fragment_need, out.listings
    block_size, block_log = sb.block_size, sb.block_log
    xattrs, many_fragments = fs.xattr_ids, len(fragments)
    blocks = _Blocks(fs, data, fragments, out.blocks)
    known: set[int] = set()
    owners = _Owners(sb.ids, known)
    types[0] = 1  # as if it were given, so that no inode may have the number 0
    shifts = [(start << 16) - number * METADATA for number, start in enumerate(table.starts)]
    at = turn = shift = 0
    number = 0
    try:
        while at < size:
            if at >= turn:
                shift = shifts[at // METADATA]  # what makes a position in the table a reference
                turn = at - at % METADATA + METADATA
            place = at
            kind = data[at]
            if kind == REG:
                head, owner, number, start, fragment, offset, length = _REG(data, at)
                at += 32
                if fragment < many_fragments and 0 < length < block_size:  # most files, most of the time
                    length += offset
                    if length > block_size:
                        raise _no_place(number, fragment, offset)
                    if need[fragment] < length:
                        need[fragment] = length
                elif fragment == NO_FRAGMENT:
                    if length:
                        at = blocks.add(number, start, -(-length // block_size), length, at)
                else:
                    at = blocks.add(number, start, length >> block_log, 0, at)
                    _need(need, number, fragment, offset, length & (block_size - 1), block_size)
            elif kind == DIR:
                head, owner, number, start, length, offset, parent = _DIR(data, at)
                at += 32
                directories.extend((number, start, offset, length, parent))
            else:
                head, owner, number = _HEAD(data, at)
                at += 16
                xattr = NO_XATTR
                if kind == SYMLINK or kind == SYMLINK + EXTENDED:
                    length = _TWO(data, at)[1]
                    at += 8 + length
                    if not 0 < length <= MAX_TARGET or at > size:
                        raise DamageError("sq-inode", f"inode {number}: a link's target of {length} bytes")
                    if kind != SYMLINK:
                        xattr = _ONE(data, at)[0]
                        at += 4
                elif kind == DIR + EXTENDED:
                    _, length, start, parent, entries, offset, xattr = _LDIR(data, at)
                    if entries:
                        out.lookups[number] = (at + 24, entries)
                    at = _skip_index(data, at + 24, entries, number)
                    directories.extend((number, start, offset, length, parent))
                elif kind == REG + EXTENDED:
                    start, length, _, _, fragment, offset, xattr = _LREG(data, at)
                    at += 40
                    if fragment == NO_FRAGMENT:
                        at = blocks.add(number, start, -(-length // block_size), length, at)
                    else:
                        at = blocks.add(number, start, length >> block_log, 0, at)
                        _need(need, number, fragment, offset, length & (block_size - 1), block_size)
                elif kind in (BLOCKDEV, CHARDEV):
                    at += 8
                elif kind in (FIFO, SOCKET):
                    at += 4
                elif kind in (BLOCKDEV + EXTENDED, CHARDEV + EXTENDED):
                    xattr = _ONE(data, at + 8)[0]
                    at += 12
                elif kind in (FIFO + EXTENDED, SOCKET + EXTENDED):
                    xattr = _ONE(data, at + 4)[0]
                    at += 8
                else:
                    raise DamageError("sq-inode", f"type {kind} of the inode at {place} of the table")
                if kind > SOCKET:
                    kind -= EXTENDED
                if xattr != NO_XATTR and xattr >= xattrs:
                    raise DamageError("sq-inode", f"inode {number}: xattrs {xattr} of {xattrs}")
            if head & WRONG_HEAD or types[number]:
                raise DamageError(
                    "sq-inode",
                    f"number {number}, type or mode {head:#x} of the inode at {place} of the table",
                )
            if owner not in known:
                owners.learn(number, owner)
            types[number] = kind
            refs[number] = place + shift
    except struct.error:
        raise DamageError("sq-inode", "the last inode is cut off") from None
    except IndexError:
        raise DamageError("sq-inode", f"an inode of number {number}; {sb.inodes} are promised") from None
    types[0] = 0
    missing = types.count(0) - 1
    if at != size or missing:
        raise DamageError(
            "sq-inode",
            f"{sb.inodes - missing} inodes end at {at} of {size} bytes; {sb.inodes} are promised",
        )
    return out


class _Owners:
    """The pairs of owners that were seen; there are few, so each is looked at once."""

    def __init__(self, ids: int, known: set[int]) -> None:
        self.ids = ids
        self.known = known

    def learn(self, number: int, owner: int) -> None:
        uid, gid = owner & 0xFFFF, owner >> 16
        if uid >= self.ids or gid >= self.ids:
            raise DamageError("sq-inode", f"inode {number}: owners {uid} and {gid} of {self.ids}")
        self.known.add(owner)


def _need(need: array[int], number: int, fragment: int, offset: int, tail: int, block_size: int) -> None:
    """Note the ``tail`` bytes at ``offset`` that a file wants of a fragment block."""
    if fragment >= len(need) or offset + tail > block_size or not tail:
        raise _no_place(number, fragment, offset)
    if need[fragment] < offset + tail:
        need[fragment] = offset + tail


def _no_place(number: int, fragment: int, offset: int) -> DamageError:
    return DamageError("sq-inode", f"inode {number}: no place {offset} in fragment {fragment}")


def _skip_index(data: bytes, at: int, entries: int, number: int) -> int:
    """The position after the index of an extended directory."""
    for _ in range(entries):
        _, _, length = _INDEX(data, at)
        if length >= MAX_NAME:
            raise DamageError("sq-inode", f"inode {number}: a name of {length + 1} bytes in its index")
        at += 13 + length
    return at


class _Blocks:
    """Collects the data blocks of files; no more bytes of them than there are in the file."""

    def __init__(
        self, fs: Squashfs, data: bytes, fragments: Sequence[tuple[int, int]], blocks: dict[int, int]
    ) -> None:
        self.data = data
        self.blocks = blocks
        self.block_size = fs.sb.block_size
        self.end = fs.sb.inode_table
        self.left = self.end - sum(word & (STORED_BLOCK - 1) for _, word in fragments)

    def add(self, number: int, at: int, count: int, length: int, place: int) -> int:
        """The ``count`` size words at ``place``, of a file whose blocks begin at ``at``.

        ``length`` is the file's size when its last block is its own and may be short, else 0.
        Returns the position after the words.
        """
        after = place + 4 * count
        if after > len(self.data):
            raise DamageError("sq-inode", f"inode {number}: {count} blocks do not fit into the table")
        block_size, blocks = self.block_size, self.blocks
        full = length // block_size if length else count
        for index, word in enumerate(struct.unpack_from(f"<{count}I", self.data, place)):
            if not word:
                continue
            size = word & (STORED_BLOCK - 1)
            want = block_size if index < full else length % block_size
            least = want if word & STORED_BLOCK else min(want, LEAST_FULL)
            if not least <= size <= block_size or word >> SIZE_BITS or (word & STORED_BLOCK and size != want):
                raise DamageError("sq-block", f"inode {number}: block {index} of {size} bytes cannot be")
            if not 96 <= at <= self.end - size:
                raise DamageError("sq-block", f"inode {number}: block {index} at {at} lies outside the data")
            key = at << SIZE_BITS | word
            known = blocks.get(key)
            if known is None:
                blocks[key] = want
                self.left -= size
                if self.left < 0:
                    raise DamageError(
                        "sq-overlap", f"inode {number}: its blocks overlap those of other files"
                    )
            elif known != want:
                raise DamageError("sq-overlap", f"inode {number}: block {index} has two sizes")
            at += size
        return after
