"""The tables of a squashfs: inodes, directories, fragments, exports, ids and xattrs.

Layout: facts/sif section 2; squashfs-tools' squashfs_fs.h. Little endian throughout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from poolmgr.sif.write_codec import METADATA, Codec
from poolmgr.sif.write_data import Sink
from poolmgr.sif.write_node import Inode, Kind

NONE64 = 0xFFFFFFFFFFFFFFFF
NO_XATTR = 0xFFFFFFFF
EXTENDED = 7
"""Added to a basic inode's type to make the extended one."""
PREFIXES = ((b"user.", 0), (b"trusted.", 1), (b"security.", 2))
HEADER_ENTRIES = 256
"""Entries that one directory header may lead."""


class MetaTable:
    """A run of metadata blocks that grows; a position is (start of its block, offset inside)."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.done = bytearray()
        self._open = bytearray()

    def tell(self) -> tuple[int, int]:
        return len(self.done), len(self._open)

    def append(self, data: bytes) -> None:
        self._open += data
        while len(self._open) >= METADATA:
            self._flush(METADATA)

    def finish(self) -> bytes:
        """Every block, packed."""
        if self._open:
            self._flush(len(self._open))
        return bytes(self.done)

    def _flush(self, size: int) -> None:
        packed, compressed = self.codec.pack(bytes(self._open[:size]))
        self.done += struct.pack("<H", len(packed) | (0 if compressed else 0x8000)) + packed
        del self._open[:size]


def write_indexed(sink: Sink, codec: Codec, data: bytes) -> int:
    """Writes ``data`` as metadata blocks and the index of their places; says where the index begins."""
    places = []
    for at in range(0, len(data), METADATA):
        table = MetaTable(codec)
        table.append(data[at : at + METADATA])
        places.append(sink.write(table.finish()))
    return sink.write(struct.pack(f"<{len(places)}Q", *places))


class Ids:
    """User and group numbers, each stored once."""

    def __init__(self) -> None:
        self.index: dict[int, int] = {}

    def of(self, number: int) -> int:
        if not 0 <= number <= 0xFFFFFFFF:
            raise ValueError(f"user or group {number} does not fit 32 bits")
        at = self.index.setdefault(number, len(self.index))
        if at > 0xFFFF:
            raise ValueError("a squashfs holds at most 65,536 different users and groups")
        return at


class Xattrs:
    """Sets of extended attributes, each stored once."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.pairs = MetaTable(codec)
        self.index: dict[tuple[tuple[bytes, bytes], ...], int] = {}
        self._ids = bytearray()

    def of(self, attrs: tuple[tuple[bytes, bytes], ...]) -> int:
        if not attrs:
            return NO_XATTR
        known = self.index.get(attrs)
        if known is not None:
            return known
        block, offset = self.pairs.tell()
        size = 0
        for name, value in attrs:
            prefix, number = next(((p, n) for p, n in PREFIXES if name.startswith(p)), (b"", -1))
            bare = name.removeprefix(prefix)
            if number < 0 or not bare or len(bare) > 0xFFFF or len(value) > 0xFFFF:
                raise ValueError(f"squashfs cannot hold the attribute {name!r} of {len(value)} bytes")
            entry = struct.pack("<HH", number, len(bare)) + bare + struct.pack("<I", len(value)) + value
            self.pairs.append(entry)
            size += len(entry)
        self._ids += struct.pack("<QII", block << 16 | offset, len(attrs), size)
        self.index[attrs] = len(self.index)
        return self.index[attrs]

    def write(self, sink: Sink) -> int:
        """Writes the tables; says where the header lies, or -1 when no inode has attributes."""
        if not self.index:
            return NONE64
        start = sink.write(self.pairs.finish())
        blocks = []
        for at in range(0, len(self._ids), METADATA):
            table = MetaTable(self.codec)
            table.append(bytes(self._ids[at : at + METADATA]))
            blocks.append(sink.write(table.finish()))
        head = struct.pack("<QII", start, len(self.index), 0)
        return sink.write(head + struct.pack(f"<{len(blocks)}Q", *blocks))


def post_order(root: Inode) -> Iterator[tuple[Inode, Inode | None]]:
    """(inode, parent) with every directory after what it holds; without recursion."""
    stack: list[tuple[Inode, Inode | None, Iterator[Inode]]] = [(root, None, _sorted(root))]
    while stack:
        here, parent, children = stack[-1]
        for child in children:
            if child.kind is Kind.DIR:
                stack.append((child, here, _sorted(child)))
                break
            yield child, here
        else:
            stack.pop()
            yield here, parent


def _sorted(inode: Inode) -> Iterator[Inode]:
    return iter([child for _, child in sorted(inode.children.items())])


