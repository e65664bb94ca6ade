"""What a pool holds, as a push needs to know it: the index, hashes and trees of its blobs, its tables."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from poolmgr.errors import FileMissingError, PoolNotFoundError
from poolmgr.model.blob import Blob, Listing
from poolmgr.model.index import MAX_INDEX_BYTES, Index
from poolmgr.model.stamp import Stamp
from poolmgr.ops.blob_hashes import trees_of
from poolmgr.ops.progress import Progress
from poolmgr.ops.view import PoolView
from poolmgr.plan.card import CARD_NAME
from poolmgr.plan.placement import entries
from poolmgr.plan.push import Held
from poolmgr.store.base import Store
from poolmgr.store.blobs_table import MAX_TABLE_BYTES, TABLE_NAME, read_blobs_table
from poolmgr.store.remote import RemoteStore

MAX_CARD_BYTES = 8 << 20


@dataclass(frozen=True)
class Pool:
    """A pool at one moment: what it holds, and the bytes of the files that a push would replace."""

    held: Held
    commit: str | None
    documents: dict[str, bytes | None]
    """Name of the index, the table and the card -> its bytes; None where there is none."""
    hashed: Mapping[str, Stamp] = field(default_factory=dict)
    """Blob of a folder that was hashed now -> what it was like then."""


def read_pool(view: PoolView, sizes: Collection[int], progress: Progress) -> Pool:
    """The pool as ``view`` shows it; a pool without an index is one that holds no variant yet.

    Blobs of no recorded sha256 are hashed where their size is one of ``sizes``, so that what an
    interrupted push left, or another tool put there, is known for what it is.
    """
    index_name = view.manifest.index
    documents = {
        index_name: _read(view.store, index_name, MAX_INDEX_BYTES),
        TABLE_NAME: _read(view.store, TABLE_NAME, MAX_TABLE_BYTES),
        CARD_NAME: _read(view.store, CARD_NAME, MAX_CARD_BYTES),
    }
    data = documents[index_name]
    variants = Index.parse(data, f"{view.address}/{index_name}").variants if data is not None else {}
    listing = _listing(view, progress)
    rows = read_blobs_table(view.store) if documents[TABLE_NAME] is not None else {}
    blobs = {}
    hashed: dict[str, Stamp] = {}
    trees = trees_of(view) if rows else {}
    for path, blob in listing.blobs.items():
        if path in documents:
            continue
        row = rows.get(path)
        if row is not None and row.size != blob.size:
            row = None  # the record is of another file
        known = blob.sha256 or (row.sha256 if row is not None else None)
        if row is None or (row.sha256 is not None and row.sha256 != known):
            trees.pop(path, None)
        if known is None and blob.trouble is None and blob.size in sizes:
            if view.root is not None:
                hashed[path] = Stamp.of(os.stat(view.file(path)))
            known = _hash(view, blob, progress)
        blobs[path] = replace(blob, sha256=known)
    held = Held(variants, blobs, {p: t for p, t in trees.items() if p in blobs}, dict(entries(listing)))
    return Pool(held, listing.commit, documents, hashed)


def _listing(view: PoolView, progress: Progress) -> Listing:
    """What the pool holds; nothing at an fsspec URL is an empty pool: no empty folder can be made there."""
    try:
        return view.listing
    except PoolNotFoundError:
        if not isinstance(view.store, RemoteStore):
            raise
        progress.note(f"{view.address}: there is nothing yet; a new pool begins here")
        return Listing(view.address, None, {})


def _read(store: Store, name: str, limit: int) -> bytes | None:
    try:
        return store.read(name, limit=limit)
    except FileMissingError:
        return None


def _hash(view: PoolView, blob: Blob, progress: Progress) -> str:
    """The blob's sha256: a valid attestation's word, else of its bytes as the pool has them."""
    if view.root is not None:
        standing = view.attested.standing(blob.path, os.stat(view.file(blob.path)))
        if standing is not None and standing.sha256 is not None:
            return standing.sha256
    progress.note(f"hashing {blob.path}, of which no sha256 is on record")
    digest = hashlib.sha256()
    with view.store.stream(blob.path) as body:
        for chunk in body:
            digest.update(chunk)
    return digest.hexdigest()
