"""What a pool holds, in numbers: variants, tasks, distinct and shared blobs, bytes, what a fetch saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poolmgr.model.blob import Blob, Listing
from poolmgr.model.index import Index
from poolmgr.plan.coverage import orphans
from poolmgr.plan.placement import Directory, directories


@dataclass(frozen=True, slots=True)
class VariantSummary:
    variant: str
    tasks: int
    total_tasks: int
    """Tasks in the pool that a mirror came from; more than ``tasks`` for a subset."""
    blobs: int
    """Distinct blobs that the tasks need."""
    shared: int
    """Those that another variant needs too."""
    missing: tuple[str, ...]
    """Needed blobs that the pool does not hold as files, sorted."""
    size: int
    """Bytes of the needed blobs; one that is missing counts with its size on record, else 0."""
    unsized: int
    """Missing blobs without a size on record: ``size`` lacks them."""

    @property
    def own(self) -> int:
        """Blobs that no other variant needs."""
        return self.blobs - self.shared

    @property
    def subset(self) -> bool:
        return self.tasks < self.total_tasks


@dataclass(frozen=True, slots=True)
class PoolSummary:
    variants: tuple[VariantSummary, ...]
    """In the order of the index."""
    assignments: int
    """Tasks, counted once in each variant that has them."""
    named: int
    """Distinct blobs that the variants name."""
    shared: int
    """Those that two or more variants name."""
    missing: tuple[str, ...]
    blobs: int
    """Blobs that are there: the named ones that are present, and the orphans."""
    size: int
    """Their bytes."""
    orphans: int
    orphan_size: int
    directories: tuple[Directory, ...]
    """Those that hold a blob, sorted."""

    def saved_by(self, variant: VariantSummary) -> int:
        """Bytes that fetching ``variant`` alone leaves where they are."""
        return max(0, self.size - variant.size)


def summarize(
    index: Index,
    listing: Listing,
    *,
    recorded: Callable[[str], Blob | None],
    totals: Mapping[str, int],
    max_entries: int,
) -> PoolSummary:
    """The numbers of a pool; ``totals``: variant -> tasks in the pool that it came from."""
    users = Counter(path for tasks in index.variants.values() for path in set(tasks.values()))
    named = frozenset(users)
    there = {path: blob for path in named if (blob := listing.blobs.get(path)) and blob.trouble is None}
    spare = [listing.blobs[path] for path in orphans(listing, named)]
    folders = {path.rpartition("/")[0] for path in (*there, *(blob.path for blob in spare))}
    variants = []
    for variant, tasks in index.variants.items():
        needed = set(tasks.values())
        lacking = sorted(needed - there.keys())
        size, unsized = sum(there[path].size for path in needed & there.keys()), 0
        for path in lacking:
            record = recorded(path)
            if record is None:
                unsized += 1
            else:
                size += record.size
        variants.append(
            VariantSummary(
                variant=variant,
                tasks=len(tasks),
                total_tasks=max(len(tasks), totals.get(variant, 0)),
                blobs=len(needed),
                shared=sum(users[path] > 1 for path in needed),
                missing=tuple(lacking),
                size=size,
                unsized=unsized,
            )
        )
    return PoolSummary(
        variants=tuple(variants),
        assignments=sum(v.tasks for v in variants),
        named=len(named),
        shared=sum(count > 1 for count in users.values()),
        missing=tuple(sorted(named - there.keys())),
        blobs=len(there) + len(spare),
        size=sum(blob.size for blob in there.values()) + sum(blob.size for blob in spare),
        orphans=len(spare),
        orphan_size=sum(blob.size for blob in spare),
        directories=tuple(d for d in directories(listing, max_entries) if d.path in folders),
    )
