"""What a fetch has to do: decided before the first byte, from the index, the listing and the folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from poolmgr.model.blob import Blob, Listing
from poolmgr.model.finding import Finding
from poolmgr.model.index import Assignments, tasks_by_blob
from poolmgr.model.ranges import Relative
from poolmgr.plan.delta import Held, on_bases
from poolmgr.plan.item import Item, Local, State


@dataclass(frozen=True)
class FetchPlan:
    items: tuple[Item, ...]
    """Every needed blob once, in path order."""
    variants: Mapping[str, Assignments]
    """The tasks asked for, by variant."""
    totals: Mapping[str, int]
    """Tasks of each variant in the pool's index."""
    findings: tuple[Finding, ...]
    """About the variants themselves, such as another task count than the manifest's."""
    notes: tuple[str, ...] = ()
    """What the pool says of its blobs' bases and cannot be used."""

    def of(self, *states: State) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.state in states)

    @property
    def tasks(self) -> int:
        return sum(len(tasks) for tasks in self.variants.values())

    @property
    def size(self) -> int:
        """Bytes of all needed blobs that the pool holds."""
        return sum(i.blob.size for i in self.items if i.state is not State.LACKING)

    @property
    def transfer(self) -> int:
        return sum(item.transfer for item in self.items)

    @property
    def saved(self) -> int:
        """Bytes that come from bases which are here, or come first."""
        return sum(item.saved for item in self.items)

    @property
    def room(self) -> int:
        return sum(item.room for item in self.items)

    def whole(self) -> FetchPlan:
        """The same with no blob made of its base."""
        return replace(self, items=tuple(replace(i, base=None) if i.base else i for i in self.items))


def plan_fetch(
    wanted: Mapping[str, Assignments],
    totals: Mapping[str, int],
    listing: Listing,
    local: Mapping[str, Local],
    expected: Mapping[str, int | None],
    relatives: Mapping[str, Relative] | None = None,
    held: Mapping[str, Held] | None = None,
) -> FetchPlan:
    """The plan for the tasks in ``wanted`` (variant -> assignments).

    ``totals`` and ``expected`` are the variants' task counts in the index and in the manifest;
    ``local`` holds what the destination has, by blob path. ``relatives`` is what the pool says of its
    blobs' bases, by blob path; ``held`` the destination's proven files, by sha256.
    """
    needed: dict[str, list[str]] = {}
    for variant, tasks in wanted.items():
        for path, names in tasks_by_blob(tasks).items():
            needed.setdefault(path, []).extend(f"{variant}/{task}" for task in names)
    items = [_item(path, tuple(needed[path]), listing, local.get(path, Local())) for path in sorted(needed)]
    made, notes = on_bases(tuple(_share(items)), relatives or {}, held or {})
    return FetchPlan(made, wanted, totals, tuple(_count_findings(totals, expected)), notes)


def lacking(path: str, listing: Listing) -> Finding | None:
    """Why the pool cannot serve ``path``, or None when it can."""
    blob = listing.blobs.get(path)
    if blob is None:
        if path in listing.directories:
            return Finding("is-directory", "the index names a directory of the pool, not a file")
        above = listing.troubled_above(path)
        if above is not None and above.trouble is not None:
            return Finding(above.trouble, f"it lies below {above.path!r}, which cannot be looked into")
        other = listing.under_other_case(path)
        if other is not None:
            return Finding("other-case", f"the pool holds it only as {other!r}")
        return Finding("missing", "the pool does not hold it")
    if blob.trouble is not None:
        return Finding(blob.trouble, f"the pool's own entry cannot be read as a file ({blob.trouble})")
    if blob.size == 0:
        return Finding("zero-byte", "the pool holds it with 0 bytes")
    return None


def _item(path: str, tasks: tuple[str, ...], listing: Listing, here: Local) -> Item:
    trouble = lacking(path, listing)
    if trouble is not None:
        return Item(listing.blobs.get(path) or Blob(path, 0), State.LACKING, tasks, finding=trouble)
    blob = listing.blobs[path]
    if here.size == blob.size:
        return Item(blob, State.PROVEN if here.proven else State.UNPROVEN, tasks, have=blob.size)
    if here.quarantined:
        return Item(blob, State.QUARANTINED, tasks)
    if here.elsewhere is not None:
        return Item(blob, State.ELSEWHERE, tasks, have=blob.size, source=here.elsewhere)
    have = here.partial if here.partial <= blob.size else 0
    if here.size is not None:
        return Item(blob, State.WRONG, tasks, have=have)
    return Item(blob, State.PARTIAL if have else State.MISSING, tasks, have=have)


def _share(items: Iterable[Item]) -> Iterable[Item]:
    """Of several missing names for one sha256, the first is transferred and the others copy it."""
    coming: dict[str, str] = {}
    for item in items:
        sha256 = item.blob.sha256
        if sha256 is None or not item.lacks:
            yield item
        elif sha256 in coming:
            yield Item(item.blob, State.ELSEWHERE, item.tasks, have=item.blob.size, source=coming[sha256])
        else:
            coming[sha256] = item.blob.path
            yield item


def _count_findings(totals: Mapping[str, int], expected: Mapping[str, int | None]) -> Iterable[Finding]:
    for variant, total in totals.items():
        want = expected.get(variant)
        if want is not None and want != total:
            yield Finding(
                "task-count",
                f"the manifest expects {want:,} tasks, the index has {total:,}",
                where=f"variant {variant}",
            )