class InodeWriter:
    """Writes the inode and directory tables of one graph."""

    def __init__(self, root: Inode, codec: Codec) -> None:
        self.inodes = MetaTable(codec)
        self.directories = MetaTable(codec)
        self.ids = Ids()
        self.xattrs = Xattrs(codec)
        self.number: dict[int, int] = {}
        self.links: dict[int, int] = {}
        order: list[tuple[Inode, Inode | None]] = []
        for inode, parent in post_order(root):
            key = id(inode)
            self.links[key] = self.links.get(key, 0) + 1
            if key not in self.number:
                self.number[key] = len(order) + 1
                order.append((inode, parent))
            elif inode.kind is Kind.DIR:
                raise ValueError("a directory cannot have two names")
        self.references = [0] * len(order)
        """Inode number - 1 -> block << 16 | offset."""
        for at, (inode, parent) in enumerate(order):
            body = self._directory(inode, parent) if inode.kind is Kind.DIR else self._other(inode)
            block, offset = self.inodes.tell()
            self.references[at] = block << 16 | offset
            self.inodes.append(body)

    def _head(self, inode: Inode, kind: int) -> bytes:
        if not 0 <= inode.mtime <= 0xFFFFFFFF:
            raise ValueError(f"the time {inode.mtime} does not fit 32 bits")
        uid, gid = self.ids.of(inode.uid), self.ids.of(inode.gid)
        return struct.pack("<HHHHII", kind, inode.mode, uid, gid, inode.mtime, self.number[id(inode)])

    def _other(self, inode: Inode) -> bytes:
        links = self.links[id(inode)]
        xattr = self.xattrs.of(inode.xattrs)
        kind = int(inode.kind)
        if inode.kind is Kind.FILE:
            place = inode.place
            words = struct.pack(f"<{len(place.words)}I", *place.words)
            if (
                links == 1
                and xattr == NO_XATTR
                and not place.sparse
                and place.start <= 0xFFFFFFFF
                and place.size <= 0xFFFFFFFF
            ):
                fields = struct.pack("<IIII", place.start, place.fragment, place.offset, place.size)
                return self._head(inode, kind) + fields + words
            fields = struct.pack(
                "<QQQIIII", place.start, place.size, place.sparse, links, place.fragment, place.offset, xattr
            )
            return self._head(inode, kind + EXTENDED) + fields + words
        if inode.kind is Kind.SYMLINK:
            fields = struct.pack("<II", links, len(inode.target)) + inode.target
        elif inode.kind in (Kind.BLOCK, Kind.CHAR):
            fields = struct.pack("<II", links, inode.rdev)
        else:
            fields = struct.pack("<I", links)
        if xattr == NO_XATTR:
            return self._head(inode, kind) + fields
        return self._head(inode, kind + EXTENDED) + fields + struct.pack("<I", xattr)

    def _directory(self, inode: Inode, parent: Inode | None) -> bytes:
        block, offset = self.directories.tell()
        size, index = self._listing(inode, offset)
        # The root's parent is by convention the number after the last.
        above = len(self.number) + 1 if parent is None else self.number[id(parent)]
        links = 2 + sum(child.kind is Kind.DIR for child in inode.children.values())
        xattr = self.xattrs.of(inode.xattrs)
        stored = size + 3  # what '.' and '..' count for
        if xattr == NO_XATTR and not index and stored <= 0xFFFF:
            fields = struct.pack("<IIHHI", block, links, stored, offset, above)
            return self._head(inode, Kind.DIR) + fields
        fields = struct.pack("<IIIIHHI", links, stored, block, above, len(index), offset, xattr)
        return self._head(inode, Kind.DIR + EXTENDED) + fields + b"".join(index)

    def _listing(self, inode: Inode, offset: int) -> tuple[int, list[bytes]]:
        """Appends the entries of ``inode``; their size in bytes, and the index for look-ups by name.

        A header leads at most 256 entries whose inodes lie in one metadata block and whose numbers
        are within 16 bits of the first; a new one begins where the listing enters a new metadata
        block, so that the index has something to point at.
        """
        size = 0
        seen_block = 0
        index: list[bytes] = []
        run: list[bytes] = []
        run_block = run_number = 0
        run_size = 12

        def close() -> None:
            nonlocal size, run_size
            if run:
                head = struct.pack("<III", len(run) - 1, run_block, run_number)
                self.directories.append(head + b"".join(run))
                size += run_size
                run.clear()
            run_size = 12

        for name, child in sorted(inode.children.items()):
            number = self.number[id(child)]
            reference = self.references[number - 1]
            delta = number - run_number
            enters = (offset + size + run_size) // METADATA > seen_block
            if (
                not run
                or len(run) == HEADER_ENTRIES
                or reference >> 16 != run_block
                or not -0x8000 <= delta <= 0x7FFF
                or enters
            ):
                close()
                if enters:
                    seen_block = (offset + size) // METADATA
                    place = self.directories.tell()[0]
                    # The kernel reads at index + offset, so the block is the one where the header lies.
                    index.append(struct.pack("<III", size, place, len(name) - 1) + name)
                run_block, run_number, delta = reference >> 16, number, 0
            entry = struct.pack("<HhHH", reference & 0xFFFF, delta, child.kind, len(name) - 1) + name
            run.append(entry)
            run_size += len(entry)
        close()
        return size, index


def write_tables(
    sink: Sink,
    root: Inode,
    codec: Codec,
    fragments: Sequence[tuple[int, int]],
    *,
    export: bool = True,
) -> dict[str, int]:
    """Writes every table of the graph under ``root``; what the superblock has to say of them."""
    writer = InodeWriter(root, codec)
    result = {
        "inodes": len(writer.references),
        "root": writer.references[-1],
        "fragments": len(fragments),
        "inode_table": sink.write(writer.inodes.finish()),
        "directory_table": sink.write(writer.directories.finish()),
        "fragment_table": write_indexed(
            sink, codec, b"".join(struct.pack("<QII", start, word, 0) for start, word in fragments)
        ),
        "export_table": NONE64,
    }
    if export:
        result["export_table"] = write_indexed(
            sink, codec, struct.pack(f"<{len(writer.references)}Q", *writer.references)
        )
    result["id_table"] = write_indexed(
        sink, codec, struct.pack(f"<{len(writer.ids.index)}I", *writer.ids.index)
    )
    result["ids"] = len(writer.ids.index)
    result["xattr_table"] = writer.xattrs.write(sink)
    return result
