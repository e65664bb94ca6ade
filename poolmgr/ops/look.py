"""Look at the images of a pool: each once, in parallel, and only at what no attestation vouches for.

A folder's files are hashed where a sha256 is on record and checked to the level asked for; what
was found is attested. A remote pool's blobs are checked by byte ranges, never read whole.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from poolmgr import __version__
from poolmgr.errors import CredentialsError, PoolError, RemoteTroubleError
from poolmgr.model.attestation import Attestation, Standing
from poolmgr.model.blob import Blob
from poolmgr.model.finding import Finding, Level, Severity, Verdict
from poolmgr.model.stamp import Stamp
from poolmgr.ops.attest import AttestWriter
from poolmgr.ops.image_checks import Checked, ImageCheck
from poolmgr.ops.progress import Progress
from poolmgr.ops.view import PoolView
from poolmgr.plan.coverage import found
from poolmgr.plan.gates import Look
from poolmgr.plan.proof import Need, judge
from poolmgr.sif.check import Report, check
from poolmgr.sif.header import arch_finding
from poolmgr.sif.source import FileSource, Source
from poolmgr.sif.stop import StoppedError
from poolmgr.store.base import RangeSource

CHUNK = 4 << 20
REMOTE_JOBS = 8
GIVE_UP_AFTER = 8
"""Blobs in a row whose reading ended in passing trouble, after which a server is asked no more."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be known of every image."""

    level: Level
    arch: str | None = None
    rehash: bool = False
    allow_legacy: bool = False
    jobs: int | None = None
    extra: Mapping[str, tuple[ImageCheck, ...]] = field(default_factory=dict)
    """Path -> what else to check of the image, once it is known to be valid."""


@dataclass(frozen=True, slots=True)
class _Work:
    path: str
    size: int
    expected: str | None = None
    """The sha256 to be confirmed by reading every byte; None when only the level is to be checked."""
    other_size: bool = False
    """The file cannot have the recorded sha256, so it is not hashed."""
    known: Look | None = None
    """Set when the image is known to be valid and only some of ``extra`` are to be carried out."""
    extra: tuple[ImageCheck, ...] = ()


