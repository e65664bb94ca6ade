"""A derived image: the base's SIF with its filesystem rebuilt, or with an overlay partition appended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

from poolmgr.errors import BadFileError
from poolmgr.sif.changes import Changes, overlay_tree
from poolmgr.sif.graph import Graph, read_graph
from poolmgr.sif.header import DESCRIPTOR, HEADER, METADATA_NAME, Container, Descriptor
from poolmgr.sif.image import Image, open_image
from poolmgr.sif.rewrite import rebuild, write_codec_of
from poolmgr.sif.source import Source
from poolmgr.sif.tables import Tables
from poolmgr.sif.write import (
    DataType,
    Item,
    PartType,
    blob,
    descriptor,
    metadata,
    partition,
    write_container,
)
from poolmgr.sif.write_codec import WRITABLE
from poolmgr.sif.write_node import Inode
from poolmgr.sif.write_squashfs import write_squashfs

PROVENANCE = "poolmgr-provenance.json"
"""Descriptor that says what an image was made of."""
_SIGNATURE = 0x4005
_SMALL = 1 << 20


class Base:
    """An image to derive from: opened, its tables read and checked.

    Raises ``BadFileError`` for what is no plain image: damaged, of another kind, or with more than
    one filesystem (an overlay would have to be folded in first).
    """

    def __init__(self, source: Source, where: str) -> None:
        self.source = source
        self.where = where
        self.image: Image = open_image(source, where)
        self.container: Container = self.image.container
        primary = self.container.primary
        if self.container.header is None or primary is None:
            raise BadFileError(f"{where}: not a SIF image", hint="build a SIF from it first")
        self.header = self.container.header
        self.primary: Descriptor = primary
        if len(self.container.partitions) != 1:
            raise BadFileError(
                f"{where}: {len(self.container.partitions)} filesystems; a base has one",
                hint="derive from the plain image that this one was made of",
            )
        self.tables: Tables = self.image.parts[0].tree.tables
        self.graph: Graph = read_graph(self.tables)

    @property
    def root(self) -> Inode:
        return self.graph.root

    @property
    def arch(self) -> str:
        return self.container.arch or "unknown"

    def object(self, item: Descriptor) -> bytes:
        return self.source.read_at(item.offset, item.size)


def _missing_metadata(base: Base) -> list[Item]:
    if any(d.name == METADATA_NAME for d in base.container.objects):
        return []
    return [blob(DataType.JSON, METADATA_NAME, metadata(base.image.labels))]


def _copy(base: Base, d: Descriptor, out: BinaryIO) -> None:
    out.write(base.object(d))


def write_rebuilt(base: Base, changes: Changes, out: BinaryIO, provenance: bytes) -> None:
    """Writes the derived image into the empty file ``out``.

    The base's other objects go along, but for signatures, which would be of other bytes.
    """
    items: list[Item] = []
    for d in base.container.objects:
        if d.datatype == _SIGNATURE:
            continue
        if d.is_primary:
            items += _missing_metadata(base)
            items.append(blob(DataType.JSON, PROVENANCE, provenance))
            items.append(
                partition(PartType.PRIMARY, base.arch, lambda o: rebuild(base.tables, changes, o), d.name)
            )
        else:
            items.append(Item(d.datatype, d.name, partial(_copy, base, d), d.extra.rstrip(b"\0")))
    write_container(out, items, base.arch)


def append_overlay(base: Base, changes: Changes, out: BinaryIO, provenance: bytes) -> None:
    """Makes the derived image of ``out``, which must be a copy of the base's bytes.

    Only the header, a descriptor slot or two and the tail differ from the base.
    """
    upper = overlay_tree(base.root, changes)
    name = write_codec_of(base.tables).name
    compressor = name if name in WRITABLE else "gzip"
    items = [
        *_missing_metadata(base),
        blob(DataType.JSON, PROVENANCE, provenance),
        partition(PartType.OVERLAY, base.arch, lambda o: write_squashfs(o, upper, compressor=compressor)),
    ]
    append(out, base, items)


def append(out: BinaryIO, base: Base, items: Sequence[Item]) -> None:
    """Adds ``items`` to the copy of the base that ``out`` holds."""
    header = base.header
    at, length = header.descriptors_offset, header.total * DESCRIPTOR.size
    table = base.source.read_at(at, length)
    free = [n for n in range(header.total) if not table[n * DESCRIPTOR.size + 4]]
    used = {d.id for d in base.container.objects}
    free = [n for n in free if n + 1 not in used]
    if len(free) < len(items):
        raise BadFileError(
            f"{base.where}: {len(items)} free descriptors are needed, the image has {len(free)}",
            hint='derive with method = "rebuild"',
        )
    out.truncate(header.end)
    out.seek(header.end)
    slots = []
    for slot, item in zip(free, items, strict=False):
        slots.append((slot, descriptor(out, item, slot + 1)))
    end = out.tell()
    for slot, raw in slots:
        out.seek(at + slot * DESCRIPTOR.size)
        out.write(raw)
    out.seek(0)
    fields = list(HEADER.unpack(base.source.read_at(0, HEADER.size)))
    fields[7] -= len(items)  # free descriptors
    fields[12] = end - header.data_offset
    out.write(HEADER.pack(*fields))
    out.seek(end)


def provenance_of(source: Source, container: Container) -> Mapping[str, Any] | None:
    """What an image says it was made of; None for one that poolmgr did not derive."""
    for d in reversed(container.objects):
        if d.name == PROVENANCE and d.datatype == DataType.JSON and d.size <= _SMALL:
            try:
                row = json.loads(source.read_at(d.offset, d.size))
            except (ValueError, RecursionError):
                return None
            return row if isinstance(row, dict) else None
    return None
