"""Level ``tables``: every metadata table of a squashfs unpacked, parsed and cross-checked.

Inodes are packed without gaps, so parsing them one after another must end exactly at the table's
end and give exactly the number that the superblock promises; every directory entry must then lead
to the inode that it names. The two loops are written for speed: 24,000 inodes are an ordinary image.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field

from poolmgr.sif.codecs import Codec
from poolmgr.sif.squashfs import METADATA, DamageError, Squashfs

MAX_UNPACKED = 16 << 20
"""Bytes of metadata that any file may unpack to …"""
MAX_RATIO = 16
"""… and how many more for every byte that it has."""
NO_FRAGMENT = 0xFFFFFFFF
NO_XATTR = 0xFFFFFFFF
STORED_BLOCK = 1 << 24
SIZE_BITS = 25
"""A block's key is its position, shifted by this, and its size word."""
LEAST_FULL = 8
"""No compressor packs a whole block into fewer bytes."""
MAX_NAME = 256
MAX_TARGET = 65535
DIR, REG, SYMLINK, BLOCKDEV, CHARDEV, FIFO, SOCKET = range(1, 8)

_REG = struct.Struct("<HHHHIIIIII").unpack_from
_DIR = struct.Struct("<HHHHIIIIHHI").unpack_from
_HEAD = struct.Struct("<HHHHII").unpack_from
_TWO = struct.Struct("<II").unpack_from
_ONE = struct.Struct("<I").unpack_from
_LDIR = struct.Struct("<IIIIHHI").unpack_from
_LREG = struct.Struct("<QQQIIII").unpack_from
_INDEX = struct.Struct("<III").unpack_from
_RUN = struct.Struct("<III").unpack_from
_ENTRY = struct.Struct("<HhHH").unpack_from
_FRAGMENT = struct.Struct("<QII")


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


@dataclass(slots=True)
class Tables:
    """All metadata of one filesystem, checked."""

    fs: Squashfs
    inodes: Table
    directories: Table
    ids: tuple[int, ...]
    fragments: tuple[tuple[int, int], ...]
    """(position, size word) of each fragment block."""
    fragment_need: array[int]
    """Bytes that files want of each fragment block."""
    refs: array[int]
    """Inode number -> its reference; [0] is unused."""
    types: bytearray
    """Inode number -> its basic type."""
    blocks: dict[int, int]
    """Key of each data block -> bytes that it must unpack to."""
    xattr_kv: Table | None = None
    xattr_ids: tuple[tuple[int, int, int], ...] = ()
    """(reference, count, bytes) of each set of xattrs."""


class _Budget:
    """How much may still be unpacked; a small file that unpacks without end is stopped."""

    def __init__(self, fs: Squashfs) -> None:
        self.left = MAX_UNPACKED + MAX_RATIO * fs.sb.bytes_used

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise DamageError("sq-bomb", "the metadata unpacks to far more than a file of this size can need")


def read_tables(fs: Squashfs, codec: Codec) -> Tables:
    """Unpack and check all metadata of ``fs``. Raises ``DamageError`` at the first thing that cannot be."""
    sb = fs.sb
    fs.readahead = 1 << 18
    budget = _Budget(fs)
    inodes = _stream(fs, codec, budget, "inode", sb.inode_table, sb.directory_table)
    directories = _stream(fs, codec, budget, "directory", sb.directory_table, _after_directories(fs))
    if sb.inodes * 20 > len(inodes.data):
        raise DamageError("sq-inode", f"{sb.inodes} inodes do not fit into {len(inodes.data)} bytes")
    raw = _indexed(fs, codec, budget, "id", fs.id_index, sb.ids * 4, sb.id_table)
    ids = struct.unpack(f"<{sb.ids}I", raw)
    fragments = _fragments(fs, codec, budget)
    xattr_kv, xattr_ids = _xattrs(fs, codec, budget)
    tables = Tables(
        fs,
        inodes,
        directories,
        ids,
        fragments,
        array("I", bytes(4 * len(fragments))),
        array("Q", bytes(8 * (sb.inodes + 1))),
        bytearray(sb.inodes + 1),
        {},
        xattr_kv,
        xattr_ids,
    )
    _check_directories(tables, _check_inodes(tables))
    if fs.export_index:
        raw = _indexed(fs, codec, budget, "export", fs.export_index, sb.inodes * 8, sb.export_table)
        if raw != _little(tables.refs)[8:]:
            raise DamageError("sq-export", "the export table does not lead to the inodes")
    return tables


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


