"""The SIF container: its header and descriptors, read and checked (level ``header``).

The layout and the rules are those of facts: sif section 1. Nothing that the file says is believed
before it was compared with the file's size, and no count is followed beyond a fixed limit.
"""

from __future__ import annotations

import functools
import platform
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from poolmgr.model.arch import runs_on
from poolmgr.model.finding import CODES, Finding, Severity
from poolmgr.sif.source import Source

HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_USED_DESCRIPTOR = struct.Struct("<ixIIIqqqqqqq128s384s")
EXTRA = 384
_TYPES = struct.Struct("<ii")
LAUNCH = b"#!/usr/bin/env run-singularity\n\0"
MAGIC = b"SIF_MAGIC\0"
VERSION = b"01\0"
HEAD = 37 * 1024
"""Bytes of the first read: header, the usual 48 descriptors, and the superblock that follows them."""
MAX_DESCRIPTORS = 4096
SECTOR = 512
"""Loop devices begin on such a boundary."""
NO_GROUP = 0xF0000000
METADATA_NAME = "inspect-metadata.json"
"""The descriptor that ``apptainer inspect`` reads rather than run the image."""

FILE, ENVIRONMENT, LABELS, PARTITION, SIGNATURE, JSON, GENERIC, CRYPTO, SBOM, OCI_INDEX, OCI_BLOB = range(
    0x4001, 0x400C
)
SQUASHFS, EXT3, ARCHIVE, RAW, ENCRYPTED, GOCRYPTFS = range(1, 7)
FS_NAMES = {
    SQUASHFS: "squashfs",
    EXT3: "ext3",
    ARCHIVE: "archive",
    RAW: "raw",
    ENCRYPTED: "encrypted squashfs",
    GOCRYPTFS: "gocryptfs",
}
SYSTEM, PRIMARY, DATA, OVERLAY = range(1, 5)
_ARCH_NAMES = (
    "unknown", "386", "amd64", "arm", "arm64", "ppc64", "ppc64le",
    "mips", "mipsle", "mips64", "mips64le", "s390x", "riscv64", "loong64",
)  # fmt: skip
ARCHS: Mapping[bytes, str] = MappingProxyType({b"%02d\0" % i: name for i, name in enumerate(_ARCH_NAMES)})
"""The code of three bytes -> Go's name of the architecture."""
_MACHINES = {
    "x86_64": "amd64",
    "i686": "386",
    "i386": "386",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "loongarch64": "loong64",
}
_ZEROS = bytes(DESCRIPTOR.size * 64)


class Header(NamedTuple):
    """The global header. Offsets and lengths in bytes, times in Unix seconds."""

    launch: bytes
    version: bytes
    arch: str
    """Go's name of it; ``unknown`` where there is no primary partition."""
    uuid: bytes
    created: int
    modified: int
    free: int
    total: int
    descriptors_offset: int
    descriptors_length: int
    data_offset: int
    data_length: int

    @property
    def end(self) -> int:
        """The file's size, as the header promises it."""
        return self.data_offset + self.data_length


class Descriptor(NamedTuple):
    """One object of the file."""

    datatype: int
    id: int
    group: int
    link: int
    offset: int
    size: int
    padded: int
    created: int
    modified: int
    uid: int
    gid: int
    raw_name: bytes
    extra: bytes
    fstype: int
    """The first two numbers of ``extra``, as a partition has them."""
    parttype: int

    @property
    def name(self) -> str:
        return self.raw_name.split(b"\0", 1)[0].decode("utf-8", "replace")

    @property
    def is_partition(self) -> bool:
        return self.datatype == PARTITION

    @property
    def is_primary(self) -> bool:
        return self.datatype == PARTITION and self.parttype == PRIMARY

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Container:
    """A SIF file's header and objects, with everything that was found wrong in them."""

    header: Header | None
    """None when the file is no SIF, or its header cannot be followed."""
    objects: tuple[Descriptor, ...]
    findings: tuple[Finding, ...]
    arch: str | None = None
    head: bytes = b""
    """The first bytes of the file."""

    @property
    def primary(self) -> Descriptor | None:
        return next((d for d in self.objects if d.is_primary), None)

    @property
    def partitions(self) -> tuple[Descriptor, ...]:
        """Every filesystem, the primary first, then in the order of the descriptors."""
        return tuple(sorted((d for d in self.objects if d.is_partition), key=lambda d: not d.is_primary))


