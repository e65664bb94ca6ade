"""``audit``: whether every task of a variant is covered by an image that is really valid.

Reads the index, the listing, the dataset's rows and what attestations say, looks at what nothing
vouches for (ops/look.py), and lets plan/coverage and plan/gates decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from poolmgr.errors import PoolError, UnknownTaskError, UsageError
from poolmgr.model.blob import Blob, case_clashes
from poolmgr.model.finding import Finding, Level, Severity, Verdict
from poolmgr.model.task import Row
from poolmgr.ops.image_checks import CONTENT, Content, ImageCheck, Inspect
from poolmgr.ops.look import Looker, Wish
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.stale import stale
from poolmgr.ops.view import PoolView
from poolmgr.plan.coverage import Coverage, cover, orphans
from poolmgr.plan.gates import Asked, Gate, Look, coverage_gates, image_gates
from poolmgr.plan.placement import Directory, directories
from poolmgr.sif.apptainer import Apptainer
from poolmgr.sif.header import host_arch

RowsOf = Callable[[str], Sequence[Row]]
"""Address of a dataset -> its rows."""
REMOTE_LEVELS = (Level.LISTED, Level.HEADER, Level.MOUNT)
"""Deeper levels would read a remote blob whole."""
BLOBS_TABLE = "blobs.parquet"
MOUNT_REQUESTS = 4
MOUNT_BYTES = 50_000
"""About what ``mount`` reads of a remote blob: its first 37 KB and three places near its end."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for; everything left out comes from the manifest or a default."""

    variants: tuple[str, ...] = ()
    """None named: every variant of the pool."""
    level: Level | None = None
    arch: str | None = None
    inspect: str | None = None
    dataset: str | None = None
    no_dataset: bool = False
    tasks: frozenset[str] | None = None
    """Only these tasks."""
    rehash: bool = False
    allow_legacy: bool = False
    jobs: int | None = None


@dataclass(frozen=True)
class Image:
    """One distinct blob over all audited variants."""

    path: str
    size: int | None
    """None when it is not there."""
    variants: tuple[str, ...]
    verdict: Verdict
    findings: tuple[Finding, ...]
    look: Look | None
    """None when nobody looked into it."""


@dataclass(frozen=True)
class VariantAudit:
    coverage: Coverage
    gates: tuple[Gate, ...]
    dataset: str | None
    """Address of the dataset that it was, or was to be, compared with."""
    expected: int | None
    """Tasks that the manifest expects."""
    looks: Mapping[str, Look]
    """Present blob -> what is known of it under this variant's rules."""

    @property
    def name(self) -> str:
        return self.coverage.variant

    @property
    def passed(self) -> bool:
        return bool(self.gates) and all(g.holds for g in self.gates)


@dataclass(frozen=True)
class Audit:
    address: str
    commit: str | None
    asked: Asked
    variants: tuple[VariantAudit, ...]
    images: Mapping[str, Image]
    orphans: tuple[Blob, ...]
    directories: tuple[Directory, ...]
    refused: tuple[tuple[str, str], ...]
    """(path, why) of entries whose path may not be used."""
    clashes: tuple[tuple[str, ...], ...]
    """Paths of the pool that differ only in case."""
    mirror: bool
    hashed: int
    """Bytes that were hashed in this run."""
    notes: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return bool(self.variants) and all(v.passed for v in self.variants)

    def count(self, verdict: Verdict) -> int:
        return sum(1 for i in self.images.values() if i.verdict is verdict)

    @property
    def remembered(self) -> int:
        """Images whose every check came from attestations."""
        return sum(1 for i in self.images.values() if i.look is not None and i.look.remembered)