def _stream(fs: Squashfs, codec: Codec, budget: _Budget, name: str, start: int, end: int) -> Table:
    """A table of metadata blocks that fill ``start`` to ``end`` exactly, all but the last one whole."""
    data = bytearray()
    starts: list[int] = []
    index: dict[int, int] = {}
    at = start
    while at < end:
        if len(data) % METADATA:
            raise DamageError("sq-meta", f"a block in the middle of the {name} table is not whole")
        index[at - start] = len(data)
        starts.append(at - start)
        block, at = fs.metadata_block(codec, at, end)
        budget.take(len(block))
        data += block
    return Table(bytes(data), tuple(starts), index)


def _indexed(
    fs: Squashfs, codec: Codec, budget: _Budget, name: str, index: tuple[int, ...], size: int, end: int
) -> bytes:
    """A table whose blocks an index points to: ``size`` bytes, the last block ending at ``end``."""
    data = bytearray()
    for place, at in enumerate(index):
        until = index[place + 1] if place + 1 < len(index) else end
        block, after = fs.metadata_block(codec, at, until)
        if after != until:
            raise DamageError("sq-meta", f"a block of the {name} table ends at {after}, not at {until}")
        budget.take(len(block))
        data += block
        if len(data) != min(size, METADATA * (place + 1)):
            raise DamageError("sq-meta", f"the {name} table unpacks to {len(data)} bytes, not to {size}")
    return bytes(data)


def _fragments(fs: Squashfs, codec: Codec, budget: _Budget) -> tuple[tuple[int, int], ...]:
    sb = fs.sb
    if not sb.fragments:
        return ()
    raw = _indexed(
        fs, codec, budget, "fragment", fs.fragment_index, sb.fragments * _FRAGMENT.size, sb.fragment_table
    )
    result = []
    for number, (start, word, _) in enumerate(_FRAGMENT.iter_unpack(raw)):
        size = word & (STORED_BLOCK - 1)
        if not 0 < size <= sb.block_size or word >> SIZE_BITS or not 96 <= start <= sb.inode_table - size:
            raise DamageError("sq-fragment", f"fragment {number}: {size} bytes at {start} cannot be")
        result.append((start, word))
    return tuple(result)


def _xattrs(
    fs: Squashfs, codec: Codec, budget: _Budget
) -> tuple[Table | None, tuple[tuple[int, int, int], ...]]:
    if not fs.xattr_ids:
        return None, ()
    raw = _indexed(fs, codec, budget, "xattr id", fs.xattr_index, fs.xattr_ids * 16, fs.sb.xattr_table)
    table = _stream(fs, codec, budget, "xattr", fs.xattr_kv, fs.xattr_index[0])
    ids = tuple(struct.iter_unpack("<QII", raw))
    left = 2 * len(table.data) + 16
    for number, (reference, count, size) in enumerate(ids):
        for _, key, value in walk_xattrs(table, reference, count):
            left -= len(key) + len(value) + 8
            if left < 0:
                raise DamageError("sq-xattr", f"xattrs {number}: the sets share bytes, {size} promised")
    return table, ids


XATTR_PREFIXES = (b"user.", b"trusted.", b"security.")
_OUT_OF_LINE = 0x100


def walk_xattrs(table: Table, reference: int, count: int) -> list[tuple[int, bytes, bytes]]:
    """(prefix number, name, value) of one set of xattrs."""
    result = []
    data = table.data
    at = table.place(reference >> 16, reference & 0xFFFF, "xattrs")
    for _ in range(count):
        if at + 8 > len(data):
            raise DamageError("sq-xattr", "a set of xattrs leaves its table")
        kind, length = struct.unpack_from("<HH", data, at)
        name = data[at + 4 : at + 4 + length]
        at += 4 + length
        if kind & 0xFF >= len(XATTR_PREFIXES) or kind & ~0x1FF or at + 4 > len(data):
            raise DamageError("sq-xattr", f"an xattr of type {kind:#x} cannot be")
        size = _ONE(data, at)[0]
        value = data[at + 4 : at + 4 + size]
        if len(value) != size:
            raise DamageError("sq-xattr", "an xattr's value leaves its table")
        at += 4 + size
        if kind & _OUT_OF_LINE:
            if size != 8:
                raise DamageError("sq-xattr", f"a reference to an xattr's value has {size} bytes")
            pointer = int.from_bytes(value, "little")
            there = table.place(pointer >> 16, pointer & 0xFFFF, "an xattr's value")
            if there + 4 > len(data):
                raise DamageError("sq-xattr", "an xattr's value leaves its table")
            size = _ONE(data, there)[0]
            value = data[there + 4 : there + 4 + size]
            if len(value) != size:
                raise DamageError("sq-xattr", "an xattr's value leaves its table")
        result.append((kind & 0xFF, name, value))
    return result


