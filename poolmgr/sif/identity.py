"""Three identities of an image: of its file, of its primary partition, and of its tree.

``file_sha256`` is for transport; ``partition_sha256`` survives signing and edits of the header;
``tree_sha256`` is the same for every compressor, block size and rebuild of one recipe: a sha256 over
one JSON line a path, in byte order: path, type, mode, uid, gid, xattrs, then size and sha256, or the
target, or the device, or "=" and the first name of a hard link. Times and build dates do not count
(facts: sif section 8).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from poolmgr.sif.data import PIECE, processors
from poolmgr.sif.header import Container
from poolmgr.sif.image import LABELS_PATH, MAX_JSON, Image
from poolmgr.sif.source import Source
from poolmgr.sif.squashfs import DamageError
from poolmgr.sif.stop import Stop, StoppedError, never
from poolmgr.sif.tree import Entry, FsTree

_DATES = ("org.label-schema.build-date", "org.opencontainers.image.created")
_BATCH_BYTES = 8 << 20
FEW_BYTES = 16 << 30
"""Bytes of content that the files of any image may have …"""
BYTES_PER_BYTE = 256
"""… and how many more for every byte of its filesystems."""


def file_sha256(source: Source, *, stop: Stop = never) -> str:
    """sha256 of the whole file. Raises ``StoppedError`` soon after ``stop`` says so, as all here do."""
    return _sha256(source, 0, source.size, stop)


def partition_sha256(source: Source, container: Container, *, stop: Stop = never) -> str | None:
    """sha256 of the primary partition's bytes, as a signature records it; None without one."""
    primary = container.primary
    return _sha256(source, primary.offset, primary.end, stop) if primary else None


def tree_sha256(image: Image, *, threads: int | None = None, stop: Stop = never) -> str:
    """The identity of what the image holds, overlays merged.

    Raises ``DamageError`` on a bad block, and on files far larger than the image, as ``file_hashes``.
    """
    whole = hashlib.sha256(usedforsecurity=False)
    for _, line in tree_lines(image, threads=threads, stop=stop):
        whole.update(line + b"\n")
    return whole.hexdigest()


def tree_lines(
    image: Image, *, threads: int | None = None, stop: Stop = never
) -> Iterator[tuple[str, bytes]]:
    """(path, all that the identity says of it), in byte order of the paths. Raises as ``tree_sha256``."""
    first: dict[tuple[int, int], str] = {}
    files: list[Entry] = []
    entries = sorted(image.merged.values(), key=lambda e: os.fsencode(e.path))
    for entry in entries:
        if entry.is_file and first.setdefault((entry.layer, entry.number), entry.path) == entry.path:
            files.append(entry)
    hashes = file_hashes(image, files, threads=threads, stop=stop)
    for entry in entries:
        line: list[object] = [
            entry.path, entry.kind.name.lower(), entry.mode, entry.uid, entry.gid,
            sorted((k, v.hex()) for k, v in entry.xattrs.items()),
        ]  # fmt: skip
        if entry.is_file:
            name = first[entry.layer, entry.number]
            if name != entry.path:
                line += ["=", name]
            elif entry.path == LABELS_PATH:
                line += _labels(image, entry) or [entry.size, hashes[entry.path]]
            else:
                line += [entry.size, hashes[entry.path]]
        elif entry.target:
            line.append(entry.target)
        elif entry.rdev != (0, 0):
            line += entry.rdev
        yield entry.path, json.dumps(line, separators=(",", ":")).encode("ascii")


def file_hashes(
    image: Image, entries: Iterable[Entry], *, threads: int | None = None, stop: Stop = never
) -> dict[str, str]:
    """Path -> sha256 of the content, of regular files.

    Raises ``DamageError`` on a bad block, and on more content than ``FEW_BYTES`` and
    ``BYTES_PER_BYTE`` allow: holes and shared blocks give a file of kilobytes terabytes of it.
    """
    batches: dict[int, list[list[Entry]]] = {}
    left = FEW_BYTES + BYTES_PER_BYTE * sum(p.tree.tables.fs.sb.bytes_used for p in image.parts)
    for entry in sorted(entries, key=_where):
        left -= entry.size
        if left < 0:
            raise DamageError("sq-bomb", "its files have far more bytes than an image of this size can need")
        group = batches.setdefault(entry.layer, [[]])
        if sum(e.size for e in group[-1][-64:]) > _BATCH_BYTES or len(group[-1]) >= 64:
            group.append([])
        group[-1].append(entry)
    result: dict[str, str] = {}
    with ThreadPoolExecutor(threads or processors(), thread_name_prefix="hash") as pool:
        work = [
            (image.parts[layer].tree.with_codec(), batch, stop)
            for layer, group in batches.items()
            for batch in group
        ]
        for part in pool.map(_hash_batch, work):
            result.update(part)
    return result


def _where(entry: Entry) -> tuple[int, int, int, int]:
    """Order of the bytes in the file, so that a fragment block is unpacked once or twice, not per file."""
    c = entry.content
    return (entry.layer, c.start, c.fragment, c.offset) if c else (entry.layer, 0, 0, 0)


def _hash_batch(work: tuple[FsTree, list[Entry], Stop]) -> dict[str, str]:
    tree, entries, stop = work
    result = {}
    for entry in entries:
        digest = hashlib.sha256(usedforsecurity=False)
        for block in tree.blocks(entry):
            if stop():
                raise StoppedError
            digest.update(block)
        result[entry.path] = digest.hexdigest()
    return result


def _labels(image: Image, entry: Entry) -> list[object] | None:
    """The labels without the dates of the build; None when the file is no such JSON."""
    if entry.size > MAX_JSON:
        return None
    try:
        labels = json.loads(image.parts[entry.layer].tree.read(entry, MAX_JSON))
    except (ValueError, RecursionError):
        return None
    if not isinstance(labels, dict):
        return None
    return [sorted((k, v) for k, v in labels.items() if k not in _DATES)]


def _sha256(source: Source, start: int, end: int, stop: Stop) -> str:
    digest = hashlib.sha256(usedforsecurity=False)
    for at in range(start, end, PIECE):
        if stop():
            raise StoppedError
        digest.update(source.read_at(at, min(PIECE, end - at)))
    return digest.hexdigest()