@functools.cache
def host_arch() -> str:
    """This machine's architecture by Go's name, such as ``amd64``."""
    machine = platform.machine().lower()
    return _MACHINES.get(machine, machine)


def read_container(source: Source) -> Container:
    """Header and descriptors of ``source``; ``findings`` holds all that level ``header`` finds wrong.

    A file that is no SIF has no header and no finding here: ``sniff`` says what it is.
    """
    head = source.read_at(0, HEAD)
    if head[32:42] != MAGIC or len(head) < HEADER.size:
        return Container(None, (), (), head=head)
    found: list[Finding] = []
    header = _read_header(head, source.size, found)
    if header is None:
        return Container(None, (), tuple(found), head=head)
    at, length = header.descriptors_offset, header.total * DESCRIPTOR.size
    table = head[at : at + length] if at + length <= len(head) else source.read_at(at, length)
    if len(table) < length:
        found.append(finding("short-read", f"{length} bytes of descriptors expected, {len(table)} read"))
        return Container(header, (), tuple(found), head=head)
    objects = _read_descriptors(table, header, found)
    _check_objects(header, objects, source.size, found)
    arch = _check_arch(header, objects, found)
    return Container(header, objects, tuple(found), arch, head)


def finding(code: str, message: str, where: str = "") -> Finding:
    """A finding with the severity that its code has in the vocabulary."""
    return Finding(code, message, CODES[code].severity, where)


def _read_header(head: bytes, size: int, found: list[Finding]) -> Header | None:
    """The header when its descriptors can be read, with complaints about both."""
    launch, _, version, arch, uuid, *numbers = HEADER.unpack_from(head)
    header = Header(launch, version, ARCHS.get(arch, ""), uuid, *numbers)
    if version != VERSION:
        found.append(finding("sif-version", f"SIF version {version!r}; only {VERSION!r} exists"))
        return None
    if not header.arch:
        found.append(finding("sif-arch", f"the header's architecture {arch!r} is unknown"))
    if launch != LAUNCH and launch.strip(b"\0"):
        line = launch.rstrip(b"\0")
        found.append(finding("sif-launch", f"unusual first line {line!r}"))
    total, at, length = header.total, header.descriptors_offset, header.descriptors_length
    if not 1 <= total <= MAX_DESCRIPTORS:
        found.append(
            finding("sif-descr-count", f"{total} descriptors promised; 1 to {MAX_DESCRIPTORS} are sane")
        )
        return None
    if not 0 <= header.free <= total:
        found.append(finding("sif-descr-count", f"{header.free} of {total} descriptors are said to be free"))
    if header.data_offset < HEADER.size or header.data_length < 0:
        found.append(
            finding(
                "sif-data-range", f"data section at {header.data_offset}, {header.data_length} bytes long"
            )
        )
    elif header.end > size:
        found.append(finding("sif-truncated", f"the file has {size} bytes, its header promises {header.end}"))
    elif header.end < size:
        found.append(finding("sif-trailing", f"bytes after the end of the data section: {size - header.end}"))
    need = total * DESCRIPTOR.size
    if at < HEADER.size or length < need or at + length > size:
        if at < HEADER.size or length < need or not any(f.code == "sif-truncated" for f in found):
            found.append(
                finding("sif-descr-range", f"{total} descriptors need {need} bytes; {length} at offset {at}")
            )
        return None
    return header


def _read_descriptors(table: bytes, header: Header, found: list[Finding]) -> tuple[Descriptor, ...]:
    step = DESCRIPTOR.size
    flags = table[4::step]
    objects: list[Descriptor] = []
    last = 0
    for slot, used in enumerate(flags.rstrip(b"\0")):
        if not used:
            continue
        if used != 1:
            found.append(finding("sif-descr-used", f"byte 'used' is {used}", f"descriptor {slot + 1}"))
            continue
        if last != slot and table[last * step : slot * step].strip(b"\0"):
            found.append(finding("sif-slot", "an unused slot holds bytes", f"descriptor {last + 1}"))
        last = slot + 1
        values = _USED_DESCRIPTOR.unpack_from(table, slot * step)
        types = _TYPES.unpack_from(table, slot * step + step - EXTRA)
        objects.append(Descriptor._make(values + types))
        if values[1] != slot + 1:
            found.append(finding("sif-descr-id", f"its id is {values[1]}", f"descriptor {slot + 1}"))
    tail = table[last * step :]
    if any(tail[i : i + len(_ZEROS)] != _ZEROS[: len(tail) - i] for i in range(0, len(tail), len(_ZEROS))):
        found.append(finding("sif-slot", "an unused slot holds bytes", f"after descriptor {last}"))
    used_count = len(flags) - flags.count(0)
    if 0 <= header.free <= header.total and header.free != header.total - used_count:
        found.append(
            finding(
                "sif-descr-free",
                f"{header.free} descriptors said to be free, {header.total - used_count} are",
            )
        )
    return tuple(objects)


