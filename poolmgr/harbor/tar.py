"""Reads a tar that lies in memory, strictly: ustar, GNU long names and pax, as task archives have them.

tarfile of the standard library stops in silence at a damaged header and costs ten times as much,
so archives are read here; tests hold the two against each other. Sparse files are refused: no
writer of task archives makes them, and their size in the header is not their size on disk.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import adler32

BLOCK = 512
MAX_NAME = 4096
MAX_PAX = 1 << 20
_ZERO = bytes(BLOCK)
_FIELDS = struct.Struct("100s8s16x12s12x8sB100s6s82x155s12x")
"""Name, mode, size, checksum, type, link, magic and prefix of a header."""
_USTAR = b"ustar\0"
_TOLD = frozenset({b"path", b"linkpath", b"size"})
_SPARSE = b"GNU.sparse"
_NEWLINE = 10


class TarError(Exception):
    """The tar cannot be trusted; the text says what and where."""


@dataclass(slots=True)
class Member:
    name: str
    """As written, less a trailing slash; bytes that are not UTF-8 are surrogate escapes."""
    type: str
    """tar's own letter: ``0`` file, ``1`` hard link, ``2`` symbolic link, ``5`` folder, or another."""
    mode: int
    size: int
    start: int
    """Where the content begins in the tar."""
    link: str


def members(data: bytes, *, limit: int) -> list[Member]:
    """Every member in order; ``TarError`` when one is damaged or cut off, or there are over ``limit``."""
    found: list[Member] = []
    at = 0
    long_name = long_link = None
    is_named = False
    pax: dict[str, str] = {}
    shared: dict[str, str] = {}
    total = len(data)
    while True:
        header = data[at : at + BLOCK]
        if len(header) < BLOCK:
            raise TarError(f"cut off at byte {at}: the end marker is missing")
        if header == _ZERO:
            if is_named:
                raise TarError(f"byte {at}: a name record without its member")
            return found
        name_field, mode, size_field, recorded, letter, link_field, magic, prefix = _FIELDS.unpack(header)
        _check_sum(header, recorded, at)
        kind = chr(letter)
        size = _number(size_field, at)
        start = at + BLOCK
        end = start + size
        carries = kind not in "123456"  # links, devices, folders and FIFOs have no content
        if not carries:
            size, end = 0, start
        elif pax and "size" in pax:
            size = _decimal(pax["size"], at)
            end = start + size
        if end > total:
            raise TarError(f"cut off at byte {total}: the member at byte {at} ends at byte {end}")
        at = end + -end % BLOCK
        if kind in "xLKg":
            if size > MAX_PAX:
                raise TarError(f"byte {start}: a name record of {size} bytes")
            record = data[start:end]
            if kind == "x":
                pax = _pax(record, start)
            elif kind == "L":
                long_name = _text(record)
            elif kind == "K":
                long_link = _text(record)
            else:
                shared.update(_pax(record, start))
                if "size" in shared:
                    raise TarError(f"byte {start}: one size for all members")
                continue
            is_named = True
            continue
        values = {**shared, **pax} if shared else pax
        if kind == "S" or (values and "sparse" in values):
            raise TarError(f"byte {start - BLOCK}: a sparse file, which task archives never hold")
        name = values.get("path") or long_name
        if not name:
            name = _text(name_field)
            if prefix[0] and magic == _USTAR:
                name = f"{_text(prefix)}/{name}"
        link = values.get("linkpath") or long_link or (_text(link_field) if link_field[0] else "")
        if is_named:
            long_name = long_link = None
            is_named = False
            pax = {}
        if len(name) > MAX_NAME or len(link) > MAX_NAME:
            raise TarError(f"byte {start - BLOCK}: a name of {max(len(name), len(link))} characters")
        if kind == "\0":
            kind = "5" if name.endswith("/") else "0"  # how tars from before POSIX write them
        elif kind == "7":
            kind = "0"
        found.append(Member(name.rstrip("/"), kind, _number(mode, at) & 0o7777, size, start, link))
        if len(found) > limit:
            raise TarError(f"more than {limit:,} members")


def _text(field: bytes) -> str:
    """What stands before the first NUL."""
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _check_sum(header: bytes, recorded: bytes, at: int) -> None:
    """The recorded sum is that of all bytes, with its own field as eight spaces."""
    # adler32's low half is the sum of the bytes and 1, modulo 65,521: exact for up to 256 bytes.
    low, high = adler32(header[:256]), adler32(header[256:])
    expected = _number(recorded, at)
    if (low & 0xFFFF) + (high & 0xFFFF) - 2 - sum(recorded) + 256 == expected:
        return
    body = header[:148] + header[156:]
    signed = sum(byte - 256 if byte > 127 else byte for byte in body) + 256
    if signed != expected:
        raise TarError(f"byte {at}: a damaged header (its checksum does not hold)")


def _number(raw: bytes, at: int) -> int:
    if raw[0] == 0x80:
        return int.from_bytes(raw[1:], "big")
    text = raw.rstrip(b"\0 ")
    try:
        value = int(text, 8) if text else 0
    except ValueError:
        text = raw.partition(b"\0")[0].strip()
        try:
            value = int(text, 8) if text else 0
        except ValueError:
            value = -1
    if value < 0:
        raise TarError(f"byte {at}: a damaged header (a number that is none)")
    return value


def _decimal(text: str, at: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise TarError(f"byte {at}: a size that is no number")
    return int(text)


def _pax(record: bytes, at: int) -> dict[str, str]:
    """What the lines ``LENGTH KEY=VALUE`` of a pax record say of name, link, size and holes."""
    values: dict[str, str] = {}
    position = 0
    while position < len(record) and record[position] != 0:
        space = record.find(b" ", position, position + 20)
        digits = record[position:space] if space > 0 else b""
        if not digits.isdigit():
            raise TarError(f"byte {at}: a damaged pax record")
        end = position + int(digits)
        key, equals, value = record[space + 1 : end - 1].partition(b"=")
        if not space < end <= len(record) or record[end - 1] != _NEWLINE or not equals:
            raise TarError(f"byte {at}: a damaged pax record")
        if key in _TOLD:
            values[key.decode()] = value.decode("utf-8", "surrogateescape")
        elif key.startswith(_SPARSE):
            values["sparse"] = ""
        position = end
    return values
