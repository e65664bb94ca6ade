"""A blob: one image file of a pool; and the rules that its path keeps.

Paths come from indexes and listings that somebody else wrote, so they are hostile until they
have passed ``check_path``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from poolmgr.errors import UnsafePathError

INDEX_NAME = "task_to_blob.json"
STATE_DIR = ".poolmgr"
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255  # NAME_MAX on every filesystem a pool lives on


@lru_cache(1 << 16)  # index, listing, locks and attestations all name the same paths
def path_trouble(path: str) -> str | None:
    """Why ``path`` may not name a blob, in a few words, or None when it may.

    A blob's path is POSIX, relative and inside the pool. Refused: empty, absolute, ``..``, a
    backslash, an empty or dot-leading component, a control character, over-long names, and the
    index's own name.
    """
    if not path:
        return "is empty"
    if path.startswith("/"):
        return "is absolute"
    if path.isascii() and path.isprintable():
        size = len(path)
    else:
        try:
            size = len(path.encode("utf-8"))
        except UnicodeEncodeError:
            return "is not valid Unicode"
        for char in path:
            if (
                unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}
                or char in "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
            ):
                return f"holds the control character U+{ord(char):04X}"
    if "\\" in path:
        return "holds a backslash"
    if size > MAX_PATH_BYTES:
        return f"is {size} bytes long, more than {MAX_PATH_BYTES}"
    if path.endswith("/"):
        return "ends in '/', so it names a directory"
    for part in path.split("/"):
        if part == "..":
            return "has a '..' component"
        if not part:
            return "has an empty component"
        if part.startswith("."):
            return f"has the component {part!r}, which begins with a dot"
        if len(part) > MAX_NAME_BYTES // 4 and len(part.encode()) > MAX_NAME_BYTES:
            return f"has a component longer than {MAX_NAME_BYTES} bytes"
    if path.casefold() == INDEX_NAME:
        return "is the index's own name"
    return None


def check_path(path: str, where: str) -> str:
    """``path`` itself when it may name a blob; raises ``UnsafePathError`` naming ``where`` if not."""
    trouble = path_trouble(path)
    if trouble is not None:
        raise UnsafePathError(
            f"{where}: the path {path!r} {trouble}",
            hint="blob paths are relative, inside the pool, without '..', backslashes or dot-leading parts",
        )
    return path


def fold(path: str) -> str:
    """The key under which two paths clash on a filesystem that ignores case or Unicode form."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def case_clashes(paths: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Groups of two or more different paths that ``fold`` to one, each sorted, in order."""
    groups: dict[str, set[str]] = {}
    for path in paths:
        groups.setdefault(fold(path), set()).add(path)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1))


def shown(path: str) -> str:
    """``path`` fit for a terminal: what is not printable stands as an escape (``\\n``, ``\\xff``)."""
    if path.isprintable():
        return path
    return "".join(c if c.isprintable() else _escape(c) for c in path)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte of a name that is not UTF-8 (PEP 383)
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a pool, as its listing shows it."""

    path: str
    size: int
    """Bytes."""
    sha256: str | None = None
    """64 hex digits where the pool records one (the Hub does for every LFS file)."""
    trouble: str | None = None
    """A finding code (model/finding.py) when the entry is not a readable regular file."""
    xet_hash: str | None = None
    """The Hub's Xet address of the same bytes, where it gives one."""


@dataclass(frozen=True)
class Listing:
    """What a pool holds at one moment: every file with a safe path, and what was refused."""

    source: str
    """The pool's address, fit to be printed."""
    commit: str | None
    """The commit that every read of this run uses; None for stores without commits."""
    blobs: Mapping[str, Blob]
    refused: tuple[tuple[str, str], ...] = ()
    """(path, why) of the entries whose path may not be used."""
    directories: frozenset[str] = frozenset()
    entries: Mapping[str, int] = field(default_factory=dict)
    """Directory -> number of its direct entries (files and folders), '' for the root."""

    def under_other_case(self, path: str) -> str | None:
        """A path of this listing that differs from ``path`` only by case or Unicode form."""
        key = fold(path)
        return next((p for p in self.blobs if p != path and fold(p) == key), None)

    def troubled_above(self, path: str) -> Blob | None:
        """The entry for a folder above ``path`` that could not be looked into, if there is one."""
        parent = path.rpartition("/")[0]
        while parent:
            entry = self.blobs.get(parent)
            if entry is not None and entry.trouble is not None:
                return entry
            parent = parent.rpartition("/")[0]
        return None
