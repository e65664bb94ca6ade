"""Which blobs are made of a base that is here, or will be, and of which bytes: pure decisions.

A blob whose base the destination holds takes the shared ranges from it and only the rest from the
pool. Bases that this run itself fetches come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from poolmgr.model.ranges import Relative, SharedRanges
from poolmgr.plan.item import Base, Item, Piece, State

REQUEST = 256 << 10
"""Bytes that one more request is worth: a shared range below that is fetched with its neighbours."""
MAX_WAVES = 8
"""Longest chain of blobs that are each made of the one before, within one run."""


@dataclass(frozen=True, slots=True)
class Held:
    """A file of the destination whose bytes are proven."""

    path: str
    size: int


def pieces(shared: SharedRanges, size: int) -> tuple[Piece, ...]:
    """The blob's ``size`` bytes as pieces that alternate; shared ranges that no request is worth are none."""
    result: list[Piece] = []
    reached = 0
    for one in shared.ranges:
        if one.length < REQUEST:
            continue
        if one.target > reached:
            result.append(Piece(reached, one.target, None))
        result.append(Piece(one.target, one.end, one.base))
        reached = one.end
    if reached < size:
        result.append(Piece(reached, size, None))
    return tuple(result)


def on_bases(
    items: Sequence[Item], relatives: Mapping[str, Relative], held: Mapping[str, Held]
) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """``items`` with the base of each that can be made of one; and which hints could not be used, in words.

    ``relatives``: blob path -> what the pool's table says. ``held``: sha256 -> file of the destination.
    """
    ours = {i.blob.path: relatives[i.blob.path] for i in items if i.lacks and i.blob.path in relatives}
    if not ours:
        return tuple(items), ()
    coming = _coming(items)
    waves = _waves(ours, coming, held)
    result: list[Item] = []
    notes: list[str] = []
    for item in items:
        relative = ours.get(item.blob.path)
        wave = waves.get(item.blob.path)
        if relative is None or wave is None or item.blob.sha256 is None:
            result.append(item)
            continue
        sha256 = relative.base_sha256
        if wave == 0:
            where = held[sha256]
        else:
            blob = coming[sha256].blob
            where = Held(blob.path, blob.size)
        try:
            shared = SharedRanges.parse(relative.shared, item.blob.size, where.size)
        except ValueError as e:
            notes.append(f"{item.blob.path}: its shared_ranges cannot be: {e}; it is fetched whole")
            result.append(item)
            continue
        base = Base(where.path, sha256, where.size, pieces(shared, item.blob.size), wave)
        result.append(replace(item, base=base) if base.shared(item.have) else item)
    return tuple(result), tuple(notes)


def _coming(items: Iterable[Item]) -> dict[str, Item]:
    """sha256 -> the item that this run makes sure of."""
    never = (State.LACKING, State.QUARANTINED, State.ELSEWHERE)
    return {i.blob.sha256: i for i in items if i.blob.sha256 is not None and i.state not in never}


def _waves(
    ours: Mapping[str, Relative], coming: Mapping[str, Item], held: Mapping[str, Held]
) -> dict[str, int | None]:
    """Blob path -> wave; None for a blob that is fetched whole, having no base at hand.

    Of blobs that name each other in a circle, which no true table does, one is fetched whole.
    """
    waves: dict[str, int | None] = {}

    def decide(path: str) -> int | None:
        sha256 = ours[path].base_sha256
        if sha256 in held:
            return 0
        if sha256 not in coming:
            return None
        before = coming[sha256].blob.path
        if before in ours and before not in waves:
            return None
        wave = 1 + (waves.get(before) or 0)
        return wave if wave <= MAX_WAVES else None

    for path in ours:
        chain: dict[str, None] = {}
        here = path
        while here in ours and here not in waves and here not in chain:
            chain[here] = None
            sha256 = ours[here].base_sha256
            if sha256 in held or sha256 not in coming:
                break
            here = coming[sha256].blob.path
        for below in reversed(chain):
            waves[below] = decide(below)
    return waves
