"""Derived images whose base is not what it was: valid still, and no longer made of what the pool holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from poolmgr.model.finding import CODES, Finding
from poolmgr.ops.view import PoolView
from poolmgr.plan.derive import base_of
from poolmgr.sif.derived import provenance_of
from poolmgr.sif.header import read_container
from poolmgr.sif.source import FileSource

CODE = "stale-derivation"


def stale(view: PoolView, paths: Iterable[str]) -> tuple[Mapping[str, Finding], int]:
    """(derived blob path -> its finding, how many derived images could not be judged).

    A derived image records the sha256 of its base; it is compared with what is on record, or was
    proven, of the blob that has the base's name. Folders only: provenance is inside the file.
    """
    if view.root is None:
        return {}, 0
    named: dict[str, list[str]] = {}
    for path in view.listing.blobs:
        named.setdefault(path.rpartition("/")[2].removesuffix(".sif"), []).append(path)
    found: dict[str, Finding] = {}
    unknown = 0
    for path in paths:
        stem = base_of(path)
        if stem is None:
            continue
        made_of = _base_sha256(view, path)
        if made_of is None:
            continue
        now = {base: _sha256(view, base) for base in named.get(stem, ())}
        known = {sha256 for sha256 in now.values() if sha256 is not None}
        if made_of in known:
            continue
        if not known or None in now.values():
            unknown += 1
            continue
        message = f"made of sha256 {made_of[:12]}…; {', '.join(sorted(now))} has other bytes now"
        found[path] = Finding(CODE, message, CODES[CODE].severity)
    return found, unknown


def _base_sha256(view: PoolView, path: str) -> str | None:
    try:
        with FileSource(view.file(path)) as source:
            told = provenance_of(source, read_container(source)) or {}
    except OSError:
        return None  # that it cannot be read is another finding
    sha256 = told.get("base_sha256")
    return sha256 if isinstance(sha256, str) else None


def _sha256(view: PoolView, path: str) -> str | None:
    """The blob's sha256 as far as anybody knows it without reading it."""
    try:
        stat = os.stat(view.file(path))
    except OSError:
        return None
    standing = view.attested.standing(path, stat)
    if standing is not None and standing.sha256 is not None:
        return standing.sha256
    recorded = view.recorded(path)
    return recorded.sha256 if recorded is not None and recorded.size == stat.st_size else None
