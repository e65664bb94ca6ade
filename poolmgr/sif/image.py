"""An image as its user sees it: all its filesystems laid over each other, labels, content by path."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from poolmgr.errors import BadFileError, MissingToolError
from poolmgr.model.finding import Severity
from poolmgr.sif.codecs import MissingCodecError
from poolmgr.sif.header import (
    GOCRYPTFS,
    METADATA_NAME,
    OVERLAY,
    SQUASHFS,
    Container,
    Descriptor,
    read_container,
)
from poolmgr.sif.sniff import legacy_squashfs, sniff
from poolmgr.sif.source import Source
from poolmgr.sif.squashfs import DamageError, mount
from poolmgr.sif.tables import read_tables
from poolmgr.sif.tree import Entry, FsTree

LABELS_PATH = ".singularity.d/labels.json"
MAX_JSON = 4 << 20
MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class Part:
    """One filesystem of an image."""

    descriptor: Descriptor | None
    """None in images that are no SIF."""
    tree: FsTree

    @property
    def is_overlay(self) -> bool:
        return self.descriptor is not None and self.descriptor.parttype == OVERLAY


class Image:
    """The filesystems of one image, read with all their tables; the primary first, then overlays."""

    def __init__(self, source: Source, container: Container, parts: tuple[Part, ...]) -> None:
        self.source = source
        self.container = container
        self.parts = parts

    @property
    def arch(self) -> str | None:
        return self.container.arch

    @cached_property
    def merged(self) -> Mapping[str, Entry]:
        """Path -> entry, in byte order of the paths: what a process in the container sees."""
        view: dict[str, Entry] = {}
        for part in self.parts:
            upper: dict[str, Entry] = {}
            gone: list[str] = []
            for entry in part.tree.walk():
                if entry.is_whiteout and part.is_overlay:
                    gone.append(entry.path)
                    continue
                upper[entry.path] = entry
                below = view.get(entry.path)
                if below is not None and below.is_dir and (entry.is_opaque or not entry.is_dir):
                    gone.append(entry.path)
            _drop(view, gone)
            view.update(upper)
        # as lists of names are sorted, without making millions of them
        return dict(sorted(view.items(), key=lambda item: item[0].replace("/", "\0")))

    @cached_property
    def hidden(self) -> tuple[Entry, ...]:
        """Files and links that lie in the image and are not seen in it: replaced or whited out."""
        view = self.merged
        return tuple(
            entry
            for part in self.parts
            for entry in part.tree.walk()
            if not entry.is_dir and not entry.is_whiteout and view.get(entry.path) != entry
        )

    def blocks(self, entry: Entry) -> Iterator[bytes]:
        """The bytes of a regular file, in pieces."""
        return self.parts[entry.layer].tree.blocks(entry)

    def read(self, path: str, *, limit: int = 16 << 20) -> bytes:
        """The file that ``path`` leads to, symbolic links followed inside the image.

        ``KeyError`` when there is none; ``DamageError`` when it is bad or larger than ``limit``.
        """
        entry = self.find(path)
        if entry is None or not entry.is_file:
            raise KeyError(path)
        return self.parts[entry.layer].tree.read(entry, limit)

    def find(self, path: str) -> Entry | None:
        """The entry that ``path`` leads to, symbolic links followed inside the image."""
        view = self.merged
        ahead = [p for p in reversed(path.split("/")) if p not in ("", ".")]
        at = ""
        links = 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                at = posixpath.dirname(at)
                continue
            there = f"{at}/{part}" if at else part
            entry = view.get(there)
            if entry is None:
                return None
            if entry.target:
                links += 1
                if links > MAX_LINKS:
                    return None
                ahead += [p for p in reversed(entry.target.split("/")) if p not in ("", ".")]
                if entry.target.startswith("/"):
                    at = ""
                continue
            at = there
        return view.get(at)

    @cached_property
    def labels(self) -> Mapping[str, Any]:
        """The image's labels: from its metadata descriptor, else from ``labels.json``; {} without any."""
        found = self.metadata
        try:
            inside = found["data"]["attributes"]["labels"]
            if isinstance(inside, dict):
                return inside
        except (KeyError, TypeError):
            pass
        try:
            labels = json.loads(self.read(LABELS_PATH, limit=MAX_JSON))
        except (KeyError, ValueError, RecursionError, DamageError):
            return {}
        return labels if isinstance(labels, dict) else {}

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The document in the descriptor ``inspect-metadata.json``; {} where there is none."""
        return read_metadata(self.source, self.container)


def read_metadata(source: Source, container: Container) -> Mapping[str, Any]:
    """The document in the descriptor ``inspect-metadata.json``; {} where there is none that is JSON."""
    for d in container.objects:
        if d.name == METADATA_NAME and d.size <= MAX_JSON:
            try:
                document = json.loads(source.read_at(d.offset, d.size))
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict):
                return document
    return {}


def open_image(source: Source, where: str = "the image") -> Image:
    """Read the tables of every filesystem in ``source``.

    Raises ``BadFileError`` when a part of it is damaged or of a kind that cannot be read, and
    ``MissingToolError`` when a codec is not installed. A bare squashfs is read too.
    """
    container = read_container(source)
    spans: list[tuple[Descriptor | None, int, int]] = []
    if container.header is None and not container.findings:
        legacy = legacy_squashfs(container.head)
        if legacy is None:
            raise BadFileError(f"{where}: {sniff(container.head, source.size)}")
        spans = [(None, legacy[0], source.size - legacy[0])]
    wrong = [f for f in container.findings if f.severity is Severity.ERROR]
    if wrong:
        raise BadFileError(f"{where}: {wrong[0]}", hint="see 'poolmgr verify'", details=map(str, wrong[1:]))
    for d in container.partitions:
        if d.is_primary or d.parttype == OVERLAY:
            if d.fstype not in (SQUASHFS, GOCRYPTFS):
                raise BadFileError(f"{where}: partition {d.id} is no squashfs, so it cannot be read")
            spans.append((d, d.offset, d.size))
    if not spans:
        raise BadFileError(f"{where}: no filesystem in it")
    parts = []
    for layer, (descriptor, offset, size) in enumerate(spans):
        mounted = mount(source, offset, size, container.head)
        for found in mounted.findings:
            if found.severity is Severity.ERROR:
                raise BadFileError(f"{where}: {found}", hint="see 'poolmgr verify'")
        if mounted.unchecked or mounted.filesystem is None:
            raise MissingToolError(f"{where}: {mounted.unchecked}")
        try:
            parts.append(Part(descriptor, FsTree(read_tables(mounted.filesystem), layer)))
        except DamageError as e:
            raise BadFileError(f"{where}: {e.finding}", hint="see 'poolmgr verify'") from None
        except MissingCodecError as e:
            raise MissingToolError(f"{where}: {e}") from None
    return Image(source, container, tuple(parts))


def _drop(view: dict[str, Entry], paths: list[str]) -> None:
    """Take ``paths`` and all below them out of the view, in which folders come before their content."""
    if not paths:
        return
    exact = set(paths)
    doomed: dict[str, None] = {}
    for path in view:
        if path in exact or (path and path.rpartition("/")[0] in doomed):
            doomed[path] = None
    for path in doomed:
        del view[path]
