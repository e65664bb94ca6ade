"""Counts the distinct images of a variant: by blob, by the bytes' hash, by the tree inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from poolmgr.model.index import Assignments


@dataclass(frozen=True, slots=True)
class Sharing:
    tasks: int
    blobs: int
    """Distinct paths."""
    largest: int
    """Tasks of the blob that most tasks share."""
    single_use: int
    """Blobs that only one task needs."""
    sha256: int
    """Distinct contents among the blobs whose sha256 is recorded."""
    with_sha256: int
    trees: int
    """Distinct trees among the blobs whose tree_sha256 is recorded."""
    with_tree: int


def sharing(assignments: Assignments, sha256: Mapping[str, str], trees: Mapping[str, str]) -> Sharing:
    """``sha256`` and ``trees`` give blob path -> hash, as far as they are on record."""
    used = Counter(assignments.values())
    return Sharing(
        tasks=len(assignments),
        blobs=len(used),
        largest=max(used.values(), default=0),
        single_use=sum(n == 1 for n in used.values()),
        sha256=len({sha256[path] for path in used if path in sha256}),
        with_sha256=sum(path in sha256 for path in used),
        trees=len({trees[path] for path in used if path in trees}),
        with_tree=sum(path in trees for path in used),
    )
