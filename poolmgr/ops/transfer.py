"""One blob's way into a mirror: bytes, proof, final name. Runs on a worker thread.

The bytes go to a partial file of this run and are hashed as they come. Only a file whose size and
sha256 are the listing's, whose header and mount checks pass, and which is on disk, gets its final
name; right bytes that are no valid image go to quarantine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from poolmgr import __version__
from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    BadTransferError,
    CredentialsError,
    PoolError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.model.attestation import Attestation
from poolmgr.model.blob import Blob
from poolmgr.model.finding import Finding, Level, Verdict
from poolmgr.model.stamp import Stamp
from poolmgr.ops.attest import AttestWriter
from poolmgr.ops.bringing import CHUNK, Bringer, Tally, WrongBytesError, open_base
from poolmgr.ops.landing import Landing
from poolmgr.ops.partials import Partial, Partials
from poolmgr.ops.progress import Progress
from poolmgr.ops.quarantine import Quarantine, quarantine_findings
from poolmgr.ops.state import State as Folder
from poolmgr.plan.item import Base, Item, State
from poolmgr.sif.check import Report, check
from poolmgr.sif.source import FileSource
from poolmgr.store.base import Store
from poolmgr.store.files import mapped_os_errors, publish, replace


class Result(StrEnum):
    TRANSFERRED = "transferred"
    KEPT = "kept"
    """There already, and proven now (by hash) or before (by attestation)."""
    COPIED = "copied"
    """Copied from a proven file of the mirror with the same bytes."""
    QUARANTINED = "quarantined"
    FAILED = "failed"
    """The bytes are wrong, or the pool does not have them; another run would find the same."""
    TROUBLE = "trouble"
    """Passing trouble; another run goes on where this one stopped."""
    BUSY = "busy"
    """Another live fetch is writing this blob."""


@dataclass(frozen=True, slots=True)
class Outcome:
    item: Item
    result: Result
    transferred: int = 0
    """Bytes that came from the pool for it, retries included."""
    findings: tuple[Finding, ...] = ()
    sha256: str | None = None
    """Of the file that is there now, where it is known."""
    error: PoolError | None = None
    reused: int = 0
    """Bytes that came from its base."""
    damaged: str | None = None
    """Its base's path, where that file turned out not to hold its proven bytes any more."""

    @property
    def good(self) -> bool:
        return self.result in (Result.TRANSFERRED, Result.KEPT, Result.COPIED)


