"""Ranges of bytes that a blob shares with another, its base: a hint of cost, never of truth.

A pool records them in ``blobs.parquet`` (column ``shared_ranges``), so that whoever holds the base
fetches only the rest. Whoever wrote them is a stranger: they are judged before they are used, and
what is made by them is proven by its sha256 like any other blob.

Text: ``TARGET+LENGTH`` for a range at one place in both files, ``TARGET+LENGTH@BASE`` for one that
lies at ``BASE`` in the base; decimal, separated by commas, in the order of the target:
``4096+104857600,104869888+65536@104861696``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

MAX_RANGES = 2048
"""A rebuild that removes a file adds one or two; a longer list would save nothing that it costs."""
MAX_TEXT = MAX_RANGES * 48
"""Characters: three numbers of at most 15 digits and three signs a range."""

_RANGE = re.compile(r"(0|[1-9][0-9]{0,14})\+([1-9][0-9]{0,14})(?:@(0|[1-9][0-9]{0,14}))?(?:,(?!\Z)|\Z)")


class Range(NamedTuple):
    """``length`` bytes at ``target`` of the blob are those at ``base`` of its base."""

    target: int
    base: int
    length: int

    @property
    def end(self) -> int:
        return self.target + self.length


@dataclass(frozen=True, slots=True)
class Relative:
    """What a pool's table says of a blob that was made of another; nothing of it is proven."""

    base_sha256: str
    shared: str
    """The text of its shared ranges; ``SharedRanges.parse`` judges it once both sizes are known."""


@dataclass(frozen=True, slots=True)
class SharedRanges:
    """Ranges that can be: in order, apart from each other in the target, inside both files, not too many.

    Two may read the same bytes of the base, which equal blocks do.
    """

    ranges: tuple[Range, ...]

    @classmethod
    def of(cls, ranges: Iterable[Range], size: int, base_size: int) -> Self:
        """For a blob of ``size`` bytes and a base of ``base_size``; ``ValueError`` says what cannot be."""
        kept: list[Range] = []
        reached = 0
        for one in ranges:
            if len(kept) == MAX_RANGES:
                raise ValueError(f"more than {MAX_RANGES:,} ranges")
            if one.length <= 0 or one.base < 0:
                raise ValueError(f"the range {_text(one)} is none")
            if one.target < reached:
                raise ValueError(f"the range {_text(one)} begins before byte {reached:,}, where one ends")
            if one.end > size:
                raise ValueError(f"the range {_text(one)} leaves the blob's {size:,} bytes")
            if one.base + one.length > base_size:
                raise ValueError(f"the range {_text(one)} leaves the base's {base_size:,} bytes")
            kept.append(one)
            reached = one.end
        return cls(tuple(kept))

    @classmethod
    def parse(cls, text: str, size: int, base_size: int) -> Self:
        """The ranges that ``text`` names, judged as ``of`` does."""
        if len(text) > MAX_TEXT:
            raise ValueError(f"{len(text):,} characters, more than {MAX_TEXT:,}")
        ranges: list[Range] = []
        at = 0
        while at < len(text):
            match = _RANGE.match(text, at)
            if match is None:
                raise ValueError(f"{text[at : at + 40]!r} is no range")
            target, length = int(match[1]), int(match[2])
            ranges.append(Range(target, target if match[3] is None else int(match[3]), length))
            at = match.end()
        return cls.of(ranges, size, base_size)

    def text(self) -> str:
        """What ``parse`` reads."""
        return ",".join(map(_text, self.ranges))

    @property
    def size(self) -> int:
        """Bytes that are shared."""
        return sum(one.length for one in self.ranges)


def _text(one: Range) -> str:
    where = "" if one.base == one.target else f"@{one.base}"
    return f"{one.target}+{one.length}{where}"
