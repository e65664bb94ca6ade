"""What a fetch leaves behind when all is done: the lock of each variant, and the mirror's index."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from poolmgr.errors import AlreadyExistsError
from poolmgr.model.blob import INDEX_NAME, Blob
from poolmgr.model.index import Index
from poolmgr.model.lock import Lock
from poolmgr.ops.attest import load
from poolmgr.ops.state import State as Folder
from poolmgr.ops.transfer import Outcome
from poolmgr.ops.view import PoolView
from poolmgr.plan.item import State
from poolmgr.plan.transfer import FetchPlan
from poolmgr.store.files import create_durable, write_durable


def write_locks(
    folder: Folder, view: PoolView, plan: FetchPlan, outcomes: Sequence[Outcome], *, allow_missing: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The locks, last of all; returns the variants that got one, and notes on what was lost from older ones.

    Only variants whose every blob is proven get a lock, or with ``allow_missing`` also those that
    have some.
    """
    hashes = {o.item.blob.path: o.sha256 for o in outcomes if o.good}
    proven = {i.blob.path: i.blob for i in plan.of(State.PROVEN)}
    proven |= {o.item.blob.path: o.item.blob for o in outcomes if o.good}
    for outcome in outcomes:
        if outcome.damaged is not None:
            proven.pop(outcome.damaged, None)
    before = folder.locks()
    written: dict[str, Lock] = {}
    notes = []
    for variant, tasks in plan.variants.items():
        whole = all(path in proven for path in tasks.values())
        if not tasks or not (whole or allow_missing):
            continue
        paths = sorted(set(tasks.values()) & proven.keys())
        blobs = {
            p: Blob(p, proven[p].size, proven[p].sha256 or hashes.get(p) or _attested_hash(folder, p))
            for p in paths
        }
        lock = Lock(
            variant=variant,
            source=view.address,
            commit=view.store.commit,
            manifest=view.manifest.text,
            tasks=tasks,
            total_tasks=plan.totals[variant],
            blobs=blobs,
            time=time.time(),
            complete=whole,
        )
        written[variant] = lock = folder.write_lock(lock, _joined)
        old = before.get(variant)
        if old is not None and lock.subset and (lost := old.tasks.keys() - lock.tasks.keys()):
            notes.append(
                f"{variant}: {len(lost):,} tasks fetched before from {old.source} "
                f"at {old.commit} are no longer in the lock"
            )
    if written:
        write_index(folder, {**before, **written})
    return tuple(written), tuple(notes)


def keep_foreign_index(folder: Folder) -> None:
    """Before the mirror's own index takes its place, somebody else's index is kept under another name."""
    theirs = folder.root / INDEX_NAME
    if theirs.exists() and not folder.locks():
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        kept = folder.folder / "adopted" / f"{stamp}-{INDEX_NAME}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        with suppress(AlreadyExistsError):
            create_durable(kept, theirs.read_bytes())


def _joined(old: Lock, new: Lock) -> Lock:
    """Two subsets of one variant at one commit both hold; any other lock takes the older one's place."""
    if not new.subset or (old.source, old.commit) != (new.source, new.commit):
        return new
    tasks = {**old.tasks, **new.tasks}
    blobs = {**old.blobs, **new.blobs}
    return replace(new, tasks=tasks, blobs=blobs, complete=all(p in blobs for p in tasks.values()))


def _attested_hash(folder: Folder, path: str) -> str | None:
    """For pools that list no sha256: the one found when the file was proven before."""
    standing = load(folder.attest, folder.identity()).standing(path, os.lstat(folder.root / path))
    return standing.sha256 if standing else None


def write_index(folder: Folder, locks: dict[str, Lock]) -> None:
    """The index of the mirror for other tools, derived from all locks that stand when it is written."""
    while True:
        if folder.locked() != locks.keys():  # another fetch wrote one meanwhile
            locks = folder.locks()
        index = Index.build({v: dict(lock.tasks) for v, lock in sorted(locks.items())}, str(folder.root))
        write_durable(folder.root / INDEX_NAME, index.to_bytes())
        if folder.locked() == locks.keys():
            return
