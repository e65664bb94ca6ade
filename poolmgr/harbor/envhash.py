"""The hash of an environment's folder, exactly as Harbor computes it, and three others beside it.

``harbor`` is ``harbor.environments.definition.environment_content_hash`` (0.17 to 0.26; the files
of 4 GiB and more as 0.25 made them), ``harbor-legacy`` is ``environment_dir_hash`` (0.9 to 0.17 and
the forks), both read from the released wheels. Full sha256 hex digests; Harbor cuts them to 32 and
to 12 digits. docs/env-hash.md has the rules in words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from poolmgr.harbor.tree import Kind, OutwardLinkError, Tree

IGNORED = frozenset({".DS_Store", ".git", "__pycache__"})
LARGE = 1 << 32
"""From this size of any one file on, every content length takes eight bytes instead of four."""

DOCKERFILE = "Dockerfile"
COMPOSE = "docker-compose.yaml"

Chunks = tuple[int, Iterator[bytes]]


class NotHashableError(Exception):
    """Harbor itself fails on this environment; the text says where, and ``code`` is that of its finding."""

    code = "env-not-utf8"


class TooLargeError(NotHashableError):
    """A file is too large for the hash."""

    code = "env-too-large"


def hashed_files(entries: dict[str, Kind]) -> list[str]:
    """The paths that Harbor's hash covers, in its order: by code point of the POSIX path."""
    return sorted(
        path
        for path, kind in entries.items()
        if kind is Kind.FILE and (path.isalnum() or IGNORED.isdisjoint(path.split("/")))
    )


def harbor_hash(
    paths: list[str], chunks: Callable[[str], Chunks], *, docker_image: str | None, folder: str
) -> str:
    """Harbor's hash of the files ``paths`` (from ``hashed_files``).

    With no file at all the image reference is hashed, or the ``folder``'s own name without one.
    Raises ``NotHashableError`` for a name that is not UTF-8, on which Harbor fails as well.
    """
    if not paths:
        return hashlib.sha256((docker_image or folder.rpartition("/")[2]).encode()).hexdigest()
    names = [_utf8(path) for path in paths]
    return _hash(names, paths, chunks, 4) or _hash(names, paths, chunks, 8) or ""


def _hash(names: list[bytes], paths: list[str], chunks: Callable[[str], Chunks], width: int) -> str | None:
    """The digest with lengths of ``width`` bytes; None when a file turns out to need the wide form."""
    digest = hashlib.sha256()
    if width == 8:
        digest.update(b"\x01")
    for name, path in zip(names, paths, strict=True):
        size, content = chunks(path)
        if size >= LARGE and width == 4:
            return None
        digest.update(b"%b%b%b" % (len(name).to_bytes(4, "big"), name, size.to_bytes(width, "big")))
        for chunk in content:
            digest.update(chunk)
    return digest.hexdigest()


def legacy_hash(tree: Tree, base: str, entries: dict[str, Kind]) -> str:
    """The hash of Harbor 0.9 to 0.17: files by path components, links to files read through.

    ``OutwardLinkError`` for a link that leaves the task (Harbor would hash the host's file), and
    ``NotHashableError`` for a name that is not UTF-8 or a file of 4 GiB.
    """
    digest = hashlib.sha256()
    for path in sorted(entries, key=lambda p: p.split("/")):
        kind = entries[path]
        source = f"{base}/{path}"
        if kind is Kind.LINK:
            source = _file_behind(tree, source)
            if not source:
                continue
        elif kind is not Kind.FILE:
            continue
        name = _utf8(path)
        size, content = tree.chunks(source)
        if size >= LARGE:
            raise TooLargeError(f"{path}: 4 GiB or more, on which Harbor up to 0.22 fails")
        digest.update(b"%b%b%b" % (len(name).to_bytes(4, "big"), name, size.to_bytes(4, "big")))
        for chunk in content:
            digest.update(chunk)
    return digest.hexdigest()


def _file_behind(tree: Tree, link: str) -> str:
    """The file a link leads to; '' where it leads to a folder, to nothing, or round in a loop."""
    try:
        target = tree.resolve(link)
    except OutwardLinkError as e:
        if "loop" in str(e):
            return ""
        raise
    return target if tree.kind(target) is Kind.FILE else ""


def text_hash(chunks: Iterable[bytes]) -> str:
    """sha256 of the Dockerfile's bytes alone."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _utf8(path: str) -> bytes:
    try:
        return path.encode("utf-8")
    except UnicodeEncodeError:
        raise NotHashableError(f"{path!r} is not UTF-8, and Harbor's own hash fails on it") from None
