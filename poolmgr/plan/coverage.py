"""Coverage: what a variant's tasks need against what the pool holds and the dataset asks for.

Pure and from sets: every difference is kept by name, nothing is derived from a count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from poolmgr.model.blob import Blob, Listing, fold
from poolmgr.model.finding import CODES, Finding
from poolmgr.model.index import Assignments, tasks_by_blob
from poolmgr.model.manifest import Gates
from poolmgr.model.task import Row
from poolmgr.plan.generic import Generic, GenericImages, split_reference

Recorded = Callable[[str], Blob | None]
"""A path -> the size and sha256 on record for it (a lock, blobs.parquet), where there is one."""
ROW_CODES = frozenset(
    ("row-without-assignment", "assignment-without-row", "row-without-image", "duplicate-row", "bad-row")
)
"""What makes the dataset gate fail; ``generic-image`` has a gate of its own."""


def found(code: str, message: str, where: str = "") -> Finding:
    """A finding with the severity that its code is documented with."""
    return Finding(code, message, CODES[code].severity, where)


@dataclass(frozen=True)
class Coverage:
    """One variant, compared. Findings hang on the blob, task or row that they name."""

    variant: str
    tasks: frozenset[str]
    """The tasks that were asked about: the index's, or the subset that the caller gave."""
    total: int
    """Tasks of the variant in the whole pool; more than ``tasks`` for a subset."""
    needed: Mapping[str, tuple[str, ...]]
    """Every distinct blob path the tasks need -> its tasks, sorted by path."""
    present: frozenset[str]
    """Needed blobs that are there as readable regular files with bytes in them."""
    sized: frozenset[str]
    """Present blobs whose size was compared with a recorded one."""
    digested: frozenset[str]
    """Present blobs that have a sha256 on record."""
    images: Mapping[str, tuple[Finding, ...]]
    """Needed blob -> what is wrong with its entry; only those with a finding."""
    dataset: frozenset[str] | None = None
    """Task ids that the dataset's rows carry; None when no dataset was compared."""
    rows: int = 0
    """Rows that were compared, readable or not."""
    rowwise: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    """Task id (or the row's place, for a row without one) -> findings of the dataset comparison."""

    @property
    def missing(self) -> frozenset[str]:
        """Needed blobs that are not there at all, under no case."""
        return frozenset(self.named("missing"))

    def named(self, code: str) -> tuple[str, ...]:
        """Every blob, task or row with a finding of that code, sorted."""
        tables = (self.images, self.rowwise)
        return tuple(sorted(n for t in tables for n, fs in t.items() if any(f.code == code for f in fs)))

    def by_code(self) -> dict[str, tuple[str, ...]]:
        """Finding code -> the names it hangs on; codes in the vocabulary's order."""
        codes = {f.code for t in (self.images, self.rowwise) for fs in t.values() for f in fs}
        return {code: self.named(code) for code in CODES if code in codes}


def cover(
    variant: str,
    assignments: Assignments,
    listing: Listing,
    *,
    recorded: Recorded,
    gates: Gates | None = None,
    rows: Sequence[Row] | None = None,
    subset: frozenset[str] | None = None,
    total: int | None = None,
) -> Coverage:
    """Compare one variant.

    ``rows`` None: no dataset is compared. ``subset``: only these tasks, and only their rows.
    ``total``: tasks of the variant in the pool that a mirror came from.
    """
    gates = gates or Gates()
    chosen = assignments if subset is None else {t: p for t, p in assignments.items() if t in subset}
    needed = {path: tuple(tasks) for path, tasks in sorted(tasks_by_blob(chosen).items())}
    entries = _Entries(needed, listing, recorded, gates.min_bytes)
    tasks = frozenset(chosen)
    rowwise: dict[str, tuple[Finding, ...]] = {}
    dataset: frozenset[str] | None = None
    compared = 0
    if rows is not None:
        wanted = [r for r in rows if subset is None or r.task is None or r.task in subset]
        compared = len(wanted)
        dataset = frozenset(r.task for r in wanted if r.task is not None)
        rowwise = _rows(wanted, dataset, chosen, gates)
    return Coverage(
        variant=variant,
        tasks=tasks,
        total=len(assignments) if total is None else total,
        needed=needed,
        present=frozenset(entries.present),
        sized=frozenset(entries.sized),
        digested=frozenset(entries.digested),
        images=entries.findings,
        dataset=dataset,
        rows=compared,
        rowwise=rowwise,
    )


