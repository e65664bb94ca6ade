"""A squashfs 4.0 filesystem inside a file: its superblock, its metadata blocks, and level ``mount``.

``Squashfs.open`` checks what the kernel checks when it mounts (fs/squashfs/super.c and the table
readers beside it), from the end of the filesystem backwards.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from poolmgr.model.finding import Finding
from poolmgr.sif import codecs
from poolmgr.sif.codecs import Codec, CodecError, MissingCodecError
from poolmgr.sif.header import SECTOR, finding
from poolmgr.sif.source import Source

SUPER = struct.Struct("<IIIIIHHHHHHqqqqqqqq")
SQUASHFS_MAGIC = 0x73717368
METADATA = 8192
"""Bytes that a metadata block unpacks to, at most."""
STORED = 0x8000
NONE = -1
MAX_BLOCK = 1 << 20
MIN_BLOCK = 4096
STORED_BLOCK = 1 << 24
"""Set in the size word of a data block that is stored as it is; the bits below it are its size."""
SIZE_BITS = 25
"""A data block's key is its position, shifted by this, and its size word."""
NO_FRAGMENT = 0xFFFFFFFF
NO_XATTR = 0xFFFFFFFF
_TAIL = 4096
COMP_OPTIONS = 0x400
_OPTIONS = 8
"""Bytes that the kernel wants of the options of xz and lz4."""


class DamageError(Exception):
    """Something in the filesystem that cannot be; carries its finding."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.finding = finding(code, message)


class Superblock(NamedTuple):
    """The first 96 bytes, in their order. Positions count from the filesystem's first byte."""

    magic: int
    inodes: int
    mkfs_time: int
    block_size: int
    fragments: int
    compressor: int
    block_log: int
    flags: int
    ids: int
    major: int
    minor: int
    root: int
    bytes_used: int
    id_table: int
    xattr_table: int
    inode_table: int
    directory_table: int
    fragment_table: int
    export_table: int


@dataclass(slots=True)
class Squashfs:
    """One filesystem whose superblock and index tables have passed."""

    source: Source
    offset: int
    """Where in the source it begins."""
    size: int
    """Bytes that its partition has."""
    sb: Superblock
    xattr_kv: int = NONE
    """Start of the xattr key-value blocks; ``NONE`` without xattrs."""
    xattr_ids: int = 0
    xattr_index: tuple[int, ...] = ()
    id_index: tuple[int, ...] = ()
    export_index: tuple[int, ...] = ()
    fragment_index: tuple[int, ...] = ()
    window: int = codecs.NO_LIMIT
    """Bytes that the kernel keeps for an xz dictionary or a zstd window."""
    readahead: int = 0
    """Bytes that a read brings at least; 0 where only a few places are looked at."""
    _held: list[tuple[int, bytes]] = field(default_factory=list)

    def codec(self) -> Codec:
        """A codec for one thread; see ``open_codec``."""
        return codecs.open_codec(self.sb.compressor, self.window)

    def hold(self, head: bytes) -> None:
        """Keep the filesystem's first bytes, which are here already."""
        if head:
            self._held.append((0, head[: self.sb.bytes_used]))

    def read(self, at: int, length: int) -> bytes:
        """Exactly ``length`` bytes at ``at``, which must lie within ``bytes_used``."""
        if at < 0 or length < 0 or at + length > self.sb.bytes_used:
            raise DamageError("sq-range", f"bytes {at} to {at + length} lie outside the filesystem")
        for start, data in self._held:
            if start <= at and at + length <= start + len(data):
                return data[at - start : at - start + length]
        want = max(length, min(self.readahead, self.sb.bytes_used - at))
        data = self.source.read_at(self.offset + at, want)
        if len(data) != want:
            raise DamageError("short-read", f"{want} bytes at {at} expected, {len(data)} read")
        if want > length:
            self._held = [(at, data)]
        return data[:length]

    def packed_block(self, at: int, end: int) -> tuple[bool, bytes, int]:
        """(stored as it is, bytes, position after it) of the metadata block at ``at``, ending by ``end``."""
        if not 0 <= at <= end - 3:
            raise DamageError("sq-meta", f"a metadata block at {at} does not fit before {end}")
        raw = self.read(at, min(METADATA + 2, end - at))
        word = raw[0] | raw[1] << 8
        length = (word & ~STORED) or STORED
        if length > METADATA or at + 2 + length > end:
            raise DamageError("sq-meta", f"the metadata block at {at} says it has {length} bytes")
        return bool(word & STORED), raw[2 : 2 + length], at + 2 + length

    def metadata_block(self, codec: Codec, at: int, end: int) -> tuple[bytes, int]:
        """(unpacked bytes, position after it) of the metadata block at ``at``, which ends by ``end``."""
        stored, body, after = self.packed_block(at, end)
        return body if stored else unpack_block(codec, at, body), after


