"""The directory table: every entry leads to the inode it names, and all inodes hang on one root."""

from __future__ import annotations

import struct
from array import array

from poolmgr.sif.inodes import DIR, LISTING, MAX_NAME, Inodes
from poolmgr.sif.metadata import Table
from poolmgr.sif.squashfs import METADATA, DamageError

_RUN = struct.Struct("<III").unpack_from
_INDEX = struct.Struct("<III").unpack_from
_ENTRY = 9
"""Bytes of an entry (offset, difference of the number, type, length less one) and the least of a name."""
NAME_MAX = 255
"""Bytes of a name that Linux takes; the format has room for one more."""
_ENTRIES = tuple(struct.Struct(f"<HhHH{size + 1}s").unpack_from for size in range(NAME_MAX))
"""Length of a name less one -> what reads an entry with such a name."""
MANY = 4096
"""Names that are held to be looked at together."""


def check_directories(root_ref: int, table: Table, inodes: Inodes) -> None:
    """Read every listing. Raises ``DamageError`` at the first thing that cannot be."""
    data, limit = table.data, len(table.data)
    refs, types, listings, places = inodes.refs, inodes.types, inodes.listings, table.index
    lookups = inodes.lookups
    reached = bytearray(len(refs))
    parent_of = array("I", bytes(4 * len(refs)))
    names: list[bytes] = []
    left = limit
    root = 0
    for place in range(0, len(listings), LISTING):
        number, block, offset, length, _ = listings[place : place + LISTING]
        if refs[number] == root_ref:
            root = number
        left -= length - 3
        if length < 3 or left < 0:
            raise DamageError("sq-directory", f"directory {number}: a size of {length}, or shared bytes")
        if length == 3:
            if number in lookups:
                raise _wrong_index(number)
            continue
        at = places.get(block, limit) + offset
        end = at + length - 3
        if end > limit or offset >= METADATA:
            raise DamageError("sq-directory", f"directory {number}: its listing leaves the table")
        last = b""
        runs: list[int] | None = [] if number in lookups else None
        try:
            while at < end:
                if runs is not None:
                    runs.append(at)
                count, start, base = _RUN(data, at)
                if count >= MAX_NAME:
                    raise DamageError("sq-directory", f"directory {number}: a run of {count + 1} entries")
                at += 12
                start <<= 16
                for _ in range(count + 1):
                    size = data[at + 6]
                    offset, delta, kind, high, name = _ENTRIES[size](data, at)
                    at += size + _ENTRY
                    child = base + delta
                    if refs[child] != start + offset or types[child] != kind or high != size or child < 1:
                        raise _no_inode(number, name)
                    if name <= last:
                        raise DamageError("sq-directory", f"directory {number}: names out of order")
                    last = name
                    names.append(name)
                    if kind == DIR:
                        if reached[child]:
                            raise DamageError("sq-directory", f"directory {child} is entered twice")
                        parent_of[child] = number
                    reached[child] = 1
        except IndexError:
            if at + 6 < limit and data[at + 6] == NAME_MAX:
                raise DamageError("sq-directory", f"directory {number}: a name of 256 bytes") from None
            raise _no_inode(number, last) from None
        except struct.error:
            raise DamageError("sq-directory", f"directory {number}: its listing is cut off") from None
        if at != end:
            raise DamageError("sq-directory", f"directory {number}: its listing ends at {at}, not at {end}")
        if runs is not None:
            _check_index(inodes, number, table, runs)
        if len(names) > MANY:
            _check_names(names)
            names.clear()
    _check_names(names)
    if not root or reached[root]:
        raise DamageError("sq-root", "the root inode is no directory, or an entry of another")
    reached[root] = 1
    if reached.count(0) != 1:
        raise DamageError("sq-directory", f"{reached.count(0) - 1} inodes are in no directory")
    _check_parents(root, listings, parent_of)


def _no_inode(number: int, name: bytes) -> DamageError:
    return DamageError("sq-directory", f"directory {number}: the entry {name!r} leads to no such inode")


def _check_index(inodes: Inodes, number: int, table: Table, runs: list[int]) -> None:
    """The index by which the kernel finds a name: each entry leads to the run that begins with its name.

    ``runs`` are the positions of the runs in the table; unsquashfs never looks at an index.
    """
    at, entries = inodes.lookups[number]
    ahead = iter(runs)
    for _ in range(entries):
        distance, block, size = _INDEX(inodes.data, at)
        name = inodes.data[at + 12 : at + 13 + size]
        at += 13 + size
        place = runs[0] + distance
        if table.index.get(block) != place - place % METADATA or place not in ahead:
            raise _wrong_index(number)
        first = place + 12
        if table.data[first + 8 : first + 9 + table.data[first + 6]] != name:
            raise _wrong_index(number)


def _wrong_index(number: int) -> DamageError:
    return DamageError("sq-directory", f"directory {number}: its index does not lead to its entries")


def _check_names(names: list[bytes]) -> None:
    """No name holds a slash or a zero byte, or is ``.`` or ``..``; all of them in one look."""
    joined = b"/" + b"/".join(names) + b"/"
    slashes = len(names) + 1 if names else 2
    if joined.count(b"/") != slashes or b"\0" in joined or b"/./" in joined or b"/../" in joined:
        wrong = next((n for n in names if n in (b".", b"..") or b"/" in n or b"\0" in n), b"")
        raise DamageError("sq-directory", f"a name that cannot be: {wrong!r}")


def _check_parents(root: int, listings: array[int], parent_of: array[int]) -> None:
    """The parent that each directory names is the one that holds it, and all hang on the root."""
    settled = bytearray(len(parent_of))
    settled[root] = 1
    for place in range(0, len(listings), LISTING):
        number, parent = listings[place], listings[place + LISTING - 1]
        if number != root and parent_of[number] != parent:
            raise DamageError("sq-directory", f"directory {number}: says {parent} is its parent")
        at = number
        while not settled[at]:
            settled[at] = 1
            at = parent_of[at]
            if at == number:
                raise DamageError("sq-directory", f"directory {number} lies in itself")
