"""Reads a tar that lies in memory, strictly: ustar, GNU long names and pax, as task archives have them.

tarfile of the standard library stops in silence at a damaged header and costs ten times as much,
so archives are read here; tests hold the two against each other. Sparse files are refused: no
writer of task archives makes them, and their size in the header is not their size on disk.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 512
MAX_NAME = 4096
MAX_PAX = 1 << 20
_ZERO = bytes(BLOCK)


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
    pax: dict[str, str] = {}
    shared: dict[str, str] = {}
    total = len(data)
    while True:
        header = data[at : at + BLOCK]
        if len(header) < BLOCK:
            raise TarError(f"cut off at byte {at}: the end marker is missing")
        if header == _ZERO:
            if long_name is not None or long_link is not None or pax:
                raise TarError(f"byte {at}: a name record without its member")
            return found
        _check_sum(header, at)
        kind = chr(header[156])
        size = _number(header, 124, 12, at)
        start = at + BLOCK
        end = start + size
        carries = kind not in "123456"  # links, devices, folders and FIFOs have no content
        if pax and "size" in pax and carries:
            size = _decimal(pax["size"], at)
            end = start + size
        if not carries:
            size, end = 0, start
        if end > total:
            raise TarError(f"cut off at byte {total}: the member at byte {at} ends at byte {end}")
        at = end + -end % BLOCK
        if kind in "LKxg":
            if size > MAX_PAX:
                raise TarError(f"byte {start}: a name record of {size} bytes")
            record = data[start:end]
            if kind == "L":
                long_name = _text(record.split(b"\0", 1)[0])
            elif kind == "K":
                long_link = _text(record.split(b"\0", 1)[0])
            elif kind == "x":
                pax = _pax(record, start)
            else:
                shared.update(_pax(record, start))
            continue
        if kind == "S" or any(key.startswith("GNU.sparse") for key in pax):
            raise TarError(f"byte {start - BLOCK}: a sparse file, which task archives never hold")
        values = {**shared, **pax} if shared else pax
        name = values.get("path") or long_name or _name(header)
        link = values.get("linkpath") or long_link or _text(_cut(header, 157, 100))
        long_name = long_link = None
        pax = {}
        if len(name) > MAX_NAME or len(link) > MAX_NAME:
            raise TarError(f"byte {start - BLOCK}: a name of {max(len(name), len(link))} characters")
        if kind == "\0":
            kind = "5" if name.endswith("/") else "0"  # how tars from before POSIX write them
        elif kind == "7":
            kind = "0"
        found.append(Member(name.rstrip("/"), kind, _number(header, 100, 8, at) & 0o7777, size, start, link))
        if len(found) > limit:
            raise TarError(f"more than {limit:,} members")


def _cut(header: bytes, start: int, length: int) -> bytes:
    return header[start : start + length].split(b"\0", 1)[0]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _name(header: bytes) -> str:
    name = _text(_cut(header, 0, 100))
    if header[257:263] == b"ustar\0" and header[345]:
        return f"{_text(_cut(header, 345, 155))}/{name}"
    return name


def _check_sum(header: bytes, at: int) -> None:
    recorded = _number(header, 148, 8, at)
    if sum(header) - sum(header[148:156]) + 256 == recorded:
        return
    body = header[:148] + header[156:]
    signed = sum(byte - 256 if byte > 127 else byte for byte in body) + 256
    if signed != recorded:
        raise TarError(f"byte {at}: a damaged header (its checksum does not hold)")


def _number(header: bytes, start: int, length: int, at: int) -> int:
    raw = header[start : start + length]
    if raw[0] == 0x80:
        return int.from_bytes(raw[1:], "big")
    text = raw.rstrip(b"\0 ")
    try:
        value = int(text, 8) if text else 0
    except ValueError:
        text = raw.split(b"\0", 1)[0].strip()
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
    """The keywords of a pax record: lines of ``LENGTH KEY=VALUE`` with their newline."""
    values: dict[str, str] = {}
    position = 0
    while position < len(record) and record[position] != 0:
        space = record.find(b" ", position, position + 20)
        length = record[position:space] if space > 0 else b""
        if not length.isdigit() or not space - position < int(length) <= len(record) - position:
            raise TarError(f"byte {at}: a damaged pax record")
        end = position + int(length)
        key, equals, value = record[space + 1 : end - 1].partition(b"=")
        if not equals or record[end - 1 : end] != b"\n":
            raise TarError(f"byte {at}: a damaged pax record")
        values[_text(key)] = _text(value)
        position = end
    return values
