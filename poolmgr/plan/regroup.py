"""Fewer blobs for a variant: tasks whose images hold equal trees can share one file of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from poolmgr.plan.push import Change, Held, changes_of


@dataclass(frozen=True, slots=True)
class Regrouping:
    changes: tuple[Change, ...]
    blobs: tuple[int, int]
    """Distinct blobs of the variant before and after."""
    size: tuple[int, int]
    """Their bytes, before and after."""
    unknown: tuple[str, ...]
    """Blobs of the variant of which no tree is on record; they stay as they are."""


def regroup(held: Held, variant: str) -> Regrouping:
    """One blob for every tree that the variant needs: the fewest there can be.

    Of the blobs that hold a tree the one with the most of the variant's tasks is kept, then the
    smaller, then the first by name; so a second regrouping changes nothing.
    """
    tasks = held.variants[variant]
    count = Counter(tasks.values())
    groups: dict[str, list[str]] = {}
    for path in sorted(count):
        if path in held.trees and path in held.blobs and held.blobs[path].trouble is None:
            groups.setdefault(held.trees[path], []).append(path)
    kept: dict[str, str] = {}
    for paths in groups.values():
        best = min(paths, key=lambda p: (-count[p], held.blobs[p].size, p))
        kept |= dict.fromkeys(paths, best)
    changes = changes_of(tasks, {task: kept.get(path, path) for task, path in tasks.items()})
    after = {kept.get(path, path) for path in count}
    return Regrouping(
        changes,
        (len(count), len(after)),
        (_size(held, set(count)), _size(held, after)),
        tuple(path for path in sorted(count) if path not in held.trees),
    )


def _size(held: Held, paths: set[str]) -> int:
    return sum(held.blobs[path].size for path in paths if path in held.blobs)
