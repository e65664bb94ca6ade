"""What a destination holds of the blobs that a fetch wants; looks, and reads no file's bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from poolmgr.model.blob import Blob
from poolmgr.model.finding import Level
from poolmgr.ops.attest import Attested, load
from poolmgr.ops.partials import scan
from poolmgr.ops.quarantine import Quarantine
from poolmgr.ops.state import State
from poolmgr.plan.delta import Held
from poolmgr.plan.item import Local


@dataclass(frozen=True)
class Holding:
    blobs: Mapping[str, Local]
    """Path of each blob that was asked for -> what is there of it."""
    proven: Mapping[str, Held]
    """sha256 -> a file of the destination whose bytes are proven to have it; empty where all is there."""


def look(folder: State, blobs: Iterable[Blob], *, rehash: bool = False) -> Holding:
    """What is there of ``blobs``. With ``rehash`` no attestation counts as proof of a blob's own file."""
    identity = folder.identity()
    attested = load(folder.attest, identity) if identity is not None else Attested()
    begun = scan(folder.partial)
    bad = Quarantine(folder.quarantine).hashes()
    root = os.fspath(folder.root)
    result = {}
    absent = []
    for blob in blobs:
        try:
            st = os.lstat(f"{root}/{blob.path}")
        except OSError:
            size, proven = None, False
        else:
            size = st.st_size if stat.S_ISREG(st.st_mode) else -1
            standing = attested.standing(blob.path, st)
            proven = standing is not None and standing.proves(Level.MOUNT, blob.sha256) and not rehash
        if size != blob.size:
            absent.append(blob)
        partial = 0
        if begun and blob.sha256 is not None:
            partial = max((p.size for p in begun.get(blob.sha256, ()) if p.size <= blob.size), default=0)
        result[blob.path] = Local(size, proven, partial, quarantined=blob.sha256 in bad)
    by_sha256 = _proven_elsewhere(folder, attested) if absent else {}
    for blob in absent:
        other = by_sha256.get(blob.sha256 or "")
        if other is not None and other.path != blob.path:
            result[blob.path] = replace(result[blob.path], elsewhere=other.path)
    return Holding(result, by_sha256)


def _proven_elsewhere(folder: State, attested: Attested) -> dict[str, Held]:
    """sha256 -> a file of the destination whose bytes are proven to have it."""
    result: dict[str, Held] = {}
    for path, rows in attested.rows.items():
        sha256 = next((r.sha256 for r in reversed(rows) if r.sha256), None)
        if sha256 is None or sha256 in result:
            continue
        try:
            st = os.lstat(folder.root / path)
        except OSError:
            continue
        standing = attested.standing(path, st)
        if stat.S_ISREG(st.st_mode) and standing is not None and standing.proves(Level.MOUNT, sha256):
            result[sha256] = Held(path, st.st_size)
    return result
