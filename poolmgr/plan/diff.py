"""What changed between two pools: tasks by name, and blobs by name and bytes. Pure.

Bytes are compared by sha256 alone. Where one of the two sides has none on record and the sizes agree,
nobody can say whether they differ: such blobs are ``unknown``, never equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from poolmgr.model.blob import Blob
from poolmgr.model.index import Assignments


@dataclass(frozen=True)
class Side:
    """One of the two, as far as it is compared."""

    variants: Mapping[str, Assignments]
    blobs: Mapping[str, Blob]
    """Path -> size and sha256, of what is there."""


class Bytes(StrEnum):
    """Whether two blobs hold the same bytes."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    """No sha256 on record on one side, or no blob there."""


@dataclass(frozen=True, slots=True)
class Remapped:
    before: str
    after: str
    bytes: Bytes


@dataclass(frozen=True)
class VariantDiff:
    """One variant; each mapping is task -> path (or paths), in order of the tasks."""

    added: Mapping[str, str]
    removed: Mapping[str, str]
    remapped: Mapping[str, Remapped]
    unchanged: int
    only: str | None = None
    """``before`` or ``after`` when the other side has no such variant."""

    @property
    def same(self) -> bool:
        return not (self.added or self.removed or self.remapped or self.only)


@dataclass(frozen=True, slots=True)
class Renamed:
    """Equal bytes under other names."""

    sha256: str
    before: tuple[str, ...]
    """Every path that has these bytes before, and after."""
    after: tuple[str, ...]


@dataclass(frozen=True)
class Diff:
    variants: Mapping[str, VariantDiff]
    added: Mapping[str, Blob]
    removed: Mapping[str, Blob]
    replaced: Mapping[str, tuple[Blob, Blob]]
    """Path -> before and after, with other bytes."""
    renamed: Mapping[str, Renamed]
    """sha256 -> the names; for bytes on both sides of which a name came or went."""
    unknown: Mapping[str, tuple[Blob, Blob]]
    """Path -> before and after, of equal size and without a sha256 on one side."""
    equal: int
    """Blobs under one name with the same bytes."""

    @property
    def same(self) -> bool:
        """Nothing differs, as far as could be compared; see ``unknown``."""
        blobs = self.added or self.removed or self.replaced or self.renamed
        return not blobs and all(v.same for v in self.variants.values())

    @property
    def proven(self) -> bool:
        """Whether all could be compared, and something was."""
        return not self.unknown and bool(self.variants)


def diff(before: Side, after: Side) -> Diff:
    """All that must change in ``before`` to make it ``after``."""
    names = sorted(before.variants.keys() | after.variants.keys())
    old, new = before.blobs, after.blobs
    gone = {p: old[p] for p in sorted(old.keys() - new.keys())}
    came = {p: new[p] for p in sorted(new.keys() - old.keys())}
    replaced: dict[str, tuple[Blob, Blob]] = {}
    unknown: dict[str, tuple[Blob, Blob]] = {}
    equal = 0
    for path in sorted(old.keys() & new.keys()):
        match compare(old[path], new[path]):
            case Bytes.OTHER:
                replaced[path] = (old[path], new[path])
            case Bytes.UNKNOWN:
                unknown[path] = (old[path], new[path])
            case Bytes.SAME:
                equal += 1
    renamed = _renamed(before, after, (*gone.values(), *came.values()))
    return Diff(
        variants={name: _variant(name, before, after) for name in names},
        added={p: b for p, b in came.items() if b.sha256 not in renamed},
        removed={p: b for p, b in gone.items() if b.sha256 not in renamed},
        replaced=replaced,
        renamed=renamed,
        unknown=unknown,
        equal=equal,
    )


def compare(before: Blob | None, after: Blob | None) -> Bytes:
    """Whether two blobs hold the same bytes; sizes that differ suffice to say no."""
    if before is None or after is None:
        return Bytes.UNKNOWN
    if before.size != after.size:
        return Bytes.OTHER
    if before.sha256 is None or after.sha256 is None:
        return Bytes.UNKNOWN
    return Bytes.SAME if before.sha256 == after.sha256 else Bytes.OTHER


def _renamed(before: Side, after: Side, moved: Iterable[Blob]) -> dict[str, Renamed]:
    old, new = _by_hash(before.blobs), _by_hash(after.blobs)
    hashes = sorted({b.sha256 for b in moved if b.sha256 is not None} & old.keys() & new.keys())
    return {h: Renamed(h, tuple(old[h]), tuple(new[h])) for h in hashes}


def _by_hash(blobs: Mapping[str, Blob]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for path, blob in sorted(blobs.items()):
        if blob.sha256 is not None:
            result.setdefault(blob.sha256, []).append(path)
    return result


def _variant(name: str, before: Side, after: Side) -> VariantDiff:
    old, new = before.variants.get(name, {}), after.variants.get(name, {})
    both = sorted(old.keys() & new.keys())
    remapped = {
        task: Remapped(old[task], new[task], compare(before.blobs.get(old[task]), after.blobs.get(new[task])))
        for task in both
        if old[task] != new[task]
    }
    only = None
    if (name in before.variants) != (name in after.variants):
        only = "before" if name in before.variants else "after"
    return VariantDiff(
        added={t: new[t] for t in sorted(new.keys() - old.keys())},
        removed={t: old[t] for t in sorted(old.keys() - new.keys())},
        remapped=remapped,
        unchanged=len(both) - len(remapped),
        only=only,
    )


def apply(change: Diff, before: Side) -> Side:
    """``before`` with the change made: the other side (which is what makes a diff complete)."""
    variants: dict[str, Assignments] = {}
    for name, variant in change.variants.items():
        if variant.only == "before":
            continue
        tasks = {t: p for t, p in before.variants.get(name, {}).items() if t not in variant.removed}
        tasks |= {t: r.after for t, r in variant.remapped.items()} | dict(variant.added)
        variants[name] = tasks
    sizes = {b.sha256: b.size for b in before.blobs.values() if b.sha256 is not None}
    lost = {p for r in change.renamed.values() for p in r.before}
    blobs = {p: b for p, b in before.blobs.items() if p not in lost and p not in change.removed}
    for r in change.renamed.values():
        blobs |= {p: Blob(p, sizes[r.sha256], r.sha256) for p in r.after}
    blobs |= dict(change.added)
    blobs |= {p: b for p, (_, b) in (*change.replaced.items(), *change.unknown.items())}
    return Side(variants, blobs)
