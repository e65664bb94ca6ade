"""The documents of a pool with a push in them: the table of blobs, the card, and last the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poolmgr.model.blob import Blob
from poolmgr.model.index import Index
from poolmgr.ops.push_pool import Pool
from poolmgr.ops.push_rows import Row, with_rows
from poolmgr.ops.view import PoolView
from poolmgr.plan.card import CARD_NAME, with_table
from poolmgr.plan.push import Change, apply
from poolmgr.store.blobs_table import TABLE_NAME


def documents_of(
    view: PoolView,
    pool: Pool,
    variant: str,
    changes: Sequence[Change],
    rows: Sequence[Row] = (),
) -> dict[str, bytes]:
    """Name -> new bytes, of those documents that change, the index last; {} where all is so already.

    The new index passes the same checks as one that is read: ``IndexInvalidError`` names what does not.
    """
    documents: dict[str, bytes] = {}
    table = with_rows(pool.documents[TABLE_NAME], rows, f"{view.address}/{TABLE_NAME}")
    if table is not None:
        documents[TABLE_NAME] = table
    variants = apply(pool.held.variants, variant, changes)
    card = pool.documents[CARD_NAME]
    if card is not None:
        blobs = dict(pool.held.blobs) | {r["path"]: Blob(r["path"], r["size"]) for r in rows}
        text = with_table(card.decode("utf-8", "surrogateescape"), variants, blobs)
        if text is not None and (data := text.encode("utf-8", "surrogateescape")) != card:
            documents[CARD_NAME] = data
    if changes:
        where = f"the new index of {view.address}"
        data = Index.build(variants, where).to_bytes()
        Index.parse(data, where)
        documents[view.manifest.index] = data
    return documents


def needs_of(pool: Pool, changes: Sequence[Change], added: Mapping[str, int]) -> dict[str, int]:
    """Path -> size of every blob that a changed task maps to; ``added``: those of this push."""
    result = {}
    for change in changes:
        if change.new is not None:
            there = pool.held.blobs.get(change.new)
            result[change.new] = added.get(change.new, there.size if there else -1)
    return result
