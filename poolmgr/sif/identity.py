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
from poolmgr.sif.tree import Entry, FsTree

_DATES = ("org.label-schema.build-date", "org.opencontainers.image.created")
_BATCH_BYTES = 8 << 20


def file_sha256(source: Source) -> str:
    """sha256 of the whole file."""
    return _sha256(source, 0, source.size)


def partition_sha256(source: Source, container: Container) -> str | None:
    """sha256 of the primary partition's bytes, as a signature records it; None without one."""
    primary = container.primary
    return _sha256(source, primary.offset, primary.end) if primary else None


def tree_sha256(image: Image, *, threads: int | None = None) -> str:
    """The identity of what the image holds, overlays merged. ``DamageError`` on a bad block."""
    whole = hashlib.sha256(usedforsecurity=False)
    for _, line in tree_lines(image, threads=threads):
        whole.update(line + b"\n")
    return whole.hexdigest()


def tree_lines(image: Image, *, threads: int | None = None) -> Iterator[tuple[str, bytes]]:
    """(path, all that the identity says of it), in byte order of the paths. Raises as ``tree_sha256``."""
    first: dict[tuple[int, int], str] = {}
    files: list[Entry] = []
    entries = sorted(image.merged.values(), key=lambda e: os.fsencode(e.path))
    for entry in entries:
        if entry.is_file and first.setdefault((entry.layer, entry.number), entry.path) == entry.path:
            files.append(entry)
    hashes = file_hashes(image, files, threads=threads)
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


def file_hashes(image: Image, entries: Iterable[Entry], *, threads: int | None = None) -> dict[str, str]:
    """Path -> sha256 of the content, of regular files. ``DamageError`` on a bad block."""
    batches: dict[int, list[list[Entry]]] = {}
    for entry in sorted(entries, key=_where):
        group = batches.setdefault(entry.layer, [[]])
        if sum(e.size for e in group[-1][-64:]) > _BATCH_BYTES or len(group[-1]) >= 64:
            group.append([])
        group[-1].append(entry)
    result: dict[str, str] = {}
    with ThreadPoolExecutor(threads or processors(), thread_name_prefix="hash") as pool:
        work = [
            (image.parts[layer].tree.with_codec(), batch)
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


def _hash_batch(work: tuple[FsTree, list[Entry]]) -> dict[str, str]:
    tree, entries = work
    result = {}
    for entry in entries:
        digest = hashlib.sha256(usedforsecurity=False)
        for block in tree.blocks(entry):
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


def _sha256(source: Source, start: int, end: int) -> str:
    digest = hashlib.sha256(usedforsecurity=False)
    for at in range(start, end, PIECE):
        digest.update(source.read_at(at, min(PIECE, end - at)))
    return digest.hexdigest()