def _check_objects(header: Header, objects: tuple[Descriptor, ...], size: int, found: list[Finding]) -> None:
    if not objects:
        found.append(finding("sif-no-objects", "no descriptor is in use"))
        return
    cut = any(f.code == "sif-truncated" for f in found)
    ids = {d.id for d in objects}
    groups = {d.group for d in objects}
    first = header.descriptors_offset + header.descriptors_length
    for d in objects:
        where = f"descriptor {d.id}"
        if not FILE <= d.datatype <= OCI_BLOB:
            found.append(finding("sif-datatype", f"unknown data type 0x{d.datatype & 0xFFFFFFFF:x}", where))
        outside = d.offset < first or d.size < 0 or d.end > header.end
        if outside or (d.end > size and not cut):
            found.append(
                finding(
                    "sif-object-range",
                    f"bytes {d.offset} to {d.end} do not lie between {first} and {min(header.end, size)}",
                    where,
                )
            )
        if d.link and d.link not in ids and d.link not in groups:
            found.append(finding("sif-link", f"links to {d.link:#x}, which is not there", where))
        if d.is_partition:
            _check_partition(d, where, found)
    reach, owner = 0, 0
    for d in sorted((d for d in objects if d.size > 0), key=lambda d: d.offset):
        if d.offset < reach:
            found.append(
                finding(
                    "sif-overlap", f"overlaps descriptor {owner}, which ends at {reach}", f"descriptor {d.id}"
                )
            )
        if d.end > reach:
            reach, owner = d.end, d.id
    primaries = [d.id for d in objects if d.is_primary]
    if len(primaries) > 1:
        found.append(
            finding("sif-two-primaries", f"descriptors {primaries} all claim to be the primary partition")
        )
    elif not primaries and not is_oci(objects):
        found.append(finding("sif-no-primary", "no descriptor is the primary system partition"))


def is_oci(objects: Iterable[Descriptor]) -> bool:
    """Whether the file is an OCI-SIF (SingularityCE 4), which has no primary partition."""
    return any(d.datatype == OCI_INDEX for d in objects)


def _check_partition(d: Descriptor, where: str, found: list[Finding]) -> None:
    mounted = d.parttype in (PRIMARY, OVERLAY)
    if d.fstype not in FS_NAMES or (mounted and d.fstype in (ARCHIVE, RAW)):
        found.append(
            finding("sif-part-fs", f"filesystem type {FS_NAMES.get(d.fstype, d.fstype)} cannot be run", where)
        )
    if not SYSTEM <= d.parttype <= OVERLAY:
        found.append(finding("sif-part-type", f"unknown partition type {d.parttype}", where))
    if d.size == 0:
        found.append(finding("sif-part-empty", "the partition has no bytes", where))
    if d.offset % SECTOR and d.fstype not in (ARCHIVE, RAW):
        found.append(
            finding("sif-part-align", f"offset {d.offset} is no multiple of {SECTOR}: no loop device", where)
        )


def _check_arch(header: Header, objects: tuple[Descriptor, ...], found: list[Finding]) -> str | None:
    primaries = [d for d in objects if d.is_primary]
    if len(primaries) != 1:
        return None
    code = primaries[0].extra[8:11]
    arch = ARCHS.get(code)
    where = f"descriptor {primaries[0].id}"
    if arch is None or arch == "unknown":
        found.append(finding("sif-arch", f"the primary partition's architecture {code!r} is unknown", where))
        return None
    if header.arch and arch != header.arch:
        found.append(
            finding("sif-arch", f"the primary partition is {arch}, the header says {header.arch}", where)
        )
        return None
    return arch


def arch_finding(image: str | None, wanted: str | None) -> Finding | None:
    """``wrong-arch`` when an image of known architecture does not run where it is wanted."""
    if image is None or wanted is None or runs_on(image, wanted):
        return None
    return Finding("wrong-arch", f"the image is for {image}, not for {wanted}", Severity.ERROR)
