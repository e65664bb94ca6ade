"""Extended attributes: the sets that inodes point to, read and checked."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from poolmgr.sif.metadata import Table, Unpacker
from poolmgr.sif.squashfs import DamageError

PREFIXES = (b"user.", b"trusted.", b"security.")
FEW_XATTRS = 200_000
BYTES_PER_XATTR = 16
"""A file of n bytes may have FEW_XATTRS + n / BYTES_PER_XATTR xattrs; more would be a trick."""
MAX_NAME = 255
MAX_VALUE = 65536
"""Bytes of a name with its prefix and of a value that Linux takes: what unsquashfs fails to set."""
_OUT_OF_LINE = 0x100
_SIZE = struct.Struct("<I").unpack_from

XattrSet = tuple[int, int, int]
"""(reference, count, bytes) of one set of xattrs."""


def read_xattrs(unpacker: Unpacker) -> tuple[Table | None, Sequence[XattrSet]]:
    """The table of keys and values, and every set in it; each was walked once."""
    fs = unpacker.fs
    if not fs.xattr_ids:
        return None, ()
    raw = unpacker.indexed("xattr id", fs.xattr_index, fs.xattr_ids * 16, fs.sb.xattr_table)
    table = unpacker.stream("xattr", fs.xattr_kv, fs.xattr_index[0])
    ids = tuple(struct.iter_unpack("<QII", raw))
    left = 2 * len(table.data) + 16
    room = FEW_XATTRS + fs.sb.bytes_used // BYTES_PER_XATTR
    for number, (reference, count, size) in enumerate(ids):
        room -= count
        if room < 0:
            raise DamageError("sq-bomb", "more xattrs than a file of this size can need")
        for _, key, value in walk_xattrs(table, reference, count):
            left -= len(key) + len(value) + 8
            if left < 0:
                raise DamageError("sq-xattr", f"xattrs {number}: the sets share bytes, {size} promised")
    return table, ids


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
        if kind & 0xFF >= len(PREFIXES) or kind & ~0x1FF or at + 4 > len(data):
            raise DamageError("sq-xattr", f"an xattr of type {kind:#x} cannot be")
        size = _SIZE(data, at)[0]
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
            size = _SIZE(data, there)[0]
            value = data[there + 4 : there + 4 + size]
            if len(value) != size:
                raise DamageError("sq-xattr", "an xattr's value leaves its table")
        if not 0 < len(name) <= MAX_NAME - len(PREFIXES[kind & 0xFF]) or size > MAX_VALUE:
            raise DamageError(
                "sq-xattr", f"no Linux sets an xattr of {len(name)} bytes of name and {size} of value"
            )
        result.append((kind & 0xFF, name, value))
    return result
