"""Compressors that a squashfs may be written with, each as mksquashfs and the kernel expect it."""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

METADATA = 8192
"""Bytes in an unpacked metadata block."""


@dataclass(frozen=True, slots=True)
class Codec:
    name: str
    id: int
    """Superblock's compressor number."""
    compress: Callable[[bytes], bytes] | None
    """None stores every block as it is."""
    options: bytes = b""
    """What follows the superblock, where the kernel demands it (lz4)."""

    def pack(self, data: bytes) -> tuple[bytes, bool]:
        """``data`` as it is to be written, and whether it is compressed (only when that is smaller)."""
        if self.compress is not None:
            packed = self.compress(data)
            if len(packed) < len(data):
                return packed, True
        return data, False


WRITABLE = ("gzip", "xz", "lz4", "zstd")


def codec(name: str, block_size: int, level: int | None = None, dictionary: int | None = None) -> Codec:
    """The codec ``name`` (one of ``WRITABLE``, or stored); ``ValueError`` for any other.

    Levels default to those of mksquashfs. No checksum is added to zstd: the kernel's decoder is
    built for frames without one.
    """
    if name == "stored":
        return Codec(name, 1, None)
    if name == "gzip":
        strength = 9 if level is None else level
        return Codec(name, 1, lambda data: zlib.compress(data, strength))
    if name == "xz":
        # The kernel allocates a dictionary of the block size, and refuses a stream that wants more.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6 if level is None else level,
                    "dict_size": dictionary or max(block_size, METADATA)}]  # fmt: skip
        return Codec(
            name, 4, lambda data: lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=filters)
        )
    if name == "lz4":
        from lz4 import block

        def lz4(data: bytes) -> bytes:
            packed: bytes = block.compress(data, store_size=False)
            return packed

        return Codec(name, 5, lz4, struct.pack("<II", 1, 0))
    if name == "zstd":
        import zstandard

        context = zstandard.ZstdCompressor(level=15 if level is None else level, write_checksum=False)
        return Codec(name, 6, context.compress)
    raise ValueError(f"no compressor {name!r}: gzip, xz, lz4, zstd or stored")