def audit(view: PoolView, request: Request, rows_of: RowsOf, progress: Progress | None = None) -> Audit:
    """Audit the asked variants of ``view``.

    ``rows_of`` reads a dataset; its errors make the dataset gate "not checked" when the manifest
    named the dataset, and are raised when the caller did. Raises ``UnknownVariantError``,
    ``UnknownTaskError`` and what the store raises.
    """
    progress = progress or Silent()
    names = request.variants or tuple(view.index.variants)
    assignments = {name: view.index.variant(name) for name in dict.fromkeys(names)}
    subset = request.tasks
    if subset is not None:
        _check_tasks(view, assignments, subset)
    asked = _asked(view, request)
    notes: list[str] = []
    if request.dataset is not None and len(assignments) > 1:
        raise UsageError(
            "--dataset belongs to one variant, and several are audited",
            hint=f"name one of {', '.join(assignments)}",
        )
    covered: dict[str, tuple[Coverage, str | None, str | None]] = {}
    record = _record(view)
    for name, tasks in assignments.items():
        rules = view.manifest.rules(name)
        address = None if request.no_dataset else request.dataset or rules.dataset
        rows, trouble = _rows(address, rows_of, must=request.dataset is not None)
        coverage = cover(
            name, tasks, view.listing, recorded=record, gates=view.manifest.gates, rows=rows,
            subset=subset, total=view.total_tasks(name),
        )  # fmt: skip
        covered[name] = (coverage, address, trouble)
        if request.no_dataset and rules.dataset:
            notes.append(f"{name}: the dataset {rules.dataset} was not compared (--no-dataset)")
    extra, why_not = _extra(view, asked, [c for c, _, _ in covered.values()])
    wish = Wish(asked.level, asked.arch, request.rehash, request.allow_legacy, request.jobs, extra)
    looker = Looker(view, wish, progress)
    wanted = sorted({p for c, _, _ in covered.values() for p in c.present})
    looks = looker.look([view.listing.blobs[p] for p in wanted])
    audits = tuple(
        _variant(view, request, asked, coverage, looks, why_not, address, trouble)
        for coverage, address, trouble in covered.values()
    )
    notes += looker.notes
    notes += _cost(view, asked, len(wanted))
    if view.attest_folder is not None:
        notes += view.attested.notes
    stale_ones, unknown = stale(view, wanted)
    if unknown:
        notes.append(f"{unknown:,} derived images: no sha256 of their base is known, so it was not compared")
    named = view.index.blobs()
    return Audit(
        address=view.address,
        commit=view.store.commit,
        asked=asked,
        variants=audits,
        images=_images(view, asked, audits, stale_ones),
        orphans=tuple(view.listing.blobs[p] for p in orphans(view.listing, named)),
        directories=directories(view.listing, view.manifest.layout.max_entries),
        refused=view.listing.refused,
        clashes=case_clashes(view.listing.blobs),
        mirror=view.is_mirror,
        hashed=looker.hashed,
        notes=tuple(notes),
    )


def _asked(view: PoolView, request: Request) -> Asked:
    gates = view.manifest.gates
    remote = view.root is None
    if request.level is not None:
        level, level_by = request.level, "--level"
    elif gates.level is not None:
        level, level_by = gates.level, "manifest"
    else:
        level, level_by = (Level.LISTED if remote else Level.MOUNT), "default"
    if remote and level not in REMOTE_LEVELS:
        raise UsageError(
            f"level {level.value} (asked for by {level_by}) reads images whole; {view.address} is remote",
            hint="--level mount reads a few byte ranges; fetch the variant first to audit it more deeply",
        )
    if remote and request.rehash:
        raise UsageError(
            f"--rehash reads images whole, and {view.address} is remote", hint="fetch the variant first"
        )
    arch, arch_by = request.arch, "--arch"
    if arch is None:
        arch, arch_by = gates.arch, "manifest"
    if arch is None:
        arch, arch_by = host_arch(), "host"
    inspect, inspect_by = gates.inspect, "default" if gates.inspect == "available" else "manifest"
    if request.inspect is not None:
        inspect, inspect_by = request.inspect, "--inspect"
    if inspect == "available" and (remote or level is Level.LISTED):
        inspect = "off"  # Apptainer reads files, whole
    return Asked(level, level_by, arch, arch_by, not remote, inspect, inspect_by)


def _check_tasks(
    view: PoolView, assignments: Mapping[str, Mapping[str, str]], subset: frozenset[str]
) -> None:
    unknown = sorted(t for t in subset if not any(t in tasks for tasks in assignments.values()))
    if unknown:
        names = ", ".join(assignments)
        held = sum(len(tasks) for tasks in assignments.values())
        raise UnknownTaskError(
            f"{len(unknown):,} of the {len(subset):,} tasks asked for are not among the {held:,} of {names} "
            f"in {view.address}",
            hint="a mirror holds the tasks that were fetched; 'poolmgr ls --tasks' lists them"
            if view.is_mirror
            else "",
            details=unknown,
        )


def _record(view: PoolView) -> Callable[[str], Blob | None]:
    """What to compare the listing with; a remote listing is compared with blobs.parquet, never itself."""
    if view.root is not None:
        return view.recorded
    if BLOBS_TABLE not in view.listing.blobs:
        return lambda _: None
    from poolmgr.store.blobs_table import read_blobs_table

    return read_blobs_table(view.store).get