_LISTING = 5
"""Numbers kept of a directory: its inode, its listing's block, offset and size, its parent's inode."""


def _check_inodes(t: Tables) -> array[int]:
    """Parse every inode; fill ``refs``, ``types``, ``blocks`` and ``fragment_need``."""
    sb = t.fs.sb
    data, size = t.inodes.data, len(t.inodes.data)
    bases = [start << 16 for start in t.inodes.starts]
    refs, types, need = t.refs, t.types, t.fragment_need
    block_size, block_log = sb.block_size, sb.block_log
    inodes, ids, fragments, xattrs = sb.inodes, sb.ids, sb.fragments, t.fs.xattr_ids
    directories = array("Q")
    blocks = _Blocks(t)
    at = 0
    count = 0
    try:
        while at < size:
            kind = data[at]
            place = at
            xattr = NO_XATTR
            if kind == REG:
                kind, _, uid, gid, _, number, start, fragment, offset, length = _REG(data, at)
                at += 32
                if fragment == NO_FRAGMENT:
                    if length:
                        at = blocks.add(number, start, -(-length // block_size), length, at)
                else:
                    tail = length & (block_size - 1)
                    if length >= block_size:
                        at = blocks.add(number, start, length >> block_log, 0, at)
                    if fragment >= fragments or offset + tail > block_size or not tail:
                        raise DamageError(
                            "sq-inode", f"inode {number}: no place {offset} in fragment {fragment}"
                        )
                    if need[fragment] < offset + tail:
                        need[fragment] = offset + tail
            elif kind == DIR:
                kind, _, uid, gid, _, number, start, _, length, offset, parent = _DIR(data, at)
                at += 32
                directories.extend((number, start, offset, length, parent))
            else:
                kind, _, uid, gid, _, number = _HEAD(data, at)
                at += 16
                if kind == SYMLINK or kind == SYMLINK + 7:
                    length = _TWO(data, at)[1]
                    at += 8 + length
                    if not 0 < length <= MAX_TARGET or at > size:
                        raise DamageError("sq-inode", f"inode {number}: a link's target of {length} bytes")
                    if kind != SYMLINK:
                        xattr = _ONE(data, at)[0]
                        at += 4
                elif kind == DIR + 7:
                    _, length, start, parent, entries, offset, xattr = _LDIR(data, at)
                    at = _skip_index(data, at + 24, entries, number)
                    directories.extend((number, start, offset, length, parent))
                elif kind == REG + 7:
                    start, length, _, _, fragment, offset, xattr = _LREG(data, at)
                    at += 40
                    tail = length & (block_size - 1)
                    if fragment == NO_FRAGMENT:
                        at = blocks.add(number, start, -(-length // block_size), length, at)
                    else:
                        at = blocks.add(number, start, length >> block_log, 0, at)
                        if fragment >= fragments or offset + tail > block_size or not tail:
                            raise DamageError(
                                "sq-inode", f"inode {number}: no place {offset} in fragment {fragment}"
                            )
                        need[fragment] = max(need[fragment], offset + tail)
                elif kind in (BLOCKDEV, CHARDEV):
                    at += 8
                elif kind in (FIFO, SOCKET):
                    at += 4
                elif kind in (BLOCKDEV + 7, CHARDEV + 7):
                    xattr = _ONE(data, at + 8)[0]
                    at += 12
                elif kind in (FIFO + 7, SOCKET + 7):
                    xattr = _ONE(data, at + 4)[0]
                    at += 8
                else:
                    raise DamageError("sq-inode", f"type {kind} of the inode at {place} of the table")
                if kind > SOCKET:
                    kind -= 7
                if xattr != NO_XATTR and xattr >= xattrs:
                    raise DamageError("sq-inode", f"inode {number}: xattrs {xattr} of {xattrs}")
            if kind > SOCKET or not 0 < number <= inodes or types[number]:
                raise DamageError(
                    "sq-inode", f"number {number} or type {kind} of the inode at {place} of the table"
                )
            if uid >= ids or gid >= ids:
                raise DamageError("sq-inode", f"inode {number}: owners {uid} and {gid} of {ids}")
            types[number] = kind
            refs[number] = bases[place >> 13] | place & 8191
            count += 1
    except struct.error:
        raise DamageError("sq-inode", "the last inode is cut off") from None
    if at != size or count != inodes:
        raise DamageError("sq-inode", f"{count} inodes end at {at} of {size} bytes; {inodes} are promised")
    return directories


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

    def __init__(self, t: Tables) -> None:
        self.data = t.inodes.data
        self.blocks = t.blocks
        self.block_size = t.fs.sb.block_size
        self.end = t.fs.sb.inode_table
        self.left = self.end - sum(word & (STORED_BLOCK - 1) for _, word in t.fragments)

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


def _check_directories(t: Tables, listings: array[int]) -> None:
    """Every entry leads to the inode it names; every inode is reached; directories form one tree."""
    data, limit = t.directories.data, len(t.directories.data)
    refs, types, inodes = t.refs, t.types, t.fs.sb.inodes
    reached = bytearray(inodes + 1)
    parent_of = array("I", bytes(4 * (inodes + 1)))
    places = t.directories.index
    left = limit
    root = 0
    for place in range(0, len(listings), _LISTING):
        number, block, offset, length, _ = listings[place : place + _LISTING]
        if refs[number] == t.fs.sb.root:
            root = number
        left -= length - 3
        if length < 3 or left < 0:
            raise DamageError("sq-directory", f"directory {number}: a size of {length}, or shared bytes")
        if length == 3:
            continue
        at = places.get(block, limit) + offset
        end = at + length - 3
        if end > limit or offset >= METADATA:
            raise DamageError("sq-directory", f"directory {number}: its listing leaves the table")
        last = b""
        try:
            while at < end:
                count, start, base = _RUN(data, at)
                at += 12
                if count >= MAX_NAME:
                    raise DamageError("sq-directory", f"directory {number}: a run of {count + 1} entries")
                start <<= 16
                names = []
                for _ in range(count + 1):
                    offset, delta, kind, size = _ENTRY(data, at)
                    at += 8
                    after = at + size + 1
                    names.append(data[at:after])
                    at = after
                    child = base + delta
                    if (
                        not 0 < child <= inodes
                        or refs[child] != start + offset
                        or types[child] != kind
                        or size >= MAX_NAME
                    ):
                        raise DamageError(
                            "sq-directory",
                            f"directory {number}: the entry {names[-1]!r} leads to no such inode",
                        )
                    if kind == DIR:
                        if reached[child]:
                            raise DamageError("sq-directory", f"directory {child} is entered twice")
                        parent_of[child] = number
                    reached[child] = 1
                _check_names(number, last, names)
                last = names[-1]
        except struct.error:
            raise DamageError("sq-directory", f"directory {number}: its listing is cut off") from None
        if at != end:
            raise DamageError("sq-directory", f"directory {number}: its listing ends at {at}, not at {end}")
    if not root or reached[root]:
        raise DamageError("sq-root", "the root inode is no directory, or an entry of another")
    reached[root] = 1
    if reached.count(0) != 1:
        raise DamageError("sq-directory", f"{reached.count(0) - 1} inodes are in no directory")
    _check_parents(root, listings, parent_of)


def _check_names(number: int, last: bytes, names: list[bytes]) -> None:
    joined = b"/".join(names)
    if (
        joined.count(b"/") != len(names) - 1
        or b"\0" in joined
        or b"." in names
        or b".." in names
        or names[0] <= last
        or names != sorted(set(names))
    ):
        raise DamageError("sq-directory", f"directory {number}: names that cannot be, or out of order")


def _check_parents(root: int, listings: array[int], parent_of: array[int]) -> None:
    """The parent that each directory names is the one that holds it, and all hang on the root."""
    settled = bytearray(len(parent_of))
    settled[root] = 1
    for place in range(0, len(listings), _LISTING):
        number, parent = listings[place], listings[place + _LISTING - 1]
        if number != root and parent_of[number] != parent:
            raise DamageError("sq-directory", f"directory {number}: says {parent} is its parent")
        at = number
        while not settled[at]:
            settled[at] = 1
            at = parent_of[at]
            if at == number:
                raise DamageError("sq-directory", f"directory {number} lies in itself")
