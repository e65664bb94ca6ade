"""The files of one squashfs: paths, modes, owners, xattrs, links, and their content.

Works on tables that ``read_tables`` has checked. Paths are relative POSIX, '' is the root; bytes
that are no UTF-8 stand as surrogates (``os.fsdecode``).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from poolmgr.sif.codecs import Codec, CodecError
from poolmgr.sif.squashfs import NO_FRAGMENT, NO_XATTR, STORED_BLOCK, DamageError
from poolmgr.sif.tables import Tables
from poolmgr.sif.write_node import Kind
from poolmgr.sif.xattrs import PREFIXES, walk_xattrs

MAX_PATH = 4096
FEW_ENTRIES = 100_000
BYTES_PER_ENTRY = 16
"""A file of n bytes may have FEW_ENTRIES + n / BYTES_PER_ENTRY names; more would be a trick …"""
FEW_LETTERS = 16 << 20
LETTERS_PER_BYTE = 4
"""… and so would be paths of more than FEW_LETTERS + n * LETTERS_PER_BYTE letters in all."""
_EXTENDED = 7
_NONE: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Content:
    """Where a regular file's bytes are."""

    size: int
    start: int
    packed: bytes
    """The size words of its blocks, as the inode holds them: one object for any number of words."""
    fragment: int
    offset: int

    @property
    def words(self) -> tuple[int, ...]:
        return struct.unpack(f"<{len(self.packed) // 4}I", self.packed)


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a tree, and the inode behind it. ``mode`` holds the twelve permission bits only."""

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    number: int
    """The inode's number; entries of one tree with equal numbers are hard links."""
    size: int = 0
    target: str = ""
    rdev: tuple[int, int] = (0, 0)
    xattrs: Mapping[str, bytes] = field(default_factory=lambda: _NONE)
    content: Content | None = None
    layer: int = 0
    """Number of the filesystem that it lies in: 0 the primary, then the overlays."""

    @property
    def is_dir(self) -> bool:
        return self.kind is Kind.DIR

    @property
    def is_file(self) -> bool:
        return self.kind is Kind.FILE

    @property
    def is_whiteout(self) -> bool:
        """Whether overlayfs takes it for the mark of a deleted name."""
        return self.kind is Kind.CHAR and self.rdev == (0, 0)

    @property
    def is_opaque(self) -> bool:
        """Whether overlayfs hides all that lies below this directory in lower filesystems."""
        return self.is_dir and any(
            self.xattrs.get(name) == b"y" for name in ("trusted.overlay.opaque", "user.overlay.opaque")
        )