def unpack_block(codec: Codec, at: int, body: bytes) -> bytes:
    """The bytes of the packed metadata block at ``at``: at least one, at most ``METADATA``."""
    try:
        out = codec(body, METADATA)
    except CodecError as e:
        raise DamageError("sq-decompress", f"the metadata block at {at} does not unpack: {e}") from None
    if not out:
        raise DamageError("sq-meta", f"the metadata block at {at} is empty")
    return out


@dataclass(frozen=True, slots=True)
class Mounted:
    """What came of a mount check."""

    filesystem: Squashfs | None
    """None when the superblock or an index is bad."""
    findings: tuple[Finding, ...] = ()
    unchecked: str = ""
    """Why the check could not be finished here, when it could not."""
    unsupported: bool = False


def mount(source: Source, offset: int, size: int, head: bytes = b"") -> Mounted:
    """All that the kernel checks of the squashfs at ``offset``; ``head`` are the file's first bytes."""
    raw = head[offset : offset + SUPER.size]
    if len(raw) < SUPER.size:
        raw = source.read_at(offset, min(SUPER.size, size))
    try:
        fs = Squashfs(source, offset, size, _superblock(raw, size))
        fs.hold(head[offset:])
        _indexes(fs)
        _options(fs)
        if fs.sb.compressor == codecs.LZMA:
            note = finding("sq-lzma", "compressed with lzma, which no kernel can mount")
            _root(fs)
            return Mounted(fs, (note,), unsupported=True)
        _root(fs)
    except DamageError as e:
        return Mounted(None, (e.finding,))
    except MissingCodecError as e:
        return Mounted(fs, unchecked=str(e))
    return Mounted(fs, _whole_sectors(fs))


def _whole_sectors(fs: Squashfs) -> tuple[Finding, ...]:
    """A loop device has whole sectors only, so the last bytes of an unpadded filesystem are lost."""
    if fs.sb.bytes_used <= fs.size // SECTOR * SECTOR:
        return ()
    message = (
        f"{fs.sb.bytes_used} bytes in a partition of {fs.size}, no multiple of {SECTOR}: "
        "the kernel cannot see the last ones"
    )
    return (finding("sq-unpadded", message),)


def _superblock(raw: bytes, size: int) -> Superblock:
    if len(raw) < SUPER.size:
        raise DamageError("sq-truncated", f"{size} bytes hold no squashfs superblock")
    sb = Superblock._make(SUPER.unpack(raw))
    if sb.magic != SQUASHFS_MAGIC:
        raise DamageError("sq-magic", f"squashfs magic 'hsqs' expected, found {raw[:4]!r}")
    if (sb.major, sb.minor) != (4, 0):
        raise DamageError("sq-version", f"squashfs {sb.major}.{sb.minor}; only 4.0 can be mounted")
    if sb.compressor not in codecs.NAMES:
        raise DamageError("sq-compressor", f"unknown compressor {sb.compressor}")
    if not MIN_BLOCK <= sb.block_size <= MAX_BLOCK or sb.block_size != 1 << min(sb.block_log, 63):
        raise DamageError(
            "sq-block-size",
            f"block size {sb.block_size} and its logarithm {sb.block_log} do not fit together",
        )
    if not SUPER.size <= sb.bytes_used <= size:
        raise DamageError(
            "sq-truncated", f"the filesystem says it has {sb.bytes_used} bytes, its partition {size}"
        )
    if sb.root & 0xFFFF >= METADATA:
        raise DamageError("sq-root", f"offset {sb.root & 0xFFFF} of the root inode lies outside a block")
    if sb.inodes == 0 or sb.ids == 0:
        raise DamageError("sq-counts", f"{sb.inodes} inodes and {sb.ids} owners: neither may be none")
    return sb


