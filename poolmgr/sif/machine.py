"""For which machine the programs in an image are, by their ELF headers.

The SIF header alone does not tell: Apptainer writes the architecture that was asked for, also over
an image of another one (seen with 1.4.5 and images that are for one platform only).
"""

from __future__ import annotations

import struct

from poolmgr.sif.image import Image
from poolmgr.sif.squashfs import DamageError
from poolmgr.sif.tree import Entry

_FIRST = (
    "bin/sh", "usr/bin/env", "bin/busybox", "bin/bash", "bin/cat", "usr/bin/cat", "usr/bin/python3",
    "usr/local/bin/python3", "sbin/init",
)  # fmt: skip
_FOLDERS = ("bin", "usr/bin", "usr/local/bin", "sbin", "usr/sbin", "app")
MAX_LOOKED_AT = 200
"""Files whose first bytes are read at most, in an image that has none of the usual programs."""
_NAMES = {3: "386", 40: "arm", 62: "amd64", 183: "arm64", 22: "s390x", 243: "riscv64", 258: "loong64"}
_MIPS, _PPC64 = 8, 21


def machine_of(image: Image) -> str | None:
    """Go's name of the architecture of the image's programs; None where no program was found."""
    for path in _FIRST:
        entry = image.find(path)
        if entry is not None and (found := _elf(image, entry)):
            return found
    looked = 0
    for folder in _FOLDERS:
        for path, entry in image.merged.items():
            if entry.is_file and entry.size > 64 and path.rpartition("/")[0] == folder:
                if (found := _elf(image, entry)) is not None:
                    return found
                looked += 1
                if looked >= MAX_LOOKED_AT:
                    return None
    return None


def _elf(image: Image, entry: Entry) -> str | None:
    if not entry.is_file or entry.size < 20:
        return None
    try:
        head = next(iter(image.blocks(entry)), b"")[:20]
    except DamageError:
        return None
    return elf_arch(head)


def elf_arch(head: bytes) -> str | None:
    """The architecture that the first 20 bytes of a file name; None for what is no ELF file (ELF spec)."""
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[5] not in (1, 2):
        return None
    little, wide = head[5] == 1, head[4] == 2
    (machine,) = struct.unpack("<H" if little else ">H", head[18:20])
    if machine == _PPC64:
        return "ppc64le" if little else "ppc64"
    if machine == _MIPS:
        return ("mips64" if wide else "mips") + ("le" if little else "")
    return _NAMES.get(machine)
