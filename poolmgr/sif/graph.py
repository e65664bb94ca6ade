"""The inode graph of a filesystem that exists, as the writer takes it: for derivations.

``read_tables`` has checked every reference before, so nothing here has to doubt them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from poolmgr.sif.squashfs import NO_FRAGMENT, NO_XATTR
from poolmgr.sif.tables import Tables
from poolmgr.sif.write_node import Inode, Kind, Placement, find
from poolmgr.sif.xattrs import PREFIXES, walk_xattrs

MAX_LINKS = 40
"""Symbolic links that one path may lead through, as in the kernel."""

_HEAD = struct.Struct("<HHHHII").unpack_from
_EXTENDED = 7


@dataclass(slots=True)
class Graph:
    root: Inode
    numbers: dict[int, Inode]
    """The inode number that each inode has in the filesystem that was read."""


@dataclass(frozen=True, slots=True)
class _Listing:
    block: int
    offset: int
    size: int


def read_graph(t: Tables) -> Graph:
    """Every inode of the filesystem, with its content's place, hanging in its directories."""
    data = t.inodes.data
    inodes: dict[int, Inode] = {}
    listings: dict[int, _Listing] = {}
    known: dict[int, tuple[tuple[bytes, bytes], ...]] = {}

    def xattrs(number: int) -> tuple[tuple[bytes, bytes], ...]:
        if number == NO_XATTR or t.xattr_kv is None:
            return ()
        if number not in known:
            reference, count, _ = t.xattr_ids[number]
            known[number] = tuple(
                sorted((PREFIXES[p] + n, v) for p, n, v in walk_xattrs(t.xattr_kv, reference, count))
            )
        return known[number]

    for number in range(1, len(t.refs)):
        ref = t.refs[number]
        at = t.inodes.index[ref >> 16] + (ref & 0xFFFF)
        kind, mode, uid, gid, mtime, _ = _HEAD(data, at)
        inode = Inode(Kind((kind - 1) % _EXTENDED + 1), mode & 0o7777, t.ids[uid], t.ids[gid], mtime)
        at += 16
        extended = kind > _EXTENDED
        match inode.kind:
            case Kind.FILE:
                inode.place, attrs = _file(data, at, extended, t.fs.sb.block_size)
                inode.xattrs = xattrs(attrs)
            case Kind.DIR:
                listings[number], attrs = _directory(data, at, extended)
                inode.xattrs = xattrs(attrs)
            case Kind.SYMLINK:
                size = struct.unpack_from("<II", data, at)[1]
                inode.target = data[at + 8 : at + 8 + size]
                at += 8 + size
            case Kind.BLOCK | Kind.CHAR:
                inode.rdev = struct.unpack_from("<II", data, at)[1]
                at += 8
            case _:
                at += 4
        if extended and inode.kind not in (Kind.FILE, Kind.DIR):
            inode.xattrs = xattrs(struct.unpack_from("<I", data, at)[0])
        inodes[number] = inode
    for number, listing in listings.items():
        children = inodes[number].children
        for name, child in _entries(t, listing):
            children[name] = inodes[child]
    root = next(inodes[n] for n in listings if t.refs[n] == t.fs.sb.root)
    return Graph(root, inodes)


def _file(data: bytes, at: int, extended: bool, block_size: int) -> tuple[Placement, int]:
    if extended:
        start, size, sparse, _, fragment, offset, attrs = struct.unpack_from("<QQQIIII", data, at)
        at += 40
    else:
        start, fragment, offset, size = struct.unpack_from("<IIII", data, at)
        sparse, attrs = 0, NO_XATTR
        at += 16
    count = size // block_size if fragment != NO_FRAGMENT else -(-size // block_size)
    words = struct.unpack_from(f"<{count}I", data, at)
    return Placement(size, start, words, fragment, offset, sparse), attrs


def _directory(data: bytes, at: int, extended: bool) -> tuple[_Listing, int]:
    if extended:
        _, size, block, _, _, offset, attrs = struct.unpack_from("<IIIIHHI", data, at)
        return _Listing(block, offset, size - 3), attrs
    block, _, size, offset, _ = struct.unpack_from("<IIHHI", data, at)
    return _Listing(block, offset, size - 3), NO_XATTR


def _entries(t: Tables, listing: _Listing) -> Iterator[tuple[bytes, int]]:
    """(name, inode number) of each entry."""
    if not listing.size:
        return
    data = t.directories.data
    at = t.directories.index[listing.block] + listing.offset
    end = at + listing.size
    while at < end:
        count, _, base = struct.unpack_from("<III", data, at)
        at += 12
        for _ in range(count + 1):
            _, delta, _, size = struct.unpack_from("<HhHH", data, at)
            yield data[at + 8 : at + 9 + size], base + delta
            at += 9 + size


def canonical(root: Inode, path: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """``path`` with every symbolic link but the last followed, as seen from inside the image.

    What does not exist is left as it is named. ``ValueError`` on a loop of links, and where a file
    stands in the place of a directory.
    """
    done: list[bytes] = []
    ahead = list(reversed(path))
    links = 0
    while ahead:
        name = ahead.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            if done:
                done.pop()
            continue
        here = find(root, tuple(done))
        if here is not None and here.kind is not Kind.DIR:
            raise ValueError(f"{b'/'.join(done).decode(errors='replace')!r} is not a directory")
        child = here.children.get(name) if here is not None else None
        if child is not None and child.kind is Kind.SYMLINK and ahead:
            links += 1
            if links > MAX_LINKS:
                raise ValueError(f"{b'/'.join(path).decode(errors='replace')!r}: too many symbolic links")
            if child.target.startswith(b"/"):
                done.clear()
            ahead.extend(reversed(child.target.split(b"/")))
            continue
        done.append(name)
    return tuple(done)


def walk(root: Inode) -> Iterator[tuple[tuple[bytes, ...], Inode]]:
    """Every (path, inode) but the root's own, directories before what they hold."""
    stack: list[tuple[tuple[bytes, ...], Inode]] = [((), root)]
    while stack:
        path, inode = stack.pop()
        if path:
            yield path, inode
        stack.extend(((*path, name), child) for name, child in sorted(inode.children.items(), reverse=True))