def _options(fs: Squashfs) -> None:
    """The compressor's options, where the flags say that there are some, and lz4 which must have them."""
    sb = fs.sb
    raw = b""
    if sb.flags & COMP_OPTIONS:
        word = int.from_bytes(fs.read(SUPER.size, 2), "little")
        length = word & ~STORED
        if not word & STORED or not 4 <= length <= 64:
            raise DamageError("sq-options", f"compressor options of {length} bytes cannot be")
        raw = fs.read(SUPER.size + 2, length)
    value = int.from_bytes(raw[:4], "little")
    if raw and len(raw) < _OPTIONS and sb.compressor in (codecs.XZ, codecs.LZ4):
        raise DamageError("sq-options", f"options of {_OPTIONS} bytes expected, found {len(raw)}")
    fs.window = max(sb.block_size, METADATA)
    if sb.compressor == codecs.LZ4 and value != 1:
        raise DamageError("sq-options", f"lz4 version 1 expected in the options, found {raw[:4]!r}")
    if sb.compressor == codecs.XZ and raw:
        low = value & -value
        if value not in (low, low * 3) or not value:
            raise DamageError("sq-options", f"an xz dictionary of {value} bytes cannot be")
        fs.window = value


def _indexes(fs: Squashfs) -> None:
    """The index tables, which lie back to back, from the last to the first."""
    sb = fs.sb
    tail = max(0, sb.bytes_used - _TAIL)
    fs._held.append((tail, fs.read(tail, sb.bytes_used - tail)))
    following = sb.bytes_used
    if sb.xattr_table != NONE:
        at = sb.xattr_table
        start, count, _ = struct.unpack("<qII", fs.read(at, 16))
        if count == 0 or count > sb.inodes:
            raise DamageError("sq-counts", f"{count} sets of xattrs for {sb.inodes} inodes")
        fs.xattr_index = _index(fs, "xattr", at + 16, count * 16, following, exact=True, table=at)
        if not 0 <= start < fs.xattr_index[0]:
            raise DamageError("sq-index", f"the xattrs begin at {start}, after their own index")
        fs.xattr_kv, fs.xattr_ids = start, count
        following = start
    fs.id_index = _index(fs, "id", sb.id_table, sb.ids * 4, following, exact=True)
    following = fs.id_index[0]
    if sb.export_table != NONE:
        fs.export_index = _index(fs, "export", sb.export_table, sb.inodes * 8, following, exact=True)
        following = fs.export_index[0]
    if sb.fragments:
        if sb.fragments > sb.bytes_used:
            raise DamageError("sq-counts", f"{sb.fragments} fragments in {sb.bytes_used} bytes")
        fs.fragment_index = _index(
            fs, "fragment", sb.fragment_table, sb.fragments * 16, following, exact=False
        )
        following = fs.fragment_index[0]
    if sb.directory_table > following:
        raise DamageError("sq-index", f"the directory table at {sb.directory_table} begins after {following}")
    if not SUPER.size <= sb.inode_table < sb.directory_table:
        raise DamageError(
            "sq-index",
            f"the inode table at {sb.inode_table} is not before the directories at {sb.directory_table}",
        )


def _index(
    fs: Squashfs, name: str, at: int, unpacked: int, following: int, *, exact: bool, table: int | None = None
) -> tuple[int, ...]:
    """The pointers of one index: ``unpacked`` bytes of entries, the next table at ``following``."""
    count = -(-unpacked // METADATA)
    end = at + 8 * count
    if at < SUPER.size or end > following or (exact and end != following):
        raise DamageError(
            "sq-index",
            f"the {name} index at {at} has {8 * count} bytes, and the next table is at {following}",
        )
    raw = fs.read(at, 8 * count)
    if not any(raw):
        raise DamageError(
            "sq-index", f"the {name} index at {at} is all zeros: this part of the file was never written"
        )
    pointers = struct.unpack(f"<{count}q", raw)
    limit = at if table is None else table
    last = pointers[0] - 1
    for place, pointer in enumerate((*pointers, limit)):
        if not last < pointer <= limit or (place and pointer - last > METADATA + 2) or pointer < SUPER.size:
            raise DamageError("sq-index", f"the {name} index points to {pointer} after {last}")
        last = pointer
    return pointers


def _root(fs: Squashfs) -> None:
    """The root inode can be read, and is a directory."""
    sb = fs.sb
    codec = fs.codec()
    at, offset = sb.inode_table + (sb.root >> 16), sb.root & 0xFFFF
    if not sb.inode_table <= at < sb.directory_table:
        raise DamageError("sq-root", f"the root inode at {at} lies outside the inode table")
    data, after = fs.metadata_block(codec, at, sb.directory_table)
    if offset + 32 > len(data) and after < sb.directory_table:
        more, _ = fs.metadata_block(codec, after, sb.directory_table)
        data += more
    if offset + 32 > len(data):
        raise DamageError("sq-root", "the root inode does not lie in the inode table")
    kind = data[offset] | data[offset + 1] << 8
    if kind not in (1, 8):
        raise DamageError("sq-root", f"the root inode is of type {kind}, not a directory")