class Looker:
    """One run over the images of one pool."""

    def __init__(self, view: PoolView, wish: Wish, progress: Progress) -> None:
        self.view = view
        self.wish = wish
        self.progress = progress
        self.notes: list[str] = []
        self.hashed = 0
        """Bytes that were hashed in this run."""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._trouble = 0
        self._writer: AttestWriter | None = None

    def look(self, blobs: Iterable[Blob]) -> dict[str, Look]:
        """Path -> what is known, for every one of ``blobs``, which are there as regular files."""
        if self.view.root is None:
            if self.wish.level is Level.LISTED:
                return {}
            work = [_Work(b.path, b.size) for b in blobs]
            return self._all(work, self._remote, "reading image headers", self.wish.jobs or REMOTE_JOBS)
        looks: dict[str, Look] = {}
        work = []
        for blob in blobs:
            known = self._remembered(blob.path)
            if isinstance(known, Look):
                looks[blob.path] = known
            else:
                work.append(known)
        if not work or self.wish.level is Level.LISTED:
            return looks
        self._writer = self._open_writer()
        try:
            what = "hashing and checking" if any(w.expected for w in work) else "checking"
            looks |= self._all(work, self._local, what, self.wish.jobs or _processors())
        finally:
            self._close_writer()
        return looks

    # --- from memory --------------------------------------------------------------------------------

    def _remembered(self, path: str) -> Look | _Work:
        """What attestations and the record say of the file as it is now, or what is left to do."""
        extra = self.wish.extra.get(path, ())
        try:
            st = os.stat(self.view.file(path))
        except OSError:
            return _Work(path, 0, extra=extra)  # opening it will say why
        recorded = self.view.recorded(path)
        expected = recorded.sha256 if recorded is not None else None
        if recorded is not None and recorded.size != st.st_size:
            return _Work(path, st.st_size, other_size=expected is not None, extra=extra)
        standing = None if self.wish.rehash else self.view.attested.standing(path, st)
        if standing is None:
            return _Work(path, st.st_size, expected, extra=extra)
        judgement = judge(recorded, st.st_size, standing, self.wish.level)
        if judgement.finding is not None or judgement.need is Need.HASH:
            # A bad word is looked at again too: it is rare, and a false one must not last.
            return _Work(path, st.st_size, expected, extra=extra)
        if judgement.need is Need.CHECK:
            if standing.sha256 is not None and standing.sha256 == expected:
                expected = None  # these bytes are confirmed, only the level is not
            return _Work(path, st.st_size, expected, extra=extra)
        look = self._from_standing(standing, expected)
        known = {name: v for e in extra for name in e.names if (v := standing.checks.get(name)) is not None}
        left = tuple(e for e in extra if not all(n in known and known[n].passes for n in e.names))
        look = replace(look, checks={**look.checks, **known})
        return _Work(path, st.st_size, known=look, extra=left) if left else look

    def _from_standing(self, standing: Standing, expected: str | None) -> Look:
        level = self.wish.level.value
        checks = {level: standing.checks.get(level, Verdict.OK)}  # a deeper pass includes this one
        if expected is not None:
            checks["hash"] = Verdict.OK
        return self._with_arch(Look(checks, standing.findings, arch=standing.arch, remembered=True))

    # --- a file of a folder -------------------------------------------------------------------------

    def _local(self, work: _Work) -> Look:
        look = self._valid(work) if work.known is None else replace(work.known, remembered=False)
        if not work.extra or not look.proven(self.wish.level) or _bad(look):
            return look
        file = self.view.file(work.path)
        checks, reasons, findings = dict(look.checks), dict(look.reasons), look.findings
        kept: dict[str, Verdict] = {}
        try:
            before = Stamp.of(os.stat(file))
            for extra in work.extra:
                for name, said in extra(file).items():
                    checks[name] = said.verdict
                    findings += said.findings
                    if said.reason:
                        reasons[name] = said.reason
                    if said.verdict.passes or (name == "inspect" and _damaged(said)):
                        kept[name] = said.verdict
            if Stamp.of(os.stat(file)) != before:
                return self._unknown("it changed while it was being read")
        except OSError as e:
            return self._unknown(f"reading failed: {e.strerror}")
        # What a content rule forbids is one variant's affair, and an architecture one machine's:
        # the file itself is not bad.
        if kept:
            told = findings if Verdict.BAD in kept.values() else look.findings
            self._attest(work.path, before, kept, told)
        return replace(look, checks=checks, findings=findings, reasons=reasons)

    def _valid(self, work: _Work) -> Look:
        file = self.view.file(work.path)
        try:
            with FileSource(file) as source:
                before = Stamp.of(os.fstat(source.fd))
                sha256 = self._hash(source) if work.expected is not None else None
                report = self._check(source)
                after = Stamp.of(os.fstat(source.fd))
            if before != after or after != Stamp.of(os.stat(file)):
                return self._unknown("it changed while it was being read")
        except FileNotFoundError:
            return Look(
                {self.wish.level.value: Verdict.BAD}, (found("missing", "it vanished during the audit"),)
            )
        except PermissionError as e:
            return Look({self.wish.level.value: Verdict.BAD}, (found("unreadable", str(e.strerror).lower()),))
        except OSError as e:
            return self._unknown(f"reading failed: {e.strerror}")
        look = self._from_report(report)
        if sha256 is not None:
            right = sha256 == work.expected
            checks = {**look.checks, "hash": Verdict.OK if right else Verdict.BAD}
            look = replace(look, checks=checks)
            if not right:
                wrong = found("wrong-hash", f"sha256 {work.expected} is on record, the file has {sha256}")
                look = replace(look, findings=(wrong, *look.findings))
        elif work.other_size:
            look = replace(look, checks={**look.checks, "hash": Verdict.BAD})
        checks = dict(report.checks)
        if "hash" in look.checks:
            checks["hash"] = look.checks["hash"]
        self._attest(work.path, after, checks, look.findings, sha256, report.arch)
        return self._with_arch(look)

    def _check(self, source: Source) -> Report:
        return check(source, self.wish.level, allow_legacy=self.wish.allow_legacy, stop=self._stop.is_set)

    def _hash(self, source: FileSource) -> str:
        digest = hashlib.sha256()
        at = 0
        while chunk := os.pread(source.fd, CHUNK, at):
            if self._stop.is_set():
                raise StoppedError
            digest.update(chunk)
            at += len(chunk)
            self.progress.advance(len(chunk))
        with self._lock:
            self.hashed += at
        return digest.hexdigest()

    # --- a blob of a remote pool --------------------------------------------------------------------

    def _remote(self, work: _Work) -> Look:
        if self._trouble >= GIVE_UP_AFTER:
            return self._unknown("not asked for: the server kept failing")
        try:
            source = RangeSource(self.view.store, work.path, work.size)
            report = self._check(source)
        except CredentialsError:
            raise
        except PoolError as e:
            if isinstance(e, RemoteTroubleError):
                with self._lock:
                    self._trouble += 1
            return self._unknown(e.message)
        self._trouble = 0
        return self._with_arch(self._from_report(report))

    # --- what they share ----------------------------------------------------------------------------

    def _from_report(self, report: Report) -> Look:
        level = self.wish.level.value
        reasons = {}
        if report.verdict in (Verdict.UNCHECKED, Verdict.UNSUPPORTED):
            said = "; ".join(report.unchecked) or "; ".join(str(f) for f in report.findings)
            reasons[level] = said or report.verdict.value
        return Look({level: report.verdict}, report.findings, reasons, report.arch)

    def _with_arch(self, look: Look) -> Look:
        wrong = arch_finding(look.arch, self.wish.arch)
        return look if wrong is None else replace(look, findings=(*look.findings, wrong))

    def _unknown(self, reason: str) -> Look:
        level = self.wish.level.value
        return Look({level: Verdict.UNCHECKED}, (found("not-checked", reason),), {level: reason})

    def _attest(
        self,
        path: str,
        stamp: Stamp,
        checks: Mapping[str, Verdict],
        findings: tuple[Finding, ...],
        sha256: str | None = None,
        arch: str | None = None,
    ) -> None:
        writer = self._writer
        if writer is None or self.view.identity is None:
            return
        versions = {"poolmgr": __version__}
        try:
            writer.add(
                Attestation(
                    self.view.identity, path, stamp, checks, sha256, findings, arch, versions, time.time()
                )
            )
        except PoolError as e:
            self._not_kept(e.message)

    def _open_writer(self) -> AttestWriter | None:
        folder = self.view.attest_folder
        if folder is None:
            return None
        nearest = folder
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        if not os.access(nearest, os.W_OK | os.X_OK):
            self._not_kept(f"{nearest} cannot be written")
            return None
        return AttestWriter(folder)

    def _close_writer(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            except PoolError as e:
                self._not_kept(e.message)
            self._writer = None

    def _not_kept(self, why: str) -> None:
        with self._lock:
            self._writer = None
            note = f"what was proven is not remembered: {why}"
            if note not in self.notes:
                self.notes.append(note)

    def _all(self, work: list[_Work], one: Callable[[_Work], Look], what: str, jobs: int) -> dict[str, Look]:
        """``one`` over all of ``work``; an error or Ctrl-C stops the others and passes on."""
        looks: dict[str, Look] = {}
        step = max(1, min(64, len(work) // (jobs * 8))) if self.view.root is not None else 1
        self.progress.begin(what, files=len(work), size=sum(w.size for w in work if w.expected))

        def several(chunk: list[_Work]) -> None:
            for item in chunk:
                if self._stop.is_set():
                    return
                try:
                    looks[item.path] = one(item)
                except StoppedError:
                    return
                except BaseException:
                    self._stop.set()
                    raise
                self.progress.file_done(item.path)

        pool = ThreadPoolExecutor(min(jobs, max(1, len(work))), thread_name_prefix="look")
        try:
            futures: list[Future[None]] = [
                pool.submit(several, work[i : i + step]) for i in range(0, len(work), step)
            ]
            for future in futures:
                future.result()
        except BaseException:
            self._stop.set()
            if self.view.root is None and isinstance(self.view.store, _Closing):
                self.view.store.close()  # ends waits for a busy server
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self.progress.end()
        return looks


@runtime_checkable
class _Closing(Protocol):
    def close(self) -> None: ...


def _bad(look: Look) -> bool:
    return any(f.severity is Severity.ERROR for f in look.findings)


def _damaged(said: Checked) -> bool:
    return said.verdict is Verdict.BAD and all(f.code != "wrong-arch" for f in said.findings)


def _processors() -> int:
    return len(os.sched_getaffinity(0))
