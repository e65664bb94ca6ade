"""A task that lies in one cell of a Parquet archive: a tar, plain or gzipped, read in memory only.

Hostile until read: a name that leaves the task, a link under which something is stored, a cell
that unpacks to more than the limit are refused, by name. Links, modes and empty folders keep
their meaning, which the tool that usually unpacks these archives drops.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from poolmgr.harbor.tar import Member, TarError, members
from poolmgr.harbor.tree import CHUNK, Kind, NamedTree, UnreadableError

GZIP = b"\x1f\x8b"
MAX_STREAMS = 1 << 15
"""Gzip streams in one cell; bgzip makes one of 64 KiB."""
PIECE = 64 << 10
MAX_PATHS = 64 << 20
"""Characters of all paths in one task, of the folders above them too: a few members can need many folders."""
KINDS = {"0": Kind.FILE, "1": Kind.FILE, "2": Kind.LINK, "5": Kind.FOLDER}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one task may unpack to; larger ones are refused by name."""

    task_bytes: int = 1 << 30
    members: int = 200_000


class ArchiveError(Exception):
    """The cell is no task archive that could be trusted; the text says why."""


def open_archive(data: bytes, limits: Limits) -> ArchiveTree:
    """The tree in ``data``, a tar or a gzipped tar; ``ArchiveError``."""
    if len(data) > limits.task_bytes:
        raise ArchiveError(f"{len(data):,} bytes, more than the {limits.task_bytes:,} that a task may have")
    if data.startswith(GZIP):
        data = _gunzip(data, limits.task_bytes)
    try:
        return ArchiveTree(data, members(data, limit=limits.members), limits)
    except TarError as e:
        raise ArchiveError(f"not a sound tar: {e}") from None


def _gunzip(data: bytes, limit: int) -> bytes:
    """All gzip streams in ``data``, one behind the other, a piece of input at a time.

    What lies behind the end of a stream is copied out of the piece, so the time does not grow with
    the square of their number.
    """
    engine = _engine()
    parts: list[bytes] = []
    total = at = streams = 0
    while at < len(data):
        streams += 1
        if streams > MAX_STREAMS:
            raise ArchiveError(f"more than {MAX_STREAMS:,} gzip streams")
        stream: Any = engine.decompressobj(31)
        while not stream.eof:
            if at == len(data):
                raise ArchiveError("the gzip stream is cut off")
            piece = data[at : at + PIECE]
            try:
                part = stream.decompress(piece, limit + 1 - total)
            except engine.error as e:
                raise ArchiveError(f"not a sound gzip stream: {e}") from None
            at += len(piece)
            total += len(part)
            if total > limit:
                raise ArchiveError(f"unpacks to more than the {limit:,} bytes that a task may have")
            parts.append(part)
        at -= len(stream.unused_data)
        while at < len(data) and not (piece := data[at : at + PIECE].lstrip(b"\0")):
            at += PIECE
        if at < len(data):
            at = min(at + PIECE, len(data)) - len(piece)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _engine() -> Any:
    """isal's zlib where the ``fast`` extra is installed: the same stream format, six times as quick."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


class ArchiveTree(NamedTree):
    """The files of one task archive."""

    def __init__(self, data: bytes, found: list[Member], limits: Limits) -> None:
        self._data = data
        super().__init__()
        self._members: dict[str, Member] = {}
        self._limits = limits
        self._characters = 0
        for member in found:
            self._add(member)

    def _add(self, member: Member) -> None:
        path = _safe(member.name)
        kind = KINDS.get(member.type, Kind.OTHER)
        if not path:
            if kind is Kind.FOLDER:
                return
            raise ArchiveError(
                f"the member {member.name!r} is a {kind.value} that names the task's own folder"
            )
        known = len(self._kinds)
        if member.type == "1":
            first = self._members.get(_safe(member.link))
            if first is None or self._kinds[_safe(member.link)] is not Kind.FILE:
                raise ArchiveError(
                    f"{path!r} is a hard link to {member.link!r}, which does not come before it"
                )
            member = Member(member.name, "0", first.mode, first.size, first.start, "")
        parent = path.rpartition("/")[0]
        self._folder(parent, path)
        before = self._kinds.get(path)
        if before is None:
            self._inside_of[parent].append(path)
        elif before is not kind and Kind.FOLDER in (before, kind):
            raise ArchiveError(f"{path!r} is stored as a {before.value} and as a {kind.value}")
        self._kinds[path] = kind
        self._members[path] = member  # a name stored twice: the later one stands, as when unpacked
        if kind is Kind.FOLDER:
            self._inside_of.setdefault(path, [])
        self._measure(path, len(self._kinds) - known)

    def _measure(self, path: str, new: int) -> None:
        """``ArchiveError`` where ``path``, with which ``new`` paths came, is too much for one task."""
        if len(self._kinds) > self._limits.members + 1:
            raise ArchiveError(f"more than {self._limits.members:,} files and folders")
        self._characters += new * len(path)  # those of the folders above it are shorter
        if self._characters > MAX_PATHS:
            raise ArchiveError(f"paths that have more than {MAX_PATHS:,} characters together")

    def _folder(self, path: str, needed_by: str) -> None:
        for taken in self._put_folder(path):
            raise ArchiveError(
                f"{needed_by!r} is stored under {taken!r}, which is a {self._kinds[taken].value}"
            )

    def chunks(self, path: str) -> tuple[int, Iterator[bytes]]:
        if self._kinds.get(path) is not Kind.FILE:
            raise UnreadableError(f"{path}: no such file in the archive")
        member = self._members[path]
        if member.size <= CHUNK:
            return member.size, iter((self._data[member.start : member.start + member.size],))
        return member.size, self._stream(member)

    def _stream(self, member: Member) -> Iterator[bytes]:
        end = member.start + member.size
        for at in range(member.start, end, CHUNK):
            yield self._data[at : min(at + CHUNK, end)]

    def mode(self, path: str) -> int:
        member = self._members.get(path)
        return member.mode if member else 0o755

    def target(self, path: str) -> str:
        return self._members[path].link


def _safe(name: str) -> str:
    """The name as a path inside the task, '' for the task's own folder; ``ArchiveError``."""
    if name.startswith("/"):
        raise ArchiveError(f"the member {name!r} has an absolute path")
    if "\0" in name:
        raise ArchiveError(f"the member {name!r} has a NUL in its path")
    if "//" not in name and "./" not in name and not name.endswith("."):
        return name
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveError(f"the member {name!r} leaves the task")
    return "/".join(parts)
