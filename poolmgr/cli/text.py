"""Words for people: sizes, counts, tables, and text made safe to print. Pure functions."""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")

_NONCE = os.urandom(8).hex()
_MARK = re.compile(f"\0{_NONCE}([0-9;]*)\0")
_MARKS = re.compile(f"(\0{_NONCE}[0-9;]*\0)")

# Tokens of the Hub, an Authorization header's value, user info and query strings of URLs.
_SECRETS = (
    (re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{16,}"), r"\1_***"),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?)((?:bearer|basic)\s+)?[^\s\"',}]+"), r"\1***"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), r"\1***"),
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@\"'<>\\]+@"), r"\1***@"),
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?\"'<>\\]*)\?[^\s\"'<>)\\]+"), r"\1?***"),
)  # fmt: skip
# One look at a text settles that it has none of them, as nearly all have not.
_SUSPECT = re.compile(r"://|\b(?:hf|api_org)_|(?i:bearer|authorization)")


def size(count: int) -> str:
    """``count`` bytes in decimal units, as the Hub shows them: ``2.04 TB``, ``999 B``."""
    if abs(count) < 1000:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS[1:]:
        value /= 1000
        # The unit is chosen after rounding, so that 999,999 bytes are 1.00 MB and not 1000 kB.
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f} {unit}"
    raise AssertionError(count)


def number(count: int) -> str:
    """``count`` with thousands separators: ``16,203``."""
    return f"{count:,}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 task``, ``7,015 tasks``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def span(seconds: float) -> str:
    """A length of time: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without credentials: the given ``secrets``, and whatever looks like one."""
    for secret in secrets:
        text = text.replace(secret, "***")
    if _SUSPECT.search(text):
        for pattern, replacement in _SECRETS:
            text = pattern.sub(replacement, text)
    return text


def name(text: str) -> str:
    """``text`` on one line, with every control character written out, as in ``\\x1b``."""
    return _map(text, _written)


def render(text: str) -> str:
    """``text`` ready for a terminal: marks become colours, control characters are written out.

    Newlines stay, being layout; names pass through ``name`` first, so theirs are gone by then.
    """
    if text.isprintable():
        return text
    safe = _map(text, lambda char: char if char == "\n" else _written(char))
    return _MARK.sub(lambda m: f"\x1b[{m[1]}m", safe)


def marked(text: str, code: str) -> str:
    """``text`` to be shown in the terminal style ``code``; no name can forge the marks."""
    return f"\0{_NONCE}{code}\0{text}\0{_NONCE}0\0"


def width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    plain = _MARK.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in plain
    )


def _map(text: str, written: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    parts = _MARKS.split(text)
    # Every second part is one of our own marks, with its NULs; the others are anybody's.
    return "".join(
        part if i % 2 else "".join(c if c.isprintable() else written(c) for c in part)
        for i, part in enumerate(parts)
    )


def _written(char: str) -> str:
    code = ord(char)
    if char == "\n":
        return "\\n"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str] = (),
    *,
    right: Iterable[int] = (),
    fit: int | None = None,
) -> list[str]:
    """Aligned lines, columns two spaces apart; the columns numbered in ``right`` flush right.

    Where ``fit`` columns of a terminal are too few, the words of the last column go on below it.
    """
    flush = frozenset(right)
    cells = [[name(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    last = len(widths) - 1
    before = sum(widths[:-1]) + 2 * last
    room = max(20, fit - before) if fit is not None and last not in flush else widths[-1]
    lines = []
    for row in cells:
        padded = []
        for i, (cell, wanted) in enumerate(zip(row[:-1], widths, strict=False)):
            space = " " * (wanted - width(cell))
            padded.append(space + cell if i in flush else cell + space)
        first, *more = _wrapped(row[-1], room)
        padded.append(" " * (widths[-1] - width(first)) + first if last in flush else first)
        lines.append("  ".join(padded).rstrip())
        lines += [" " * before + line for line in more]
    return lines


def _wrapped(cell: str, room: int) -> list[str]:
    if width(cell) <= room or _MARK.search(cell):
        return [cell]
    return textwrap.wrap(cell, room, break_long_words=False, break_on_hyphens=False) or [""]


def elsewhere(count: int) -> str:
    """How many a sharded run left to the others; nothing for none."""
    return f"; {count:,} {'is' if count == 1 else 'are'} for other shards" if count else ""
