"""The SIF container, written: header, descriptors, objects (facts/sif section 1). Deterministic.

UUID 0 and Go's zero time stand where Apptainer would put chance and the clock, so the same tree
gives the same bytes on any day. Every image carries the descriptor ``inspect-metadata.json``:
without it, ``apptainer inspect`` would run the image's own shell to learn its labels.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

from poolmgr.sif import header
from poolmgr.sif.header import ARCHS, DESCRIPTOR, HEADER, LAUNCH, MAGIC, METADATA_NAME, VERSION
from poolmgr.sif.write_node import Tree, directory, file
from poolmgr.sif.write_squashfs import BLOCK_SIZE, write_squashfs

ARCH_CODES = {name: code for code, name in ARCHS.items() if name != "unknown"}
GO_ZERO_TIME = -62135596800
SLOTS = 48
DESCRIPTORS_AT = 4096
PAGE = 4096

_DATA_AT = DESCRIPTORS_AT + SLOTS * DESCRIPTOR.size
_GROUP = header.NO_GROUP | 1


class DataType(IntEnum):
    DEFINITION = header.FILE
    LABELS = header.LABELS
    PARTITION = header.PARTITION
    JSON = header.JSON
    GENERIC = header.GENERIC


class PartType(IntEnum):
    SYSTEM = header.SYSTEM
    PRIMARY = header.PRIMARY
    DATA = header.DATA
    OVERLAY = header.OVERLAY


@dataclass(frozen=True, slots=True)
class Item:
    """One object of a SIF: its descriptor's fields, and what writes its bytes."""

    datatype: int
    name: str
    write: Callable[[BinaryIO], object]
    """Writes the object into the file where it stands."""
    extra: bytes = b""
    align: int = 1


def blob(datatype: DataType, name: str, data: bytes) -> Item:
    """An object whose bytes are at hand."""
    return Item(datatype, name, lambda out: out.write(data))


def partition(kind: PartType, arch: str, write: Callable[[BinaryIO], object], name: str = "") -> Item:
    """A squashfs partition, aligned so that a loop device can start at it."""
    extra = struct.pack("<ii3s", header.SQUASHFS, kind, arch_code(arch))
    return Item(DataType.PARTITION, name, write, extra, PAGE)


def arch_code(arch: str) -> bytes:
    """The three bytes that name ``arch`` in a SIF; ``ValueError`` for an unknown one."""
    try:
        return ARCH_CODES[arch]
    except KeyError:
        raise ValueError(f"no architecture {arch!r}: {', '.join(ARCH_CODES)}") from None


def metadata(labels: Mapping[str, str]) -> bytes:
    """The text of ``inspect-metadata.json``, which ``apptainer inspect`` reads instead of the tree."""
    body = {"data": {"attributes": {"labels": dict(sorted(labels.items()))}}, "type": "container"}
    return json.dumps(body, separators=(",", ":")).encode()


def descriptor(out: BinaryIO, item: Item, number: int) -> bytes:
    """Writes the object where ``out`` stands, and gives its descriptor with the id ``number``."""
    name = item.name.encode()
    if len(name) > 128 or len(item.extra) > 384:
        raise ValueError(f"the descriptor {item.name!r} is too long")
    before = out.tell()
    out.write(bytes(-before % item.align))
    start = out.tell()
    item.write(out)
    size = out.tell() - start
    return DESCRIPTOR.pack(
        item.datatype, True, number, _GROUP, 0, start, size, size + start - before,
        GO_ZERO_TIME, GO_ZERO_TIME, 0, 0, name, item.extra,
    )  # fmt: skip


def write_container(out: BinaryIO, items: Sequence[Item], arch: str) -> None:
    """Writes a SIF of ``items`` into the empty, seekable file ``out``."""
    if len(items) > SLOTS:
        raise ValueError(f"a SIF has {SLOTS} descriptors, not {len(items)}")
    code = arch_code(arch)
    out.write(bytes(_DATA_AT))
    descriptors = b"".join(descriptor(out, item, number) for number, item in enumerate(items, 1))
    end = out.tell()
    out.seek(0)
    out.write(
        HEADER.pack(
            LAUNCH, MAGIC, VERSION, code, bytes(16), GO_ZERO_TIME, GO_ZERO_TIME,
            SLOTS - len(items), SLOTS, DESCRIPTORS_AT, SLOTS * DESCRIPTOR.size, _DATA_AT, end - _DATA_AT,
        )
    )  # fmt: skip
    out.seek(DESCRIPTORS_AT)
    out.write(descriptors)
    out.seek(end)


def write_sif(
    out: str | os.PathLike[str] | BinaryIO,
    tree: Tree,
    *,
    arch: str = "amd64",
    compressor: str = "gzip",
    level: int | None = None,
    block_size: int = BLOCK_SIZE,
    fragments: bool = True,
    export: bool = True,
    labels: Mapping[str, str] | None = None,
    definition: str | None = None,
    items: Sequence[Item] = (),
) -> None:
    """Writes an image whose root filesystem is ``tree``.

    ``out`` is an empty seekable file, or the path of a file that must not exist yet: a name that
    others may see is given by the caller, after it has checked and synced the file. ``items`` are
    further objects, after the metadata and before the filesystem.
    """
    if isinstance(out, (str, os.PathLike)):
        with open(out, "xb") as target:
            write_sif(
                target, tree, arch=arch, compressor=compressor, level=level, block_size=block_size,
                fragments=fragments, export=export, labels=labels, definition=definition, items=items,
            )  # fmt: skip
        return

    def squashfs(target: BinaryIO) -> object:
        return write_squashfs(
            target,
            tree,
            compressor=compressor,
            level=level,
            block_size=block_size,
            fragments=fragments,
            export=export,
        )

    first = [] if definition is None else [blob(DataType.DEFINITION, "", definition.encode())]
    write_container(
        out,
        [
            *first,
            blob(DataType.JSON, METADATA_NAME, metadata(labels or {})),
            *items,
            partition(PartType.PRIMARY, arch, squashfs),
        ],
        arch,
    )


def minimal_image(label: str, payload: bytes = b"", *, arch: str = "amd64") -> bytes:
    """A small valid image (40 KB) that differs from that of every other ``label`` or ``payload``.

    It holds ``/etc/label``, ``/payload`` and the folders that Apptainer mounts on, and no program.
    """
    labels = {"poolmgr.label": label}
    tree: Tree = {
        ".singularity.d/labels.json": file(json.dumps(labels).encode()),
        "etc/label": file(label.encode() + b"\n"),
        "payload": file(payload),
        **{name: directory() for name in ("bin", "dev", "proc", "sys")},
        "tmp": directory(0o1777),
    }
    buffer = io.BytesIO()
    write_sif(buffer, tree, arch=arch, labels=labels, level=1)
    return buffer.getvalue()
