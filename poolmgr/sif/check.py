"""Whether an image is valid, to the level asked for: the one entrance to all checks of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

from poolmgr.model.finding import Finding, Level, Severity, Verdict
from poolmgr.sif.data import MAX_FINDINGS, Digest, Filesystem, processors, read_through
from poolmgr.sif.header import (
    ARCHIVE,
    ENCRYPTED,
    EXT3,
    FS_NAMES,
    GOCRYPTFS,
    RAW,
    SQUASHFS,
    Container,
    Descriptor,
    arch_finding,
    finding,
    is_oci,
    read_container,
)
from poolmgr.sif.signature import Recorded, recorded_digests
from poolmgr.sif.sniff import legacy_squashfs, sniff, sniff_path
from poolmgr.sif.source import FileSource, Source
from poolmgr.sif.squashfs import DamageError, Squashfs, mount
from poolmgr.sif.stop import Stop, never
from poolmgr.sif.tables import read_tables

_EXT_MAGIC_AT = 1080
_FOREIGN = frozenset({"bare-squashfs", "singularity2-image", "ext-image", "sandbox-folder"})
"""Codes of real images of a kind that is no SIF."""
_WORST = (Verdict.BAD, Verdict.UNSUPPORTED, Verdict.UNCHECKED, Verdict.PARTIAL)


@dataclass(frozen=True, slots=True)
class Report:
    """What the checks of one image found."""

    verdict: Verdict
    checks: Mapping[str, Verdict]
    """Level looked at -> its verdict, in their order."""
    findings: tuple[Finding, ...] = ()
    arch: str | None = None
    level: Level | None = None
    """The deepest level that passed."""
    unchecked: tuple[str, ...] = ()
    """What was not looked at and why, one line each."""
    sha256: str | None = None
    """Of the whole file, where every byte of it was read and hashed."""


@dataclass(slots=True)
class _Run:
    """The state of one check, level by level."""

    checks: dict[str, Verdict] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    unsupported: bool = False
    """The image is of a kind that is not vouched for."""
    partial: bool = False
    """What was read carries no checksum, and no hash confirmed it."""
    sha256: str | None = None
    hashed: Verdict | None = None

    def close(self, level: Level, *, blocked: bool = False) -> bool:
        """End ``level``; whether a deeper one may be looked at."""
        bad = any(f.severity is Severity.ERROR for f in self.findings)
        if bad:
            verdict = Verdict.BAD
        elif self.unsupported:
            verdict = Verdict.UNSUPPORTED
        elif blocked:
            verdict = Verdict.UNCHECKED
        else:
            verdict = Verdict.PARTIAL if self.partial else Verdict.OK
        self.checks[level.value] = verdict
        return not (bad or blocked)

    def report(self, arch: str | None) -> Report:
        passed = None
        for name, verdict in self.checks.items():
            if not verdict.passes:
                break
            passed = Level(name)
        if self.hashed is not None:
            self.checks["hash"] = self.hashed
            if self.hashed is Verdict.BAD:
                passed = None
        verdict = next((v for v in _WORST if v in self.checks.values()), Verdict.OK)
        return Report(
            verdict, self.checks, tuple(self.findings), arch, passed, tuple(self.unchecked), self.sha256
        )


def check(
    source: Source,
    level: Level,
    *,
    arch: str | None = None,
    allow_legacy: bool = False,
    sha256: str | None = None,
    hashing: bool = False,
    threads: int | None = None,
    stop: Stop = never,
) -> Report:
    """Look at ``source`` down to ``level``; stop at the first level that is bad.

    ``arch`` is the architecture that the image must run on (Go's names; None: not compared).
    ``allow_legacy`` lets bare and Singularity 2 squashfs files pass. With ``hashing`` the whole file
    is hashed and compared with ``sha256`` (64 hex digits) where that is known, and with the digests
    in the file's own signatures; together with level ``data`` that reads the file once. ``threads``
    unpack blocks (default: one a processor). Errors of the source itself (``OSError``, a store's
    ``PoolError``) are the caller's. Raises ``StoppedError`` soon after ``stop`` says so.
    """
    run = _Run()
    container = Container(None, (), ())
    filesystems: list[Filesystem] = []
    if source.size == 0:
        run.findings.append(sniff(b"", 0))
    ahead = run.close(Level.LISTED)
    if ahead and level is not Level.LISTED:
        container = read_container(source)
        ahead = _header(run, source, container, arch, allow_legacy)
        squashed = _filesystems(source, container)
        if ahead and squashed and level.includes(Level.MOUNT):
            mounted = _mount(run, source, container, squashed)
            if mounted is not None and level.includes(Level.TABLES):
                filesystems = _tables(run, mounted, threads)
    through = level is Level.DATA and run.checks.get(Level.TABLES.value) in (
        Verdict.OK,
        Verdict.UNSUPPORTED,
    )
    if through or (hashing and source.size):
        _read(run, source, container, filesystems if through else None, sha256, hashing, threads, stop)
    return run.report(container.arch)


class How(TypedDict, total=False):
    """The options of ``check``, which says what they mean."""

    arch: str | None
    allow_legacy: bool
    sha256: str | None
    hashing: bool
    threads: int | None
    stop: Stop


def check_file(path: Path, level: Level, **how: Unpack[How]) -> Report:
    """``check`` of the file at ``path``; a path that leads to no readable file is a finding too."""
    wrong = sniff_path(path)
    if wrong is None:
        try:
            with FileSource(path) as source:
                return check(source, level, **how)
        except PermissionError as e:
            wrong = finding("unreadable", str(e.strerror))
        except OSError as e:
            wrong = finding("io-error", f"reading failed: {e.strerror}")
    verdict = Verdict.BAD
    if wrong.code in ("unreadable", "io-error"):
        verdict = Verdict.UNCHECKED
    elif wrong.code in _FOREIGN:
        verdict = Verdict.UNSUPPORTED
    return Report(verdict, {Level.LISTED.value: verdict}, (wrong,))


def _header(run: _Run, source: Source, container: Container, arch: str | None, allow_legacy: bool) -> bool:
    run.findings.extend(container.findings)
    if container.header is None and not container.findings:
        foreign = sniff(container.head, source.size)
        run.findings.append(foreign)
        run.unsupported = foreign.code in _FOREIGN and not (
            allow_legacy and legacy_squashfs(container.head) is not None
        )
    elif container.header is not None:
        wrong = arch_finding(container.arch, arch)
        if wrong is not None:
            run.findings.append(wrong)
        if container.primary is None and is_oci(container.objects):
            said = finding("oci-sif", "an OCI-SIF (SingularityCE 4), which Apptainer cannot run")
            run.findings.insert(0, said)
            run.unsupported = True
        if not any(f.severity is Severity.ERROR for f in container.findings):
            for part in container.partitions:
                _other_filesystem(run, source, part)
        if isinstance(source, FileSource) and (hole := source.first_hole()) is not None:
            run.findings.append(
                finding("sparse-file", f"the file has a hole at {hole}, which reads as zeros")
            )
    return run.close(Level.HEADER)


def _other_filesystem(run: _Run, source: Source, part: Descriptor) -> None:
    """The magic of a filesystem that is no squashfs, and that nothing of it is looked at."""
    where = f"partition {part.id}"
    if part.fstype == EXT3:
        magic = source.read_at(part.offset + _EXT_MAGIC_AT, 2) if part.size > _EXT_MAGIC_AT + 2 else b""
        if magic != b"\x53\xef":
            run.findings.append(
                finding("sif-fs-magic", f"no ext filesystem, but {magic!r} at {_EXT_MAGIC_AT}", where)
            )
        else:
            run.findings.append(finding("ext-partition", "an ext3 filesystem: writable, and not read", where))
            run.unsupported = True
    elif part.fstype == ENCRYPTED:
        magic = source.read_at(part.offset, 6)
        if magic[:4] != b"LUKS":
            run.findings.append(finding("sif-fs-magic", f"no LUKS container, but {magic!r}", where))
        else:
            run.findings.append(finding("encrypted-partition", "encrypted: cannot be looked into", where))
            run.unsupported = True
    elif part.fstype == GOCRYPTFS:
        run.findings.append(
            finding("encrypted-partition", "holds gocryptfs files: cannot be looked into", where)
        )
        run.unsupported = True
    elif part.fstype in (ARCHIVE, RAW):
        what = f"{FS_NAMES[part.fstype]} data is not looked into"
        run.unchecked.append(f"{where}: {what}")
        run.findings.append(finding("not-checked", what, where))


def _filesystems(source: Source, container: Container) -> list[tuple[str, int, int]]:
    """(where, offset, size) of every squashfs in the file."""
    if container.header is None:
        legacy = legacy_squashfs(container.head)
        return [("", legacy[0], source.size - legacy[0])] if legacy else []
    return [
        (f"partition {p.id}", p.offset, p.size)
        for p in container.partitions
        if p.fstype in (SQUASHFS, GOCRYPTFS)
    ]


def _mount(
    run: _Run, source: Source, container: Container, squashed: Sequence[tuple[str, int, int]]
) -> list[tuple[str, Squashfs]] | None:
    """(where, filesystem), to be looked at more deeply; None when one of them did not pass."""
    passed = []
    blocked = False
    for where, offset, size in squashed:
        result = mount(source, offset, size, container.head)
        run.findings.extend(Finding(f.code, f.message, f.severity, where) for f in result.findings)
        if result.unchecked:
            blocked = True
            run.findings.append(finding("not-checked", result.unchecked, where))
            run.unchecked.append(f"{where}: {result.unchecked}" if where else result.unchecked)
        run.unsupported |= result.unsupported
        if result.filesystem is not None:
            passed.append((where, result.filesystem))
    return passed if run.close(Level.MOUNT, blocked=blocked) else None


def _tables(run: _Run, mounted: Sequence[tuple[str, Squashfs]], threads: int | None) -> list[Filesystem]:
    passed = []
    for where, fs in mounted:
        try:
            passed.append(Filesystem(where, read_tables(fs, threads=threads or processors())))
        except DamageError as e:
            run.findings.append(Finding(e.finding.code, e.finding.message, e.finding.severity, where))
    return passed if run.close(Level.TABLES) else []


def _few(findings: list[Finding]) -> list[Finding]:
    """The first of them: one signature may name an object thousands of times."""
    if len(findings) <= MAX_FINDINGS:
        return findings
    more = f"{len(findings) - MAX_FINDINGS} further digests on record do not agree either"
    return [*findings[:MAX_FINDINGS], finding(findings[-1].code, more)]


def _read(
    run: _Run,
    source: Source,
    container: Container,
    filesystems: list[Filesystem] | None,
    sha256: str | None,
    hashing: bool,
    threads: int | None,
    stop: Stop,
) -> None:
    """One pass over the bytes: the blocks of ``filesystems``, the file's hash, the recorded digests."""
    followed = container.header is not None and not any(
        f.severity is Severity.ERROR for f in container.findings
    )
    recorded = recorded_digests(source, container) if followed else Recorded()
    whole = Digest(0, source.size) if hashing else None
    digests = [*recorded.digests.values(), *([whole] if whole else [])]
    outcome = read_through(source, filesystems or (), digests, threads=threads, stop=stop)
    complete = not any(f.code == "short-read" for f in outcome.findings)
    run.findings += outcome.findings + _few(recorded.findings)
    confirmed = False
    if complete:
        unequal = [f for e in recorded.expected if (f := e.compare()) is not None]
        run.findings += _few(unequal)
        if recorded.signatures or unequal:
            wrong = unequal or any(f.code.startswith("sig-") for f in recorded.findings)
            run.hashed = Verdict.BAD if wrong else Verdict.OK
            confirmed = not wrong and recorded.confirms(container)
            if not confirmed and not wrong:
                run.hashed = None
    if complete and whole is not None:
        run.sha256 = whole.hex
        if sha256 is None:
            run.unchecked.append("hash: no sha256 is on record to compare with")
        elif whole.hex != sha256:
            run.hashed, confirmed = Verdict.BAD, False
            run.findings.append(finding("wrong-hash", f"sha256 {whole.hex}, on record is {sha256}"))
        else:
            confirmed = run.hashed is not Verdict.BAD
            run.hashed = run.hashed or Verdict.OK
    if filesystems is None:
        return
    if outcome.unsummed and not confirmed:
        run.partial = True
        run.findings.append(
            finding(
                "data-partial",
                f"{outcome.unsummed} of {outcome.blocks} blocks ({outcome.unsummed_bytes} bytes) carry no "
                "checksum in the file; only a recorded hash can confirm them",
            )
        )
    run.close(Level.DATA)