@dataclass
class Mover:
    """Moves the blobs of one run into one folder."""

    store: Store
    folder: Folder
    identity: str
    attest: AttestWriter
    progress: Progress
    partials: Partials
    allow_legacy: bool = False
    stopped: Callable[[], bool] = lambda: False
    download: Callable[[Blob, Path], None] | None = None
    """Another way to bring a whole file (Xet); None is ranged HTTP."""

    def __post_init__(self) -> None:
        self.landing = Landing(self.folder.root)
        self.quarantine = Quarantine(self.folder.quarantine)
        self._bringer = Bringer(self.store, self.progress, self.stopped, self.download)

    # --- the ways of an item ---------------------------------------------------------------------

    def run(self, item: Item, *, wait: bool = False) -> Outcome:
        """Carry out one item of the plan; with ``wait`` also one that another fetch holds."""
        tally = Tally()
        try:
            if item.state in (State.PROVEN, State.LACKING):
                raise AssertionError(item)  # nothing to carry out
            if item.state is State.QUARANTINED:
                return self._again_from_quarantine(item)
            if item.state is State.UNPROVEN:
                kept = self._prove_in_place(item)
                if kept is not None:
                    return kept
            if item.state is State.ELSEWHERE and item.source is not None:
                copied = self._copy(item, self.folder.root / item.source)
                if copied is not None:
                    return copied
            if item.state in (State.MISSING, State.PARTIAL) and self._arrived(item.blob):
                kept = self._prove_in_place(item)
                if kept is not None:
                    return kept
            begun = self.partials.of(self._key(item.blob))
            if not wait and self._alive(begun):
                return Outcome(item, Result.BUSY)
            return self._bring(item, tally, begun)
        except (BadFileError, CredentialsError, RemoteRefusedError, RemoteTroubleError) as e:
            result = Result.TROUBLE if isinstance(e, RemoteTroubleError) else Result.FAILED
            return Outcome(item, result, tally.transferred, (Finding(e.code, e.message),), error=e)

    def _prove_in_place(self, item: Item) -> Outcome | None:
        """Hash what lies at the final name; None when it is wrong and must be replaced."""
        blob, path = item.blob, self.folder.root / item.blob.path
        with FileSource(path) as source:
            before = Stamp.of(os.fstat(source.fd))
            sha256 = self._bringer.hash(source.fd, 0, source.size)
            if source.size != blob.size or (blob.sha256 is not None and sha256 != blob.sha256):
                return None
            report = check(source, Level.MOUNT, allow_legacy=self.allow_legacy)
            if Stamp.of(os.fstat(source.fd)) != before:
                return None  # changed under our hands: bring it anew
        if not report.verdict.passes:
            return self._quarantine(item, path, sha256, report)
        self._attest(blob.path, path, sha256, report)
        return Outcome(item, Result.KEPT, sha256=sha256)

    def _arrived(self, blob: Blob) -> bool:
        """Whether another fetch has brought the blob since the plan was made."""
        try:
            st = os.lstat(self.folder.root / blob.path)
        except OSError:
            return False
        return stat.S_ISREG(st.st_mode) and st.st_size == blob.size

    def _copy(self, item: Item, source: Path) -> Outcome | None:
        """The bytes of a proven file under another name; None when it turns out wrong."""
        part = self.partials.mine(self._key(item.blob))
        digest = hashlib.sha256()
        try:
            with mapped_os_errors(part), source.open("rb") as reader, part.open("wb") as writer:
                while chunk := reader.read(CHUNK):
                    self._bringer.check_stop()
                    digest.update(chunk)
                    writer.write(chunk)
                    self.progress.advance(len(chunk))
        except FileNotFoundError:
            return None
        if digest.hexdigest() != item.blob.sha256:
            part.unlink()
            return None
        return self._finish(item, part, digest.hexdigest(), Result.COPIED, 0)

    def _bring(self, item: Item, tally: Tally, begun: list[Partial]) -> Outcome:
        """On its base or from the pool, from where a partial ends; wrong bytes come once more, whole."""
        blob = item.blob
        part = self.partials.mine(self._key(blob))
        base = open_base(self.folder.root, item.base) if item.base is not None else None
        fresh = blob.sha256 is None or (self.download is not None and base is None)
        start = 0 if fresh else self.partials.take_over(self._key(blob), blob.size, begun)
        damaged = None
        tries = [False, True]
        if item.base is not None and base is not None:
            with base:
                try:
                    sha256 = self._bringer.on_base(blob, item.base, base, part, start, tally)
                except (WrongBytesError, BadFileError, BadTransferError, RemoteRefusedError) as e:
                    part.unlink(missing_ok=True)
                    damaged = self._judged(item.base, base, e, tally)
                    self._bringer.again(tally)
                    self.progress.note(f"{blob.path}: {_why_whole(item.base, e, damaged)}; fetching it whole")
                    start, tries = 0, [True]
                else:
                    done = self._finish(item, part, sha256, Result.TRANSFERRED, tally.transferred)
                    return dataclasses.replace(done, reused=tally.reused)
        for last in tries:
            try:
                if self.download is not None:
                    sha256 = self._bringer.through_client(blob, part, tally)
                else:
                    sha256 = self._bringer.stream(blob, part, start, tally)
                done = self._finish(item, part, sha256, Result.TRANSFERRED, tally.transferred)
                return dataclasses.replace(done, damaged=damaged)
            except WrongBytesError as wrong:
                part.unlink(missing_ok=True)
                if last:
                    return Outcome(item, Result.FAILED, tally.transferred, (wrong.finding,), damaged=damaged)
                self.progress.note(f"{blob.path}: {wrong.finding.message}; fetching it again from byte 0")
                self._bringer.again(tally)
                start = 0
        raise AssertionError("unreachable")

    def _judged(self, base: Base, file: FileSource, error: Exception, tally: Tally) -> str | None:
        """The base's path, if wrong bytes are its doing: it does not have its sha256 any more."""
        if not isinstance(error, WrongBytesError):
            return None
        sha256 = self._bringer.hash(file.fd, 0, file.size, tally=tally)
        return base.path if sha256 != base.sha256 else None

    def _again_from_quarantine(self, item: Item) -> Outcome:
        """Look at the quarantined bytes once more: a newer poolmgr may judge otherwise."""
        held = self.quarantine.file(item.blob.sha256)
        findings: tuple[Finding, ...] = ()
        if held.exists():
            with FileSource(held) as source:
                report = check(source, Level.MOUNT, allow_legacy=self.allow_legacy)
                sha256 = self._bringer.hash(source.fd, 0, source.size) if report.verdict.passes else None
                good = sha256 is not None and sha256 == item.blob.sha256
            if good:
                outcome = self._finish(item, held, item.blob.sha256 or "", Result.KEPT, 0)
                self.quarantine.forget(item.blob.sha256)
                return outcome
            findings = report.findings
        return Outcome(item, Result.QUARANTINED, findings=quarantine_findings(item.blob, findings))

    # --- proof and final name ------------------------------------------------------------------------

    def _finish(self, item: Item, part: Path, sha256: str, result: Result, sent: int) -> Outcome:
        """Check the finished bytes and give them their name; a right file that is there already stays."""
        blob = item.blob
        with FileSource(part) as source:
            report = check(source, Level.MOUNT, allow_legacy=self.allow_legacy)
            if result is Result.COPIED:
                with mapped_os_errors(part):
                    os.fsync(source.fd)
        if not report.verdict.passes:
            return self._quarantine(item, part, sha256, report, sent)
        final = self.folder.root / blob.path
        self.landing.make_parent(final)
        try:
            publish(part, final)
        except AlreadyExistsError:
            if item.state is not State.WRONG and item.state is not State.UNPROVEN:
                # another fetch was faster; its file has to prove itself like any other
                theirs = self._prove_in_place(item)
                if theirs is not None:
                    part.unlink(missing_ok=True)
                    return theirs
            replace(part, final)
        self.landing.changed(final.parent)
        self._attest(blob.path, final, sha256, report, placed=True)
        return Outcome(item, result, sent, report.findings, sha256)

    def _quarantine(self, item: Item, path: Path, sha256: str, report: Report, sent: int = 0) -> Outcome:
        """Right bytes, no valid image: out of the way, remembered by sha256, with the reasons beside it."""
        blob = item.blob
        if report.verdict is Verdict.UNCHECKED:
            found = Finding(
                "not-checked", "the image could not be checked here: " + "; ".join(map(str, report.findings))
            )
            return Outcome(item, Result.FAILED, sent, (found, *report.findings), sha256)
        findings = self.quarantine.hold(blob, path, sha256, report)
        self.landing.changed(path.parent)
        return Outcome(item, Result.QUARANTINED, sent, findings, sha256)

    def _attest(self, path: str, file: Path, sha256: str, report: Report, *, placed: bool = False) -> None:
        self.attest.add(
            Attestation(
                pool=self.identity,
                path=path,
                stamp=Stamp.of(file.stat(follow_symlinks=False)),
                checks={**report.checks, "hash": Verdict.OK},
                sha256=sha256,
                findings=report.findings,
                arch=report.arch,
                versions={"poolmgr": __version__},
                time=time.time(),
                placed=placed,
            )
        )

    # --- small things -------------------------------------------------------------------------------

    def holders(self, blob: Blob) -> tuple[tuple[str, int, int], ...]:
        """Partial files of runs that are not surely dead, this one left out: (name, size, mtime_ns)."""
        alive = self._alive(self.partials.of(self._key(blob)))
        return tuple((p.path.name, p.size, p.mtime_ns) for p in alive)

    def _alive(self, begun: list[Partial]) -> list[Partial]:
        return [p for p in begun if not self.partials.is_mine(p) and not self.partials.surely_dead(p)]

    def _key(self, blob: Blob) -> str:
        """The blob's sha256; where the pool gives none, a key of its own address (never continued)."""
        return blob.sha256 or hashlib.sha256(f"{self.store.address}\0{blob.path}".encode()).hexdigest()


def _why_whole(base: Base, error: Exception, damaged: str | None) -> str:
    if damaged is not None:
        return f"its base {damaged} has not the bytes any more that were proven"
    if isinstance(error, WrongBytesError):
        return f"what the pool says that it shares with {base.path} is wrong"
    return f"it cannot be made of {base.path}: {error}"
