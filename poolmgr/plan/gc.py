"""What may be freed of a mirror: decided from its locks and what is known of its files. Pure.

A blob may go when no lock names it and no running fetch counts on it, when a former lock of this mirror
says where it came from, and when the file is still the very one that ``fetch`` put there. Everything
else stays, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from poolmgr.model.blob import fold
from poolmgr.model.finding import Finding
from poolmgr.model.lock import Lock
from poolmgr.plan.coverage import found


@dataclass(frozen=True, slots=True)
class Here:
    """A file of the mirror under a former blob's name, as it is now."""

    size: int
    regular: bool = True
    """A regular file, reached without a symbolic link."""
    sha256: str | None = None
    """What an attestation that still holds says of its bytes."""
    placed: bool = False
    """An attestation that still holds says that ``fetch`` gave the file its name."""


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Where a former lock says that a blob came from."""

    source: str
    commit: str | None


@dataclass(frozen=True, slots=True)
class Candidate:
    path: str
    size: int
    sha256: str
    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    path: str
    size: int
    finding: Finding


@dataclass(frozen=True)
class Freeing:
    candidates: tuple[Candidate, ...]
    """Free to go once the pool is proven to hold them."""
    kept: tuple[Kept, ...]


def plan_gc(
    locks: Iterable[Lock],
    former: Iterable[Lock],
    here: Mapping[str, Here],
    *,
    wanted: Collection[str] = (),
    found_too: bool = False,
) -> Freeing:
    """``here``: path -> file, for every path of a former lock that is there.

    ``wanted``: paths that running fetches count on. ``found_too``: also files that fetch found there
    and proved, and did not put there itself.
    """
    named = {fold(p) for lock in locks for p in (*lock.blobs, *lock.tasks.values())}
    counted_on = {fold(p) for p in wanted}
    before: dict[str, dict[str | None, set[Origin]]] = {}
    for lock in former:
        for blob in lock.blobs.values():
            origin = Origin(lock.source, lock.commit)
            before.setdefault(blob.path, {}).setdefault(blob.sha256, set()).add(origin)
    candidates, kept = [], []
    for path in sorted(before.keys() & here.keys()):
        file = here[path]
        if fold(path) in named:
            continue
        if fold(path) in counted_on:
            kept.append(Kept(path, file.size, found("gc-wanted", "a running fetch counts on it")))
            continue
        origins = before[path].get(file.sha256) if file.sha256 is not None else None
        if not file.regular:
            why = found("gc-not-ours", "a symbolic link, or no regular file")
        elif not origins or file.sha256 is None:
            why = found(
                "gc-changed", "nothing that still holds says that these are the bytes that were fetched"
            )
        elif not file.placed and not found_too:
            why = found("gc-not-ours", "it was there before fetch, which proved it and did not write it")
        else:
            ordered = tuple(sorted(origins, key=lambda o: (o.source, o.commit or "")))
            candidates.append(Candidate(path, file.size, file.sha256, ordered))
            continue
        kept.append(Kept(path, file.size, why))
    return Freeing(tuple(candidates), tuple(kept))
