"""A squashfs 4.0 writer for trees that are described in memory. Deterministic: no clock, no host."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import BinaryIO

from poolmgr.sif.write_codec import Codec, codec
from poolmgr.sif.write_data import DataWriter, Sink
from poolmgr.sif.write_node import Inode, Tree, graph
from poolmgr.sif.write_tables import NONE64, write_tables

BLOCK_SIZE = 131072
"""mksquashfs's own default, and Apptainer's."""
PAD = 4096
"""A filesystem ends on a multiple of this, so that a loop device holds all of it."""

_SUPERBLOCK = struct.Struct("<IIIIIHHHHHHQQQQQQQQ")
_MAGIC = 0x73717368
_STORED_TABLES = 0x1 | 0x100 | 0x800  # inodes, xattrs and ids not compressed
_STORED_DATA = 0x2 | 0x8  # blocks and fragments not compressed
_NO_FRAGMENTS, _DUPLICATES, _EXPORT, _NO_XATTRS, _OPTIONS = 0x10, 0x40, 0x80, 0x200, 0x400


def write_squashfs(
    out: BinaryIO,
    tree: Tree,
    *,
    compressor: str = "gzip",
    level: int | None = None,
    block_size: int = BLOCK_SIZE,
    fragments: bool = True,
    export: bool = True,
    time: int = 0,
) -> int:
    """Writes ``tree`` into the seekable file ``out`` where it stands; bytes written, padding included.

    ``compressor`` is gzip, xz, lz4, zstd or stored. ``ValueError`` where a tree or an option
    cannot be written.
    """
    if block_size not in (1 << log for log in range(12, 21)):
        raise ValueError(f"the block size is a power of two from 4 KiB to 1 MiB, not {block_size}")
    sink = Sink(out)
    chosen = codec(compressor, block_size, level)
    begin(sink, chosen)
    data = DataWriter(sink, chosen, block_size, use_fragments=fragments)
    root = graph(tree, data.place)
    data.finish()
    return end(
        sink,
        root,
        chosen,
        data.fragments,
        block_size=block_size,
        export=export,
        time=time,
        use_fragments=fragments,
        stored_data=chosen.compress is None,
    )


def begin(sink: Sink, chosen: Codec) -> None:
    """Leaves room for the superblock, and writes what must follow it."""
    sink.write(bytes(_SUPERBLOCK.size))
    if chosen.options:
        sink.write(struct.pack("<H", len(chosen.options) | 0x8000) + chosen.options)


def end(
    sink: Sink,
    root: Inode,
    chosen: Codec,
    fragments: Sequence[tuple[int, int]],
    *,
    block_size: int,
    export: bool,
    time: int,
    use_fragments: bool,
    stored_data: bool,
) -> int:
    """Writes the tables, the superblock and the padding; the filesystem's size in bytes.

    ``stored_data``: no data block is compressed, which the superblock mentions.
    """
    facts = write_tables(sink, root, chosen, fragments, export=export)
    flags = _DUPLICATES
    flags |= _STORED_TABLES if chosen.compress is None else 0
    flags |= _STORED_DATA if stored_data else 0
    flags |= 0 if use_fragments else _NO_FRAGMENTS
    flags |= _EXPORT if export else 0
    flags |= _NO_XATTRS if facts["xattr_table"] == NONE64 else 0
    flags |= _OPTIONS if chosen.options else 0
    used = sink.at
    sink.patch(
        0,
        _SUPERBLOCK.pack(
            _MAGIC, facts["inodes"], time, block_size, facts["fragments"], chosen.id,
            block_size.bit_length() - 1, flags, facts["ids"], 4, 0, facts["root"], used,
            facts["id_table"], facts["xattr_table"], facts["inode_table"], facts["directory_table"],
            facts["fragment_table"], facts["export_table"],
        ),
    )  # fmt: skip
    sink.write(bytes(-used % PAD))
    return sink.at
