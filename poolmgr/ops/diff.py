"""``diff``: two pools, mirrors, or commits of one, compared by what each has on record of its blobs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poolmgr.errors import UnknownVariantError
from poolmgr.model.blob import Blob
from poolmgr.model.index import Assignments
from poolmgr.ops.view import PoolView
from poolmgr.plan.coverage import orphans
from poolmgr.plan.diff import Diff, Side, diff


@dataclass(frozen=True)
class Compared:
    before: PoolView
    after: PoolView
    diff: Diff
    notes: tuple[str, ...]
    """What makes the comparison narrower than it looks, such as a mirror of a subset."""
    unproven: tuple[int, int]
    """Blobs without a sha256 on record, on each side."""


def compare_pools(before: PoolView, after: PoolView, variants: Sequence[str] = ()) -> Compared:
    """Compare two opened pools; with ``variants``, only those and the blobs that they need.

    ``UnknownVariantError`` when neither side has one of them.
    """
    for name in variants:
        if name not in before.index.variants and name not in after.index.variants:
            known = sorted(before.index.variants.keys() | after.index.variants.keys())
            raise UnknownVariantError(
                f"neither pool has a variant {name!r}; they have: {', '.join(known)}", details=known
            )
    one, two = _side(before, variants), _side(after, variants)
    notes = [note for view in (before, after) for note in _subsets(view, variants)]
    unproven = tuple(sum(b.sha256 is None for b in side.blobs.values()) for side in (one, two))
    return Compared(before, after, diff(one, two), tuple(notes), (unproven[0], unproven[1]))


def _side(view: PoolView, variants: Sequence[str]) -> Side:
    """A blob that is listed with trouble, or that a mirror's lock names and that is gone, is not there."""
    chosen: Mapping[str, Assignments] = {
        name: tasks for name, tasks in view.index.variants.items() if not variants or name in variants
    }
    named = frozenset(path for tasks in chosen.values() for path in tasks.values())
    paths = set(named)
    if not variants:
        paths |= set(orphans(view.listing, named))
    blobs = {}
    for path in paths:
        listed = view.listing.blobs.get(path)
        if listed is not None and listed.trouble is None:
            blobs[path] = Blob(path, listed.size, listed.sha256 or _sha256(view, listed))
    return Side(chosen, blobs)


def _sha256(view: PoolView, listed: Blob) -> str | None:
    """Of a file that lies here: what an attestation that still holds says, else what is on record.

    A record of another size is of another file, so it says nothing of this one.
    """
    if view.root is None:
        return None
    try:
        standing = view.attested.standing(listed.path, os.stat(view.file(listed.path)))
    except OSError:
        standing = None
    if standing is not None and standing.sha256 is not None:
        return standing.sha256
    recorded = view.recorded(listed.path)
    return recorded.sha256 if recorded is not None and recorded.size == listed.size else None


def _subsets(view: PoolView, variants: Sequence[str]) -> list[str]:
    return [
        f"{view.address} holds {len(lock.tasks):,} of the {lock.total_tasks:,} tasks of {name}"
        for name, lock in view.locks.items()
        if lock.subset and (not variants or name in variants)
    ]
