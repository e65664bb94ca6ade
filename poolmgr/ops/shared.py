"""What a blob shares with its base: found by comparing bytes, whatever the two files are made of.

A derived image holds long runs of its base's bytes: an overlay keeps nearly all at their places, a
rebuild carries compressed blocks over to others. Runs that stay in step with the last one cost a
comparison. Where it breaks off, anchors say where to look: places that are chosen by the content
alone, about one in 16 KiB of compressed data, known by a hash of what follows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import xxhash

from poolmgr.model.ranges import MAX_RANGES, Range, SharedRanges
from poolmgr.sif.source import Source

SHORTEST = 64 << 10
"""Bytes; shorter runs are not recorded, since fetching them costs less than the request they would save."""

_BLOCK = 4 << 20
_NEAR = 256 << 10
"""Bytes read at a time where the next anchor is probably near."""
_ANCHOR = re.compile(rb"\xa7[\x3c-\x3f]")
"""4 of 65,536 pairs of bytes, none of them in a run of equal bytes."""
_KEY = 64
"""Bytes after an anchor that tell it from others."""
_MAX_ANCHORS = 4 << 20
_STEP = 4096
_STEPS = 64
"""So many places further on are tried in step, before the anchors are asked."""


def shared_ranges(target: Source, base: Source) -> SharedRanges:
    """The runs of ``target`` that ``base`` holds too: true as the two are read, and perhaps not all."""
    finder = _Finder(target, base)
    found = [run for run in finder.runs() if run.length >= SHORTEST]
    if len(found) > MAX_RANGES:
        found = sorted(sorted(found, key=lambda run: run.length)[-MAX_RANGES:])
    return SharedRanges.of(found, target.size, base.size)


class _Finder:
    def __init__(self, target: Source, base: Source) -> None:
        self.target = target
        self.base = base
        self._index: dict[int, int] | None = None

    def runs(self) -> Iterator[Range]:
        """Equal runs in order of the target, each as long as it can be."""
        at = 0
        shift = 0
        while at < self.target.size:
            start = self._in_step(at, shift)
            if start is None:
                found = self._by_anchor(at)
                if found is None:
                    return
                start, shift = found
            before = self._back(start, shift, at)
            end = self._forward(start, shift)
            if end > before:
                yield Range(before, before + shift, end - before)
            at = max(end, start + 1)

    def _in_step(self, at: int, shift: int) -> int | None:
        """The next place where target and base, so shifted, agree on ``_STEP`` bytes."""
        for place in range(at, at + _STEPS * _STEP, _STEP):
            if place + shift < 0 or place + shift + _STEP > self.base.size:
                return None
            here = self.target.read_at(place, _STEP)
            if len(here) < _STEP:
                return None
            if here == self.base.read_at(place + shift, _STEP):
                return place
        return None

    def _by_anchor(self, at: int) -> tuple[int, int] | None:
        """(place, shift) of the next anchor of the target that the base has too."""
        if self.target.size - at < _STEPS * _STEP:
            return None  # too little to be worth a look through all of the base
        if self._index is None:
            self._index = {}
            for key, place in _anchors(self.base, 0, _BLOCK):
                if len(self._index) == _MAX_ANCHORS:
                    break
                self._index.setdefault(key, place)
        for key, place in _anchors(self.target, at, _NEAR):
            there = self._index.get(key)
            if there is not None and self.target.read_at(place, _KEY) == self.base.read_at(there, _KEY):
                return place, there - place
        return None

    def _forward(self, at: int, shift: int) -> int:
        """Where the run through ``at`` ends."""
        while True:
            one = self.target.read_at(at, _BLOCK)
            two = self.base.read_at(at + shift, _BLOCK)
            same = _equal_head(one, two)
            at += same
            if same < len(one) or not one:
                return at

    def _back(self, at: int, shift: int, least: int) -> int:
        """Where the run through ``at`` begins, not before ``least``."""
        least = max(least, -shift)
        while at > least:
            length = min(_STEP * 16, at - least)
            one = self.target.read_at(at - length, length)
            two = self.base.read_at(at - length + shift, length)
            same = _equal_head(one[::-1], two[::-1])
            at -= same
            if same < length:
                break
        return at


def _equal_head(one: bytes, two: bytes) -> int:
    """How many bytes ``one`` and ``two`` have in common from their start."""
    low, high = 0, min(len(one), len(two))
    if one[:high] == two[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _anchors(source: Source, start: int, block: int) -> Iterator[tuple[int, int]]:
    """(hash, place) of the anchors from ``start`` on, in order, read ``block`` bytes at a time."""
    while start < source.size:
        data = source.read_at(start, block + _KEY)
        for match in _ANCHOR.finditer(data, 0, min(len(data), block + 1)):
            place = match.start()
            key = data[place : place + _KEY]
            if len(key) == _KEY:
                yield xxhash.xxh3_64_intdigest(key), start + place
        if len(data) <= block:
            return
        start += block