class FsTree:
    """The tree of one filesystem. Not to be shared by threads: ``with_codec`` makes one for another."""

    def __init__(self, tables: Tables, layer: int = 0) -> None:
        self.tables = tables
        self.layer = layer
        self.codec: Codec = tables.fs.codec()
        self._fragment: tuple[int, bytes] = (-1, b"")

    def with_codec(self) -> FsTree:
        """The same tree for another thread."""
        return FsTree(self.tables, self.layer)

    def walk(self) -> Iterator[Entry]:
        """Every entry, a directory before what it holds, names in byte order; the root first."""
        left = FEW_ENTRIES + self.tables.fs.sb.bytes_used // BYTES_PER_ENTRY
        letters = FEW_LETTERS + self.tables.fs.sb.bytes_used * LETTERS_PER_BYTE
        root = self._entry("", self._place(self.tables.fs.sb.root))
        yield root
        ahead = [self._names(root.path, self._place(self.tables.fs.sb.root))]
        while ahead:
            for path, place in ahead[-1]:
                left -= 1
                letters -= len(path)
                if left < 0 or letters < 0:
                    raise DamageError("sq-bomb", "more names than a file of this size can need")
                entry = self._entry(path, place)
                yield entry
                if entry.is_dir:
                    ahead.append(self._names(path, place))
                    break
            else:
                ahead.pop()

    def blocks(self, entry: Entry) -> Iterator[bytes]:
        """The bytes of a regular file, in pieces of at most a block. ``DamageError`` on a bad one."""
        if entry.content is None:
            raise DamageError("sq-reference", f"{entry.path!r} is no regular file")
        c, fs = entry.content, self.tables.fs
        size = fs.sb.block_size
        at, left = c.start, c.size
        for word in c.words:
            want = min(size, left)
            if word:
                length = word & (STORED_BLOCK - 1)
                data = self._unpack(at, word)
                if len(data) != want:
                    raise DamageError(
                        "sq-data", f"the block at {at} unpacks to {len(data)} bytes, {want} are needed"
                    )
                at += length
            else:
                data = bytes(want)
            yield data
            left -= want
        if left:
            if self._fragment[0] != c.fragment:
                self._fragment = (c.fragment, self._unpack(*self.tables.fragments[c.fragment]))
            tail = self._fragment[1][c.offset : c.offset + left]
            if len(tail) != left:
                raise DamageError("sq-data", f"fragment {c.fragment} is too short")
            yield tail

    def read(self, entry: Entry, limit: int) -> bytes:
        """The whole content; ``DamageError`` when it is larger than ``limit`` bytes."""
        if entry.size > limit:
            raise DamageError("sq-bomb", f"{entry.path!r} has {entry.size} bytes, more than {limit}")
        return b"".join(self.blocks(entry))

    def _unpack(self, at: int, word: int) -> bytes:
        fs = self.tables.fs
        raw = fs.source.read_at(fs.offset + at, word & (STORED_BLOCK - 1))
        if word & STORED_BLOCK:
            return raw
        try:
            return self.codec(raw, fs.sb.block_size)
        except CodecError as e:
            raise DamageError("sq-data", f"the block at {at} does not unpack: {e}") from None

    def _place(self, reference: int) -> int:
        return self.tables.inodes.place(reference >> 16, reference & 0xFFFF, "an inode")

    def _names(self, path: str, place: int) -> Iterator[tuple[str, int]]:
        """(path, place of the inode) of what the directory whose inode is at ``place`` holds."""
        data = self.tables.inodes.data
        if data[place] == Kind.DIR:
            block, _, length, offset, _ = struct.unpack_from("<IIHHI", data, place + 16)
        else:
            _, length, block, _, _, offset, _ = struct.unpack_from("<IIIIHHI", data, place + 16)
        if length == 3:
            return
        listing = self.tables.directories.data
        at = self.tables.directories.place(block, offset, "a listing")
        end = at + length - 3
        prefix = path + "/" if path else ""
        while at < end:
            count, start, _ = struct.unpack_from("<III", listing, at)
            at += 12
            for _ in range(count + 1):
                inode, _, _, size = struct.unpack_from("<HhHH", listing, at)
                name = listing[at + 8 : at + 9 + size]
                at += 9 + size
                full = prefix + os.fsdecode(name)
                if len(full) > MAX_PATH:
                    raise DamageError("sq-bomb", f"a path of more than {MAX_PATH} bytes")
                yield full, self.tables.inodes.place(start, inode, "an inode")

    def _entry(self, path: str, place: int) -> Entry:
        t = self.tables
        data = t.inodes.data
        raw, mode, uid, gid, mtime, number = struct.unpack_from("<HHHHII", data, place)
        kind = Kind(raw - _EXTENDED if raw > _EXTENDED else raw)
        extended = raw > _EXTENDED
        at = place + 16
        size, target, rdev, content, xattr = 0, "", (0, 0), None, NO_XATTR
        if kind is Kind.FILE:
            if extended:
                start, size, _, _, fragment, offset, xattr = struct.unpack_from("<QQQIIII", data, at)
                at += 40
            else:
                start, fragment, offset, size = struct.unpack_from("<IIII", data, at)
                at += 16
            block = t.fs.sb.block_size
            count = -(-size // block) if fragment == NO_FRAGMENT else size // block
            content = Content(size, start, data[at : at + 4 * count], fragment, offset)
        elif kind is Kind.DIR:
            if extended:
                xattr = struct.unpack_from("<I", data, at + 20)[0]
        elif kind is Kind.SYMLINK:
            size = struct.unpack_from("<I", data, at + 4)[0]
            target = os.fsdecode(data[at + 8 : at + 8 + size])
            if extended:
                xattr = struct.unpack_from("<I", data, at + 8 + size)[0]
        elif kind in (Kind.BLOCK, Kind.CHAR):
            device = struct.unpack_from("<I", data, at + 4)[0]
            rdev = ((device >> 8) & 0xFFF, (device & 0xFF) | ((device >> 12) & 0xFFF00))
            if extended:
                xattr = struct.unpack_from("<I", data, at + 8)[0]
        elif extended:
            xattr = struct.unpack_from("<I", data, at + 4)[0]
        return Entry(
            path, kind, mode & 0o7777, t.ids[uid], t.ids[gid], mtime, number,
            size, target, rdev, self._xattrs[xattr] if xattr != NO_XATTR else _NONE, content, self.layer,
        )  # fmt: skip

    @cached_property
    def _xattrs(self) -> tuple[Mapping[str, bytes], ...]:
        t = self.tables
        if t.xattr_kv is None:
            return ()
        table = t.xattr_kv
        return tuple(
            MappingProxyType(
                {
                    os.fsdecode(PREFIXES[prefix] + name): value
                    for prefix, name, value in walk_xattrs(table, reference, count)
                }
            )
            for reference, count, _ in t.xattr_ids
        )
