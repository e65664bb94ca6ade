"""One pool, opened: its store, its rules, its index, and what is on record of its blobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from poolmgr.errors import FileMissingError, IndexInvalidError, UsageError
from poolmgr.model.blob import Blob, Listing
from poolmgr.model.index import MAX_INDEX_BYTES, Index
from poolmgr.model.lock import Lock
from poolmgr.model.manifest import Manifest
from poolmgr.ops.attest import Attested, load
from poolmgr.ops.state import State
from poolmgr.plan.resolve import Names
from poolmgr.settings import Settings
from poolmgr.store.base import OnRetry, Store
from poolmgr.store.local import LocalStore
from poolmgr.store.locate import find_manifest, locate


@dataclass
class PoolView:
    """What every verb works on. Index, listing and attestations are read on first use, then kept."""

    address: str
    """Printable."""
    store: Store
    manifest: Manifest
    root: Path | None = None
    """The folder, for pools that are one."""
    locks: Mapping[str, Lock] = field(default_factory=dict)
    """Variant -> lock; not empty exactly for a mirror."""
    attest_folder: Path | None = None
    """Where attestations are read and written; None for pools that have no such place."""

    @property
    def is_mirror(self) -> bool:
        return bool(self.locks)

    @cached_property
    def state(self) -> State | None:
        return State(self.root) if self.root is not None else None

    @cached_property
    def index(self) -> Index:
        """A mirror's index is derived from its locks; any other pool's is read from its file."""
        if self.locks:
            return Index.build(
                {v: dict(lock.tasks) for v, lock in self.locks.items()}, f"{self.address}/.poolmgr/lock"
            )
        name = self.manifest.index
        where = f"{self.address}/{name}"
        try:
            data = self.store.read(name, limit=MAX_INDEX_BYTES)
        except FileMissingError:
            hint = "a pool keeps its index at its root; see docs/pool-format.md"
            if self.state is not None and self.state.identity() is not None:
                hint = "no fetch into this folder has finished: run 'poolmgr fetch' again"
            raise IndexInvalidError(f"{self.address} has no {name}", hint=hint) from None
        return Index.parse(data, where)

    @cached_property
    def listing(self) -> Listing:
        return self.store.list()

    @cached_property
    def names(self) -> Names:
        """The look-up tables from image references to blobs."""
        files = self.index.blobs() | self.listing.blobs.keys()
        return Names(files, self.manifest, assigned=self.index.blobs(), place=self.address)

    @cached_property
    def recorded_blobs(self) -> Mapping[str, Blob]:
        """Blob path -> what is on record of it, by the locks, else ``blobs.parquet``, else the listing.

        The Hub's listing is itself the record, with a sha256 for every image.
        """
        if self.locks:
            return {path: blob for lock in self.locks.values() for path, blob in lock.blobs.items()}
        from poolmgr.store.blobs_table import TABLE_NAME, read_blobs_table

        if self.root is not None:
            return read_blobs_table(self.store)
        listed = self.listing.blobs
        if TABLE_NAME in listed and all(blob.sha256 is None for blob in listed.values()):
            return {**listed, **read_blobs_table(self.store)}
        return listed

    def recorded(self, path: str) -> Blob | None:
        """Size and sha256 that somebody wrote down for ``path`` before now; None if nobody did."""
        return self.recorded_blobs.get(path)

    @cached_property
    def identity(self) -> str | None:
        """What attestations of this pool name: the identity file's word, else the folder's own path."""
        if self.root is None or self.state is None:
            return None
        return self.state.identity() or f"folder:{self.root.resolve()}"

    @cached_property
    def attested(self) -> Attested:
        if self.attest_folder is None:
            return Attested()
        return load(self.attest_folder, self.identity)

    def total_tasks(self, variant: str) -> int:
        """Tasks of the variant in the pool that a mirror came from; its own count elsewhere."""
        lock = self.locks.get(variant)
        return lock.total_tasks if lock else len(self.index.variant(variant))

    def file(self, path: str) -> Path:
        """The file of a blob, for pools that are folders."""
        assert self.root is not None
        return self.root / path


def open_pool(
    address: str | None,
    settings: Settings,
    *,
    manifest: str | None = None,
    attest: Path | None = None,
    on_retry: OnRetry | None = None,
) -> PoolView:
    """The pool at ``address`` (else ``POOLMGR_POOL``); nothing is read that the address does not need.

    The rules are those of ``manifest`` where it is given, else of the manifest that the address
    names, else of the one that a mirror came with.
    """
    address = address or settings.pool
    if not address:
        raise UsageError("no pool was named", hint="give -p POOL, or set POOLMGR_POOL")
    found = locate(address, settings, on_retry=on_retry)
    rules = found.manifest
    locks: Mapping[str, Lock] = {}
    if found.root is not None:
        locks = State(found.root).locks()
        if locks and rules is None:
            newest = max(locks.values(), key=lambda lock: lock.time)
            if newest.manifest:
                rules = Manifest.parse(newest.manifest, f"the manifest in the lock of {newest.variant!r}")
    if manifest is not None:
        rules = find_manifest(manifest, settings)
    folder = attest or (State(found.root).attest if found.root is not None else None)
    return PoolView(
        address=found.store.address,
        store=found.store,
        manifest=rules or Manifest(),
        root=found.root,
        locks=locks,
        attest_folder=folder,
    )


def open_folder(root: Path) -> PoolView:
    """A folder as it stands, without asking the environment; the light way in for the library."""
    locks = State(root).locks()
    newest = max(locks.values(), key=lambda lock: lock.time, default=None)
    rules = (
        Manifest.parse(newest.manifest, "the lock's manifest") if newest and newest.manifest else Manifest()
    )
    store = LocalStore(root)
    return PoolView(store.address, store, rules, root, locks, State(root).attest)
