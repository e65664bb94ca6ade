"""Damages to a good SIF: the corruption matrix of facts/sif section 4, made anew on any base.

Each case says at which level it must be found at the latest. ``HASH`` stands for what only a hash
can find, ``WARN`` for what passes with a warning, ``LUCK`` for damage to compressed bytes that the
compressor protects (gzip, xz) or does not.
"""

from __future__ import annotations

import gzip
import io
import random
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from poolmgr.sif import codecs
from poolmgr.sif.header import DESCRIPTOR, Container, read_container
from poolmgr.sif.image import open_image
from poolmgr.sif.source import BytesSource
from poolmgr.sif.squashfs import SIZE_BITS, STORED_BLOCK
from poolmgr.sif.tables import Tables

MIB = 1 << 20


class Until(StrEnum):
    HEADER = "header"
    MOUNT = "mount"
    TABLES = "tables"
    DATA = "data"
    WARN = "warn"
    HASH = "hash"
    UNSUPPORTED = "unsupported"
    ANY = "any"
    """Depends on the base: may pass unseen."""


@dataclass(frozen=True)
class Case:
    group: str
    name: str
    data: bytes
    until: Until
    luck: bool = False
    """Found for sure only where the compressor keeps checksums."""


class Base:
    """A good image, and where its parts are."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        source = BytesSource(data)
        self.container: Container = read_container(source)
        primary = self.container.primary
        assert primary is not None
        self.slot = 4096 + (primary.id - 1) * DESCRIPTOR.size
        self.at = primary.offset
        self.part = data[primary.offset : primary.end]
        image = open_image(source)
        self.tables: Tables = image.parts[0].tree.tables
        self.sb = self.tables.fs.sb
        self.checksummed = self.sb.compressor in codecs.CHECKSUMMED
        keys = sorted(self.tables.blocks)
        self.packed = [k for k in keys if not k & STORED_BLOCK]
        self.stored = [k for k in keys if k & STORED_BLOCK]
        busybox = image.find("bin/busybox")
        assert busybox is not None
        assert busybox.content is not None
        self.busybox = busybox.content.start

    def flip(self, at: int, mask: int = 1) -> bytes:
        changed = bytearray(self.data)
        changed[at] ^= mask
        return bytes(changed)

    def put(self, at: int, new: bytes) -> bytes:
        return self.data[:at] + new + self.data[at + len(new) :]

    def middle(self, key: int) -> int:
        """The position in the file of the middle of a block."""
        return self.at + (key >> SIZE_BITS) + (key & (STORED_BLOCK - 1)) // 2


def paths(folder: Path) -> Iterator[tuple[str, Path, Until]]:
    """The cases of the matrix that are no bytes: a link whose git-annex content is elsewhere, a sandbox."""
    link = folder / "annex-broken-link.sif"
    link.symlink_to(".git/annex/objects/Xx/Yy/MD5E-s1--x.sif/MD5E-s1--x.sif")
    yield "git-annex-broken-link", link, Until.HEADER
    sandbox = folder / "sandbox.sif"
    (sandbox / ".singularity.d").mkdir(parents=True)
    yield "sandbox-directory", sandbox, Until.UNSUPPORTED


def matrix(base: Base, seed: int = 1) -> Iterator[Case]:
    """Every case of the matrix that bytes alone can make."""
    yield from _not_an_image(base, seed)
    yield from _truncated(base)
    yield from _zeroed(base)
    yield from _mixed(base)
    yield from _header(base)
    yield from _descriptor(base)
    yield from _superblock(base)
    yield from _metadata(base)
    yield from _data(base)
    yield from _random(base, seed)


def _not_an_image(base: Base, seed: int) -> Iterator[Case]:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("manifest.json"))
    bodies = {
        "empty": b"",
        "html": b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n",
        "s3-xml-error": b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>',
        "json-error": b'{"errors":[{"code":"UNAUTHORIZED"}]}',
        "git-lfs-pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "git-annex-pointer": b"/annex/objects/MD5E-s1--x.sif\n",
        "gzipped-sif": gzip.compress(base.data[:MIB], 1),
        "docker-archive-tar": tar.getvalue(),
        "random-bytes": random.Random(seed).randbytes(5000),
    }
    for name, body in bodies.items():
        yield Case("not an image", name, body, Until.HEADER)


def _truncated(base: Base) -> Iterator[Case]:
    size = len(base.data)
    cuts = {
        "10%": size // 10, "50%": size // 2, "99%": size * 99 // 100, "last-4KiB": size - 4096,
        "last-1-byte": size - 1, "in-header": 100, "after-header": 128, "in-descriptors": 8192,
        "at-partition": base.at,
    }  # fmt: skip
    for name, length in cuts.items():
        yield Case("truncated", name, base.data[:length], Until.HEADER)


def _zeroed(base: Base) -> Iterator[Case]:
    size = len(base.data)

    def zero(start: int, length: int) -> bytes:
        return base.put(start, bytes(min(length, size - start)))

    end = base.at + base.sb.bytes_used
    yield Case("zeroed", "head-4KiB", zero(0, 4096), Until.HEADER)
    yield Case("zeroed", "head-64KiB", zero(0, 65536), Until.HEADER)
    yield Case("zeroed", "middle", zero(size // 2, size // 10), Until.DATA)
    yield Case(
        "zeroed",
        "one-page-in-data",
        zero((base.at + base.sb.inode_table // 2) & ~4095, 4096),
        Until.DATA,
        True,
    )
    yield Case("zeroed", "tail-4KiB", zero(end - 4096, size), Until.MOUNT)
    yield Case("zeroed", "tail-64KiB", zero(end - 65536, size), Until.MOUNT)
    yield Case("zeroed", "second-half", zero(size // 2, size), Until.MOUNT)
    yield Case("zeroed", "right-size", bytes(size), Until.HEADER)
    yield Case("zeroed", "after-half-MiB", zero(MIB // 2, size), Until.MOUNT)


def _mixed(base: Base) -> Iterator[Case]:
    data, size = base.data, len(base.data)
    half = size // 2
    yield Case("mixed", "spliced-halves", data[:half] + random.Random(3).randbytes(size - half), Until.MOUNT)
    yield Case("mixed", "bad-resume", data[:half] + data[half - 65536 : half] + data[half:], Until.MOUNT)
    yield Case("mixed", "ascii-mode-crlf", data.replace(b"\n", b"\r\n"), Until.HEADER)
    yield Case("mixed", "shifted-by-one", b"x" + data, Until.HEADER)
    yield Case("mixed", "trailing-garbage", data + b"garbage" * 1000, Until.WARN)
    yield Case("mixed", "trailing-1-byte", data + b"x", Until.WARN)


def _header(base: Base) -> Iterator[Case]:
    flips = [
        ("launch", 3, Until.WARN), ("magic", 32, Until.HEADER), ("version", 42, Until.HEADER),
        ("arch", 46, Until.HEADER), ("uuid", 48, Until.HASH), ("ctime", 64, Until.HASH),
        ("dfree", 80, Until.WARN), ("dtotal", 88, Until.HEADER), ("descoff", 96, Until.HEADER),
        ("desclen", 104, Until.HEADER), ("dataoff", 112, Until.HEADER), ("datalen", 120, Until.HEADER),
    ]  # fmt: skip
    for name, at, until in flips:
        yield Case("SIF header", f"flip-{name}", base.flip(at), until)
    for name, count in (("1e6", 10**6), ("2^40", 1 << 40), ("-1", -1)):
        yield Case("SIF header", f"descr-count-{name}", base.put(88, struct.pack("<q", count)), Until.HEADER)
    yield Case("SIF header", "descr-offset", base.put(96, struct.pack("<q", 1 << 40)), Until.HEADER)


def _descriptor(base: Base) -> Iterator[Case]:
    at = base.slot
    flips = [
        ("type", 0, Until.HEADER), ("used", 4, Until.HEADER), ("id", 5, Until.HEADER),
        ("offset", 17, Until.HEADER), ("size", 25, Until.ANY), ("storelen", 33, Until.HASH),
        ("name", 73, Until.HASH), ("fstype", 201, Until.HEADER), ("parttype", 205, Until.HEADER),
        ("partarch", 210, Until.HEADER),
    ]  # fmt: skip
    for name, offset, until in flips:
        yield Case("descriptor", f"flip-{name}", base.flip(at + offset), until)
    for name, value in (("part-offset-beyond-eof", 1 << 40), ("part-offset-negative", -4096)):
        yield Case("descriptor", name, base.put(at + 17, struct.pack("<q", value)), Until.HEADER)
    for name, value in (("part-size-huge", 1 << 40), ("part-size-negative", -1), ("part-size-0", 0)):
        yield Case("descriptor", name, base.put(at + 25, struct.pack("<q", value)), Until.HEADER)
    yield Case("descriptor", "no-primary", base.put(at + 205, struct.pack("<i", 3)), Until.HEADER)
    yield Case("descriptor", "no-descriptors", base.put(4096, bytes(DESCRIPTOR.size * 48)), Until.HEADER)
    twin = bytearray(base.data[at : at + DESCRIPTOR.size])
    free = next(i for i in range(48) if not base.data[4096 + i * DESCRIPTOR.size + 4])
    struct.pack_into("<I", twin, 5, free + 1)
    yield Case(
        "descriptor", "two-primaries", base.put(4096 + free * DESCRIPTOR.size, bytes(twin)), Until.HEADER
    )
    ext3 = base.put(at + 201, struct.pack("<i", 2))
    yield Case(
        "other kind",
        "ext3-partition",
        ext3[: base.at + 1080] + b"\x53\xef" + ext3[base.at + 1082 :],
        Until.UNSUPPORTED,
    )
    encrypted = base.put(at + 201, struct.pack("<i", 5))
    yield Case(
        "other kind",
        "encrypted",
        encrypted[: base.at] + b"LUKS\xba\xbe" + encrypted[base.at + 6 :],
        Until.UNSUPPORTED,
    )
    yield Case("other kind", "bare-squashfs", base.part, Until.UNSUPPORTED)
    yield Case(
        "other kind",
        "singularity-2",
        b"#!/usr/bin/env run-singularity\n" + base.part + bytes(481),
        Until.UNSUPPORTED,
    )
    yield Case("other kind", "raw-ext3", bytes(1080) + b"\x53\xef" + bytes(5000), Until.UNSUPPORTED)


def _superblock(base: Base) -> Iterator[Case]:
    flips = [
        ("magic", 0, Until.MOUNT), ("inode-count", 4, Until.TABLES), ("mkfs-time", 8, Until.HASH),
        ("block-size", 12, Until.MOUNT), ("fragment-count", 16, Until.TABLES), ("flags", 24, Until.HASH),
        ("compressor", 20, Until.MOUNT), ("block-log", 22, Until.MOUNT), ("id-count", 26, Until.TABLES),
        ("major", 28, Until.MOUNT), ("root-offset", 32, Until.MOUNT), ("root-block", 34, Until.MOUNT),
        ("bytes-used-up", 43, Until.MOUNT), ("bytes-used-low", 40, Until.MOUNT),
        ("id-start", 48, Until.MOUNT),
        ("xattr-start", 56, Until.MOUNT), ("inode-start", 64, Until.TABLES), ("dir-start", 72, Until.TABLES),
        ("fragment-start", 80, Until.MOUNT), ("export-start", 88, Until.MOUNT),
    ]  # fmt: skip
    for name, offset, until in flips:
        yield Case("superblock", f"flip-{name}", base.flip(base.at + offset), until)


def _metadata(base: Base) -> Iterator[Case]:
    sb, fs = base.sb, base.tables.fs
    inside = {
        "inode-table": sb.inode_table + 40,
        "dir-table": sb.directory_table + 20,
        "frag-table": fs.fragment_index[0] + 8,
        "export-table": fs.export_index[0] + 20,
    }
    for name, at in inside.items():
        yield Case("metadata", f"flip-{name}", base.flip(base.at + at, 0x10), Until.TABLES, True)
    yield Case("metadata", "flip-ididx", base.flip(base.at + sb.id_table), Until.MOUNT)
    yield Case("metadata", "flip-fragidx", base.flip(base.at + sb.fragment_table + 1, 0xFF), Until.MOUNT)
    yield Case("metadata", "flip-exportidx", base.flip(base.at + sb.export_table), Until.TABLES)
    yield Case("metadata", "dir-block-length", base.flip(base.at + sb.directory_table), Until.TABLES)
    yield Case("metadata", "inode-block-length", base.flip(base.at + sb.inode_table), Until.TABLES)


def _data(base: Base) -> Iterator[Case]:
    yield Case("data", "flip-block", base.flip(base.middle(base.packed[-1])), Until.DATA, True)
    start, word = base.tables.fragments[0]
    if not word & STORED_BLOCK:
        yield Case(
            "data", "flip-fragment", base.flip(base.middle(start << SIZE_BITS | word)), Until.DATA, True
        )
    yield Case("data", "flip-busybox", base.flip(base.at + base.busybox + 5000), Until.DATA, True)
    if base.stored:
        yield Case("data", "flip-stored", base.flip(base.middle(base.stored[0])), Until.HASH)
    a, b = (base.at + (k >> SIZE_BITS) for k in base.packed[:2])
    length = min(k & (STORED_BLOCK - 1) for k in base.packed[:2])
    swapped = base.put(a, base.data[b : b + length])
    swapped = swapped[:b] + base.data[a : a + length] + swapped[b + length :]
    yield Case("data", "swap-two-blocks", swapped, Until.DATA)
    padding = base.at + base.sb.bytes_used
    if padding < base.at + len(base.part):
        yield Case("data", "flip-padding", base.flip(padding), Until.HASH)


def _random(base: Base, seed: int) -> Iterator[Case]:
    chance = random.Random(seed)
    for number in range(6):
        key = chance.choice(base.packed)
        at = base.at + (key >> SIZE_BITS) + chance.randrange(12, key & (STORED_BLOCK - 1))
        yield Case("random", f"flip-{number}", base.flip(at, 1 << chance.randrange(8)), Until.DATA, True)


def random_damage(base: Base, chance: random.Random) -> tuple[str, bytes]:
    """One of many kinds of damage, anywhere from the superblock on."""
    size = len(base.data)
    metadata = base.at + base.sb.inode_table
    where = chance.choice(["anywhere", "anywhere", "metadata", "metadata", "superblock", "tail"])
    at = {
        "anywhere": chance.randrange(base.at, size),
        "metadata": chance.randrange(metadata, base.at + base.sb.bytes_used),
        "superblock": base.at + chance.randrange(96),
        "tail": chance.randrange(max(base.at, size - 6000), size),
    }[where]
    kind = chance.choice(["bit", "bit", "byte", "zeros", "noise", "cut", "page", "copy"])
    length = min(chance.choice([1, 2, 4, 64, 512, 4096, 65536]), size - at)
    if kind == "bit":
        data = base.flip(at, 1 << chance.randrange(8))
    elif kind == "byte":
        data = base.put(at, bytes([chance.randrange(256)]))
    elif kind == "zeros":
        data = base.put(at, bytes(length))
    elif kind == "noise":
        data = base.put(at, chance.randbytes(length))
    elif kind == "cut":
        data = base.data[:at]
    elif kind == "page":
        data = base.put(at & ~4095, bytes(min(4096, size - (at & ~4095))))
    else:
        other = chance.randrange(base.at, size - length + 1)
        data = base.put(at, base.data[other : other + length])
    return f"{kind} of {length} at {at} ({where})", data