class _Entries:
    """The needed blobs as entries of the listing."""

    def __init__(self, needed: Iterable[str], listing: Listing, recorded: Recorded, floor: int) -> None:
        self.findings: dict[str, tuple[Finding, ...]] = {}
        self.present: set[str] = set()
        self.sized: set[str] = set()
        self.digested: set[str] = set()
        refused = dict(listing.refused)
        folded: dict[str, str] | None = None
        for path in needed:
            blob = listing.blobs.get(path)
            if blob is None:
                if folded is None:
                    folded = {fold(p): p for p in listing.blobs}
                findings = [absence(path, listing, folded, refused)]
            elif blob.trouble is not None:
                findings = [found(blob.trouble, _lower(CODES[blob.trouble].meaning))]
            else:
                findings = self._file(blob, recorded(path), floor)
            if findings:
                self.findings[path] = tuple(findings)

    def _file(self, blob: Blob, record: Blob | None, floor: int) -> list[Finding]:
        if blob.size == 0:
            expected = f", {record.size:,} on record" if record is not None and record.size else ""
            return [found("zero-byte", f"0 bytes{expected}")]
        self.present.add(blob.path)
        findings = []
        if record is not None:
            self.sized.add(blob.path)
            if record.sha256 is not None:
                self.digested.add(blob.path)
            if record.size != blob.size:
                findings.append(found("wrong-size", f"{blob.size:,} bytes, {record.size:,} on record"))
            elif blob.sha256 is not None and record.sha256 is not None and blob.sha256 != record.sha256:
                findings.append(
                    found("wrong-hash", f"listed with sha256 {blob.sha256}, {record.sha256} is on record")
                )
        if blob.size < floor:
            findings.append(found("below-floor", f"{blob.size:,} bytes, under the floor of {floor:,}"))
        return findings


def absence(path: str, listing: Listing, folded: Mapping[str, str], refused: Mapping[str, str]) -> Finding:
    """Why the listing has no blob at ``path``. ``folded``: ``fold`` of each path -> the path."""
    above = path.rpartition("/")[0]
    while above:
        folder = listing.blobs.get(above)
        if folder is not None:
            code = folder.trouble or "not-a-file"
            return found(code, f"{above}, where it should lie: {_lower(CODES[code].meaning)}")
        above = above.rpartition("/")[0]
    if path in listing.directories:
        return found("is-directory", "the pool holds a directory of this name")
    if path in refused:
        return found("unsafe-path", f"the pool's listing refused it: it {refused[path]}")
    other = folded.get(fold(path))
    if other is not None:
        return found("other-case", f"the pool holds it as {other!r}")
    return found("missing", "not in the pool")


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:].rstrip(".")


def _rows(
    rows: Sequence[Row], dataset: frozenset[str], chosen: Assignments, gates: Gates
) -> dict[str, tuple[Finding, ...]]:
    result: dict[str, list[Finding]] = {}

    def add(name: str, finding: Finding) -> None:
        result.setdefault(name, []).append(finding)

    places: dict[str, list[str]] = {}
    generic = GenericImages(gates.generic_images)
    sharers: dict[str, set[str]] = {}
    for row in rows:
        if row.task is not None:
            places.setdefault(row.task, []).append(row.where)
        if row.trouble is not None or row.task is None:
            add(row.task or row.where, found("bad-row", row.trouble or "the row has no task id", row.where))
        elif not row.image or not row.image.strip():
            add(row.task, found("row-without-image", "no image is named for the task", row.where))
        elif generic.kind(row.image) is not None:
            sharers.setdefault(row.image, set()).add(row.task)
    for task, where in places.items():
        if len(where) > 1:
            add(task, found("duplicate-row", f"{len(where)} rows have this task id", ", ".join(where)))
    for image, tasks in _by_name(sharers).items():
        declared = generic.kind(image) is Generic.DECLARED
        others = f", shared by {len(tasks)} tasks" if len(tasks) > 1 else ""
        code = "generic-image" if declared or len(tasks) > 1 else "bare-image"
        kind = "the manifest calls generic" if declared else "is a bare operating system"
        for task in tasks:
            add(task, found(code, f"{image!r}, which {kind}{others}"))
    for task in dataset - chosen.keys():
        add(task, found("row-without-assignment", "the variant has no such task", places[task][0]))
    for task in chosen.keys() - dataset:
        add(task, found("assignment-without-row", "the dataset has no such task"))
    return {name: tuple(findings) for name, findings in sorted(result.items())}


def _by_name(sharers: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same with references that name one image (``ubuntu:22.04``, ``docker://ubuntu:22.04``) joined."""
    first: dict[tuple[str, str | None], str] = {}
    joined: dict[str, set[str]] = {}
    for image in sorted(sharers):
        joined.setdefault(first.setdefault(split_reference(image), image), set()).update(sharers[image])
    return joined


def orphans(listing: Listing, named: frozenset[str]) -> tuple[str, ...]:
    """Blobs of the pool that no variant names, sorted.

    A file counts as a blob when its name ends in ``.sif``, or when it lies in a folder (below the
    root) where a named blob lies; a card or a table at the root is none.
    """
    folders = {path.rpartition("/")[0] for path in named} - {""}
    return tuple(
        sorted(
            path
            for path in listing.blobs
            if path not in named and (path.lower().endswith(".sif") or path.rpartition("/")[0] in folders)
        )
    )
