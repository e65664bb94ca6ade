"""The six compressors of squashfs, each with bounded output.

A codec keeps state that only one thread may use; every worker opens its own.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol

GZIP, LZMA, LZO, XZ, LZ4, ZSTD = range(1, 7)
NAMES = {GZIP: "gzip", LZMA: "lzma", LZO: "lzo", XZ: "xz", LZ4: "lz4", ZSTD: "zstd"}
CHECKSUMMED = frozenset({GZIP, XZ})
"""adler32 and crc32 in every block; the others carry nothing (facts: sif section 2)."""
_XZ_MEMORY = 64 << 20
_ZLIB_32K = 0x7F
"""The first byte of a zlib stream is at most this: a window of 32 KiB and some method."""
NO_LIMIT = 1 << 62
_LZMA2, _DELTA = 0x21, 3
_XZ_CHECKS = (b"\0\0", b"\0\1")
"""No check, crc32: the kernel's decoder has no other."""


class CodecError(Exception):
    """The bytes are not what this compressor writes, or unpack to more than they may."""


class MissingCodecError(Exception):
    """The library for a compressor is not installed; the text says how to get it."""


class Codec(Protocol):
    def __call__(self, data: bytes | memoryview, limit: int) -> bytes:
        """``data`` unpacked: at most ``limit`` bytes, else ``CodecError``."""
        ...


def open_codec(number: int, window: int = NO_LIMIT) -> Codec:
    """A codec for one thread. ``MissingCodecError`` when its library is absent, ``KeyError`` when unknown.

    ``window`` is the room that the kernel has for an xz dictionary or a zstd window: what needs more
    is refused, as the kernel does.
    """
    if number in _WINDOWED:
        return _WINDOWED[number](window)
    return _OPEN[number]()


@functools.cache
def missing(number: int) -> str | None:
    """Why a known compressor cannot be read here and how to change that; None when it can."""
    try:
        open_codec(number)
    except MissingCodecError as e:
        return str(e)
    return None


def _zlib() -> Codec:
    make: Callable[[], Any] = zlib.decompressobj
    broken: Any = zlib.error
    try:
        from isal import isal_zlib  # more than twice as fast
    except ImportError:
        pass
    else:
        make, broken = isal_zlib.decompressobj, isal_zlib.error

    def unpack(data: bytes | memoryview, limit: int) -> bytes:
        if len(data) and data[0] > _ZLIB_32K:  # isal does not look
            raise CodecError("zlib: a window of more than 32 KiB")
        stream = make()
        try:
            out: bytes = stream.decompress(data, limit + 1)
        except broken as e:
            raise CodecError(f"zlib: {e}") from None
        if len(out) > limit:
            raise CodecError(f"unpacks to more than {limit} bytes")
        if not stream.eof:
            raise CodecError("zlib: the stream does not end")
        if stream.unused_data:
            raise CodecError(f"{len(stream.unused_data)} bytes follow the zlib stream")
        return out

    return unpack


def _xz(window: int) -> Codec:
    def unpack(data: bytes | memoryview, limit: int) -> bytes:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        try:
            out = stream.decompress(data, limit + 1)
        except (lzma.LZMAError, ValueError) as e:
            raise CodecError(f"xz: {e}") from None
        out = _whole(out, stream, limit)
        _kernel_reads(bytes(data[:64]), window)
        return out

    return unpack


