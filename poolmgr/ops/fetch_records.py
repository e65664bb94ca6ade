"""What a pool has on record of the blobs that a fetch wants, beyond what its listing shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from poolmgr.errors import BadFileError, BadTransferError, IndexInvalidError
from poolmgr.model.blob import Blob, Listing
from poolmgr.model.ranges import Relative
from poolmgr.ops.view import PoolView
from poolmgr.store.blobs_table import TABLE_NAME, read_blobs_table, read_relatives


def listing_with_hashes(view: PoolView, needed: Collection[str]) -> Listing:
    """The pool's listing; ``needed`` blobs of which it shows no sha256 have the one on record.

    A folder and an object store list none: there ``blobs.parquet`` (in a mirror, the locks) says
    what the bytes must be. ``IndexInvalidError`` for a table that cannot be trusted.
    """
    listing = view.listing
    bare = [p for p in needed if p in listing.blobs and listing.blobs[p].sha256 is None]
    if not bare:
        return listing
    recorded = _recorded(view)
    known = {
        path: replace(listing.blobs[path], sha256=recorded[path].sha256) for path in bare if path in recorded
    }
    return replace(listing, blobs={**listing.blobs, **known}) if known else listing


def relatives_of(view: PoolView, paths: Collection[str]) -> tuple[Mapping[str, Relative], tuple[str, ...]]:
    """What the pool records of the bases of ``paths``; and in words why not, if it cannot be read."""
    if not paths or TABLE_NAME not in view.listing.blobs:
        return {}, ()
    try:
        return read_relatives(view.store, paths), ()
    except (IndexInvalidError, BadFileError, BadTransferError) as e:
        return {}, (f"{e.message}; no blob is made of its base",)


def _recorded(view: PoolView) -> Mapping[str, Blob]:
    if view.root is not None:
        return view.recorded_blobs
    return read_blobs_table(view.store) if TABLE_NAME in view.listing.blobs else {}
