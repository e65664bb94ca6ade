"""A map of images to files: two tab-separated columns, reference and file, one pair a line.

The users' ``launch_image_manifest.tsv`` is one: no header, every line that is not blank is data.
Everything in it is hostile; a line that is not exactly a pair is kept as trouble, by its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poolmgr.errors import BadFileError

MAX_BYTES = 1 << 30
MAX_LINE = 64 << 10
"""Bytes of one line; a reference and a path together have far fewer."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_HEADERS = ({"ref", "reference", "image"}, {"file", "filename", "sif", "path"})


@dataclass(frozen=True, slots=True)
class Pair:
    reference: str
    file: str
    """As written: a path in the pool, a bare file name, or an absolute path."""
    line: int
    """From 1."""


@dataclass(frozen=True)
class ImageMap:
    pairs: tuple[Pair, ...]
    bad: tuple[tuple[int, str], ...]
    """(line, why) of every line that is no pair."""
    source: str

    def where(self, line: int) -> str:
        return f"{self.source} line {line}"


def parse_image_map(data: bytes, source: str) -> ImageMap:
    """The pairs in ``data``, in order; ``BadFileError`` when it is no text of lines at all."""
    if len(data) > MAX_BYTES:
        raise BadFileError(f"{source}: larger than the {MAX_BYTES:,} bytes that a map may have")
    if data.startswith(_UTF16):
        raise BadFileError(f"{source}: is UTF-16 text", hint="save it as UTF-8")
    pairs: list[Pair] = []
    bad: list[tuple[int, str]] = []
    for number, line in _lines(data.removeprefix(b"\xef\xbb\xbf")):
        try:
            fields = _fields(line)
        except ValueError as e:
            bad.append((number, str(e)))
            continue
        if fields is None or (number == 1 and _is_header(fields)):
            continue
        pairs.append(Pair(*fields, number))
    return ImageMap(tuple(pairs), tuple(bad), source)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, line without its end); lines end in LF or CRLF."""
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        yield number, data[start : min(end, start + MAX_LINE + 1)]
        start = end + 1


def _fields(line: bytes) -> tuple[str, str] | None:
    """The two columns; None for a blank line; ``ValueError`` says what is wrong."""
    if len(line) > MAX_LINE:
        raise ValueError(f"longer than {MAX_LINE} bytes")
    try:
        text = line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as e:
        raise ValueError(f"not UTF-8 text (byte {e.start} of the line)") from None
    if not text.strip():
        return None
    fields = [_bare(field) for field in text.split("\t")]
    if len(fields) != 2:
        raise ValueError(
            f"{len(fields)} column{'s' * (len(fields) != 1)}, expected a reference, a tab and a file"
        )
    for name, field in zip(("reference", "file"), fields, strict=True):
        if not field:
            raise ValueError(f"the {name} is empty")
        if not field.isprintable():
            raise ValueError(f"the {name} {field[:80]!r} holds a control character")
    return fields[0], fields[1]


def _bare(field: str) -> str:
    """Without the spaces and the quotes that a spreadsheet puts around a field."""
    field = field.strip()
    if len(field) >= 2 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"').strip()
    return field


def _is_header(fields: tuple[str, str]) -> bool:
    return all(field.lower() in names for field, names in zip(fields, _HEADERS, strict=True))
