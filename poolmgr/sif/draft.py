"""A tree that is being changed: the base image, and what the steps so far do to it."""

from __future__ import annotations

import fnmatch
import os

from poolmgr.errors import DeriveFailedError
from poolmgr.sif.changes import Changes, Path, matches, shown
from poolmgr.sif.derived import Base
from poolmgr.sif.graph import canonical
from poolmgr.sif.squashfs import DamageError
from poolmgr.sif.write_node import Inode, Kind, Node, find, raw_name, split


class Draft:
    """Steps ask it what is there now and tell it what they change; nothing is written yet."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.image = base.image
        self.changes = Changes()

    def remove(self, pattern: str) -> int:
        """Takes away what ``pattern`` matches, new or old; how many names that were."""
        try:
            old = [p for p in matches(self.base.root, pattern) if not self._gone(p)]
        except ValueError as e:
            raise DeriveFailedError(f"remove {pattern!r}: {e}") from None
        parts = [raw_name(p) for p in pattern.strip("/").split("/") if p]
        new = {p for p in self.changes.add if _fits(p, parts) or any(p[: len(o)] == o for o in old)}
        for path in new:
            del self.changes.add[path]
        self.changes.remove.update(old)
        return len({*old, *(p[: len(parts)] for p in new)})

    def put(self, path: str, node: Node) -> None:
        """Puts ``node`` at ``path``, through the links of the image; replaces a file, never a folder."""
        try:
            place = canonical(self.base.root, split(path))
            old = None if self._gone(place) else find(self.base.root, place)
            if old is not None and old.kind is Kind.DIR and node.kind is not Kind.DIR:
                raise ValueError("a directory stands there")
            for n in range(1, len(place)):
                above = self._at(place[:n])
                if above is not None and above is not Kind.DIR:
                    raise ValueError(f"{shown(place[:n])} is not a directory")
        except ValueError as e:
            raise DeriveFailedError(f"{path}: {e}") from None
        self.changes.add[place] = node

    def names(self, folder: str) -> set[str]:
        """What the directory holds now; nothing where there is none."""
        place = canonical(self.base.root, (*split(folder), b"."))
        inode = None if self._gone(place) else find(self.base.root, place)
        found = set(inode.children) if inode is not None else set()
        found = {name for name in found if not self._gone((*place, name))}
        found |= {p[len(place)] for p in self.changes.add if len(p) > len(place) and p[: len(place)] == place}
        return {os.fsdecode(name) for name in found}

    def read(self, path: str, limit: int) -> bytes | None:
        """A file's content now, of at most ``limit`` bytes; None where there is none."""
        place = canonical(self.base.root, split(path))
        node = self.changes.add.get(place)
        if node is not None:
            return node.data
        inode = None if self._gone(place) else find(self.base.root, place)
        if inode is None or inode.kind is not Kind.FILE:
            return None
        try:
            return self.image.read("/".join(map(os.fsdecode, place)), limit=limit)
        except DamageError as e:
            raise DeriveFailedError(f"{path}: cannot be read: {e}") from None

    def discard(self, path: str) -> None:
        """Takes away one file if it is there."""
        place = canonical(self.base.root, split(path))
        self.changes.add.pop(place, None)
        if find(self.base.root, place) is not None and not self._gone(place):
            self.changes.remove.add(place)

    def _gone(self, path: Path) -> bool:
        return any(path[:n] in self.changes.remove for n in range(1, len(path) + 1))

    def _at(self, path: Path) -> Kind | None:
        node: Node | Inode | None = self.changes.add.get(path)
        if node is None and not self._gone(path):
            node = find(self.base.root, path)
        return node.kind if node is not None else None


def _fits(path: Path, parts: list[bytes]) -> bool:
    """Whether ``path`` or a folder above it matches the pattern."""
    return len(path) >= len(parts) and all(
        fnmatch.fnmatchcase(name, part) for name, part in zip(path, parts, strict=False)
    )