def _rows(address: str | None, rows_of: RowsOf, *, must: bool) -> tuple[Sequence[Row] | None, str | None]:
    """(rows, why there are none)."""
    if address is None:
        return None, None
    try:
        return rows_of(address), None
    except PoolError as e:
        if must:
            raise
        hint = "--dataset ADDR names a copy of it, --no-dataset does without"
        return None, f"{e.message} ({hint})"


def _extra(
    view: PoolView, asked: Asked, coverages: Sequence[Coverage]
) -> tuple[dict[str, tuple[ImageCheck, ...]], dict[str, str]]:
    """(path -> what else to check of it, gate -> why it is not carried out at all)."""
    contents = {c.variant: Content.of(view.manifest.rules(c.variant)) for c in coverages}
    gates = ("inspect", *CONTENT)
    if view.root is None:
        return {}, dict.fromkeys(gates, "a remote pool is not read that deeply")
    if asked.level is Level.LISTED:
        return {}, dict.fromkeys(gates, "level listed does not look into images")
    why_not = {}
    inspect: tuple[ImageCheck, ...] = ()
    if asked.inspect != "off":
        if Apptainer.find() is None:
            why_not["inspect"] = "Apptainer is not installed"
        else:
            inspect = (Inspect(),)
    extra: dict[str, dict[ImageCheck, None]] = {}
    for coverage in coverages:
        content = contents[coverage.variant]
        for path in coverage.present:
            extra.setdefault(path, dict.fromkeys(inspect))
            if content is not None:
                extra[path][content] = None
    return {path: tuple(checks) for path, checks in extra.items() if checks}, why_not


def _variant(
    view: PoolView, request: Request, asked: Asked, coverage: Coverage, looks: Mapping[str, Look],
    why_not: Mapping[str, str], address: str | None, trouble: str | None,
) -> VariantAudit:  # fmt: skip
    rules = view.manifest.rules(coverage.variant)
    own = {p: looks[p] for p in coverage.present if p in looks}
    gates = coverage_gates(
        coverage, rules, view.manifest.gates, dataset=address,
        dataset_by="--dataset" if request.dataset is not None else "manifest", dataset_trouble=trouble,
        subset_asked=request.tasks is not None, mirror=view.is_mirror,
    )  # fmt: skip
    content = Content.of(rules)
    names = {gate: content.name(gate) for gate in CONTENT} if content is not None else {}
    gates += image_gates(coverage, own, asked, rules, names, why_not)
    return VariantAudit(coverage, tuple(gates), address, rules.tasks, own)


def _images(
    view: PoolView, asked: Asked, audits: Sequence[VariantAudit], stale_ones: Mapping[str, Finding]
) -> dict[str, Image]:
    variants: dict[str, list[str]] = {}
    findings: dict[str, list[Finding]] = {}
    looks: dict[str, Look] = {}
    for one in audits:
        for path in one.coverage.needed:
            variants.setdefault(path, []).append(one.name)
            findings.setdefault(path, []).extend(one.coverage.images.get(path, ()))
        for path, look in one.looks.items():
            looks.setdefault(path, look)
            findings[path].extend(look.findings)
    for path, one_finding in stale_ones.items():
        findings[path].append(one_finding)
    images: dict[str, Image] = {}
    for path in sorted(variants):
        blob = view.listing.blobs.get(path)
        found = tuple(dict.fromkeys(findings[path]))
        images[path] = Image(
            path=path,
            size=blob.size if blob is not None else None,
            variants=tuple(variants[path]),
            verdict=_verdict(found, looks.get(path), asked.level),
            findings=found,
            look=looks.get(path),
        )
    return images


def _verdict(findings: Sequence[Finding], look: Look | None, level: Level) -> Verdict:
    known = look.checks.get(level.value) if look is not None else None
    if known is Verdict.UNSUPPORTED:
        return known
    if any(f.severity is Severity.ERROR for f in findings):
        return Verdict.BAD
    if level is Level.LISTED:
        return Verdict.OK
    return known or Verdict.UNCHECKED


def _cost(view: PoolView, asked: Asked, images: int) -> list[str]:
    if asked.level is not Level.LISTED:
        return []
    if view.root is not None:
        return ["the bytes were not looked at: level listed asks only for files of the recorded size"]
    return [
        f"validity was not looked at; --level mount would look, by about {images * MOUNT_REQUESTS:,} range "
        f"requests and {max(1, images * MOUNT_BYTES // 1_000_000):,} MB"
    ]
