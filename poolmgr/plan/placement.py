"""Placement: entries and room of a pool's directories, and which directory takes the next blob.

The Hub refuses a push that leaves more than 10,000 entries in one directory, so a family of blobs
goes on in batches: ``images``, ``images_b00``, ``images_b01`` … (docs/pool-format.md). Directories
are found, never assumed: a batch that somebody else opened counts like our own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poolmgr.model.blob import Listing
from poolmgr.model.manifest import HUB_HARD_LIMIT

_BATCH = re.compile(r"_b([0-9]{2,})$")


@dataclass(frozen=True, slots=True)
class Directory:
    path: str
    """'' for the pool's root."""
    entries: int
    """Files and folders that lie directly in it."""
    limit: int
    """Entries up to which poolmgr fills it (the manifest's ``max_entries``)."""

    @property
    def room(self) -> int:
        """Blobs that poolmgr would still put here."""
        return max(0, self.limit - self.entries)

    @property
    def hard_room(self) -> int:
        """Entries left before the Hub refuses one more."""
        return max(0, HUB_HARD_LIMIT - self.entries)

    @property
    def full(self) -> bool:
        return self.hard_room == 0


def directories(listing: Listing, limit: int) -> tuple[Directory, ...]:
    """Every directory that holds a file, sorted by path."""
    counted = entries(listing)
    holding = {path.rpartition("/")[0] for path in listing.blobs}
    return tuple(Directory(path, counted.get(path, 0), limit) for path in sorted(holding))


def entries(listing: Listing) -> Mapping[str, int]:
    """Directory -> direct entries: the listing's own count where it gives one, else from its paths."""
    if listing.entries:
        return listing.entries
    count: Counter[str] = Counter()
    seen: set[str] = set()
    for path in (*listing.blobs, *listing.directories):
        while path and path not in seen:
            seen.add(path)
            path = path.rpartition("/")[0]
            count[path] += 1
    return count


def batch_name(family: str, number: int) -> str:
    """The directory of batch ``number`` of a family: -1 is ``images`` itself, 0 ``images_b00``."""
    return family if number < 0 else f"{family}_b{number:02d}"


def batch_number(family: str, directory: str) -> int | None:
    """The inverse of ``batch_name``; None for a directory of another family."""
    if directory == family:
        return -1
    match = _BATCH.search(directory)
    if match and directory == f"{family}{match[0]}" and batch_name(family, int(match[1])) == directory:
        return int(match[1])
    return None


def open_batch(family: str, used: Mapping[str, int], limit: int) -> str:
    """The directory that takes the family's next blob: its last batch while that has room, else a new one."""
    last = max((n for d in used if (n := batch_number(family, d)) is not None), default=-1)
    name = batch_name(family, last)
    return name if used.get(name, 0) < limit else batch_name(family, last + 1)


def place(
    names: Iterable[str], *, family: str, held: Iterable[str], used: Mapping[str, int], limit: int
) -> dict[str, str]:
    """File name -> path, for every one of ``names``, in their order.

    A name that the family already holds (``held``: the pool's paths) keeps its place, so a later
    plan never moves a placed blob; the others fill the last batch up to ``limit`` entries, then
    the next. ``used``: directory -> entries now (``entries``). Equal input gives an equal plan.
    """
    placed: dict[str, str] = {}
    home = {}
    for path in held:
        directory, _, name = path.rpartition("/")
        if batch_number(family, directory) is not None:
            home[name] = path
    filling = dict(used)
    batch = open_batch(family, filling, limit)
    for name in names:
        if name in placed:
            continue
        if name in home:
            placed[name] = home[name]
            continue
        if filling.get(batch, 0) >= limit:
            batch = open_batch(family, filling, limit)
        filling[batch] = filling.get(batch, 0) + 1
        placed[name] = f"{batch}/{name}"
    return placed