def _kernel_reads(head: bytes, window: int) -> None:
    """Whether the kernel's xz decoder takes a stream that begins with ``head``, which unpacked here.

    Its dictionary was allocated at the mount, it knows no delta filter, and no checks but crc32.
    """
    if head[6:8] not in _XZ_CHECKS:
        raise CodecError("xz: a check that no kernel reads; only crc32 is")
    flags, at = head[13], 14
    for present in (flags & 0x40, flags & 0x80):  # the sizes of the block
        if present:
            _, at = _number(head, at)
    for _ in range((flags & 3) + 1):
        kind, at = _number(head, at)
        size, at = _number(head, at)
        if kind == _DELTA:
            raise CodecError("xz: a delta filter, which no kernel reads")
        if kind == _LZMA2:
            bits = head[at]
            need = (2 | bits & 1) << (bits // 2 + 11)
            if need > window:
                raise CodecError(f"xz: needs a dictionary of {need} bytes, the kernel keeps {window}")
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """(number of variable length at ``at``, position after it)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _lzma() -> Codec:
    def unpack(data: bytes | memoryview, limit: int) -> bytes:
        data = bytes(data)
        # squashfs-tools writes the size into the header although the stream has an end marker
        if len(data) < 13:
            raise CodecError("lzma: no header")
        size = int.from_bytes(data[5:13], "little")
        stream = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_XZ_MEMORY)
        try:
            out = stream.decompress(data[:5] + b"\xff" * 8 + data[13:], limit + 1)
        except (lzma.LZMAError, ValueError) as e:
            raise CodecError(f"lzma: {e}") from None
        out = _whole(out, stream, limit)
        if len(out) != size:
            raise CodecError(f"lzma: {size} bytes promised, {len(out)} came")
        return out

    return unpack


def _whole(out: bytes, stream: lzma.LZMADecompressor, limit: int) -> bytes:
    if len(out) > limit:
        raise CodecError(f"unpacks to more than {limit} bytes")
    if not stream.eof:
        raise CodecError("the compressed stream does not end")
    if stream.unused_data:
        raise CodecError(f"{len(stream.unused_data)} bytes follow the compressed stream")
    return out


def _lz4() -> Codec:
    try:
        from lz4 import block
    except ImportError:
        raise MissingCodecError("lz4 support is not installed (pip install lz4)") from None

    def unpack(data: bytes | memoryview, limit: int) -> bytes:
        try:
            out: bytes = block.decompress(data, uncompressed_size=limit)
        except (block.LZ4BlockError, ValueError) as e:
            raise CodecError(f"lz4: {e}") from None
        return out

    return unpack


def _zstd(window: int) -> Codec:
    try:
        import zstandard
    except ImportError:
        raise MissingCodecError("zstd support is not installed (pip install zstandard)") from None
    decoder = zstandard.ZstdDecompressor()
    size_of = zstandard.frame_content_size
    parameters = zstandard.get_frame_parameters

    def unpack(data: bytes | memoryview, limit: int) -> bytes:
        try:
            # the promised size would be allocated unseen
            if size_of(data) > limit:
                raise CodecError(f"unpacks to more than {limit} bytes")
            out = decoder.decompress(data, max_output_size=limit, allow_extra_data=False)
            if (need := parameters(data).window_size) > window:
                raise CodecError(f"zstd: needs a window of {need} bytes, the kernel keeps {window}")
            return out
        except (zstandard.ZstdError, ValueError) as e:
            raise CodecError(f"zstd: {e}") from None

    return unpack


@functools.cache
def _lzo_library() -> ctypes.CDLL | None:
    for name in ("liblzo2.so.2", ctypes.util.find_library("lzo2")):
        if name:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
    return None


def _lzo() -> Codec:
    library = _lzo_library()
    if library is None:
        raise MissingCodecError("lzo support is not installed (apt-get install liblzo2-2)")
    decompress = library.lzo1x_decompress_safe
    decompress.argtypes = [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.c_void_p,
    ]
    decompress.restype = ctypes.c_int

    def unpack(data: bytes | memoryview, limit: int) -> bytes:
        out = ctypes.create_string_buffer(limit)
        size = ctypes.c_size_t(limit)
        status = decompress(bytes(data), len(data), out, ctypes.byref(size), None)
        if status != 0:
            raise CodecError(f"lzo: error {status}")
        return ctypes.string_at(out, size.value)

    return unpack


_OPEN: dict[int, Callable[[], Codec]] = {
    GZIP: _zlib,
    LZMA: _lzma,
    LZO: _lzo,
    LZ4: _lz4,
}
_WINDOWED: dict[int, Callable[[int], Codec]] = {XZ: _xz, ZSTD: _zstd}
