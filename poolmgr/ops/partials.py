"""Partial files: who is writing which, and how another process goes on with a dead one's.

Two fetches into one folder need no flock. Every run writes only files of its own, whose names
carry the blob's key and the run's token, and a finished file gets its final name by link(2),
which never replaces. A partial whose writer is surely dead (same machine and pid namespace, and
its process is gone) is taken over by renaming it: the name is the claim, so of two takers one
wins. A partial whose writer cannot be seen (another machine) is only ever copied from.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from poolmgr.owner import MARK, Owner

_NAME = re.compile(rf"([0-9a-f]{{64}})\.({MARK})\.part")


@dataclass(frozen=True, slots=True)
class Partial:
    """One partial file as a look at the folder showed it."""

    path: Path
    key: str
    owner: Owner
    size: int
    mtime_ns: int
    links: int


def scan(folder: Path, only: str = "") -> dict[str, list[Partial]]:
    """Key -> every partial file there is, the longest first; files of other names are not ours.

    With ``only``, no other file than those of keys that begin so is looked at.
    """
    found: dict[str, list[Partial]] = defaultdict(list)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(only):
                    continue
                match = _NAME.fullmatch(entry.name)
                if match is None or not entry.is_file(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):
                    st = entry.stat(follow_symlinks=False)
                    key, owner = match[1], Owner.parse(match[2])
                    assert owner is not None
                    partial = Partial(Path(entry.path), key, owner, st.st_size, st.st_mtime_ns, st.st_nlink)
                    found[key].append(partial)
    except FileNotFoundError:
        return {}
    for group in found.values():
        group.sort(key=lambda p: (-p.size, p.path.name))
    return found


class Partials:
    """The partial files of one folder, seen by one run. ``close`` ends the run's claim on its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = Owner.begin()

    def close(self) -> None:
        self.owner.close()

    def mine(self, key: str) -> Path:
        """The path at which this run writes the blob with this key."""
        return self.folder / f"{key}.{self.owner}.part"

    def of(self, key: str) -> list[Partial]:
        return scan(self.folder, key).get(key, [])

    def is_mine(self, partial: Partial) -> bool:
        return partial.owner == self.owner

    def surely_dead(self, partial: Partial) -> bool:
        """Whether the writer's end can be seen from here."""
        return partial.owner.surely_dead(self.owner.domain)

    def take_over(self, key: str, limit: int, others: Iterable[Partial] | None = None) -> int:
        """Begin with the longest partial of others up to ``limit`` bytes; returns the bytes in ``mine``.

        Whatever they are worth is for the caller to prove.
        """
        mine = self.mine(key)
        for partial in self.of(key) if others is None else others:
            if self.is_mine(partial) or not 0 < partial.size <= limit:
                continue
            try:
                # a second link means that it was just published under its final name: never write to it
                if self.surely_dead(partial) and partial.links == 1:
                    partial.path.rename(mine)
                else:
                    _copy(partial.path, mine, limit)
            except FileNotFoundError:
                continue  # its owner finished, or another taker was first
            return mine.stat().st_size
        return 0

    def sweep(self, keys: Iterable[str] | None = None) -> None:
        """Remove the partials of dead runs: those of ``keys``, or all."""
        wanted = None if keys is None else set(keys)
        for key, group in scan(self.folder).items():
            if wanted is None or key in wanted:
                for partial in group:
                    if self.surely_dead(partial) or self.is_mine(partial):
                        partial.path.unlink(missing_ok=True)


def _copy(source: Path, target: Path, limit: int) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        left = limit
        while left > 0 and (chunk := reader.read(min(1 << 20, left))):
            writer.write(chunk)
            left -= len(chunk)
