"""``verify``: whether images are really valid, file by file, to the level asked for.

Unlike ``audit`` it always looks: what attestations say is not believed, only written anew. A file
is read at most once, for its hash, its signatures' digests and its data together.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from poolmgr import __version__
from poolmgr.errors import CredentialsError, PoolError
from poolmgr.model.attestation import LEVELS, Attestation
from poolmgr.model.finding import Finding, Level, Severity, Verdict
from poolmgr.model.stamp import Stamp
from poolmgr.ops.attest import AttestWriter
from poolmgr.ops.processes import spread
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.seen import Seen, Unseen, see, see_all
from poolmgr.ops.targets import Target
from poolmgr.ops.verified import Result, Verified, Wish, absent, for_another_machine, of_this_machine
from poolmgr.sif.apptainer import Apptainer, Said
from poolmgr.sif.check import How, Report, check
from poolmgr.sif.data import processors
from poolmgr.sif.header import arch_finding, finding, read_container
from poolmgr.sif.identity import file_sha256, partition_sha256, tree_sha256
from poolmgr.sif.image import open_image
from poolmgr.sif.source import FileSource, Source
from poolmgr.sif.squashfs import DamageError
from poolmgr.sif.stop import StoppedError

REMOTE_JOBS = 8
CHUNK = 64
"""Images that are handed to a thread or process at once, where a glance is enough."""
MANY = 3000
"""From so many glances on, several processes are quicker than one; starting them costs as many."""
TABLES = 20
"""Glances that the tables of an image take."""


class Verifier:
    """One run. ``results`` may be taken as they come; what is proven is attested as it is proven."""

    def __init__(self, wish: Wish, progress: Progress | None = None) -> None:
        self.wish = wish
        self.progress = progress or Silent()
        self.notes: list[str] = []
        self.versions = {"poolmgr": __version__}
        self._writers: dict[Path, AttestWriter | None] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._apptainer = Apptainer.find() if wish.inspect or wish.run else None
        if self._apptainer is not None:
            self.versions["apptainer"] = self._apptainer.version

    def verify(self, targets: Sequence[Target]) -> Verified:
        """Look at every target; see ``results``."""
        results = tuple(self.results(targets))
        return Verified(self.wish, results, tuple(dict.fromkeys(self.notes)), self.versions)

    def results(self, targets: Sequence[Target]) -> Generator[Result, None, None]:
        """The results in the order of ``targets``. What came before Ctrl-C is attested."""
        jobs = self.wish.jobs or (processors() if all(t.file for t in targets) else REMOTE_JOBS)
        size = sum(_size(t) for t in targets) if self._heavy else 0
        self.progress.begin("verifying", files=len(targets), size=size)
        spread_out = self.wish.processes and jobs > 1 and self._glances(targets) >= MANY
        try:
            yield from (self._by_processes if spread_out else self._by_threads)(targets, jobs)
        finally:
            self._stop.set()
            self._close()
            self.progress.end()

    @property
    def _heavy(self) -> bool:
        """Whether whole files are read."""
        return self.wish.hashing or self.wish.level is Level.DATA

    def _glances(self, targets: Sequence[Target]) -> int:
        """How much there is to do for Python alone, in images at level mount; 0 where others do the work."""
        wish = self.wish
        if (
            self._heavy
            or wish.inspect
            or wish.run
            or wish.identities
            or any(t.file is None and t.wrong is None for t in targets)
        ):
            return 0
        return len(targets) * (TABLES if wish.level is Level.TABLES else 1)

    def _by_threads(self, targets: Sequence[Target], jobs: int) -> Iterator[Result]:
        # Few files: one after the other, each on all processors. Many: each on one.
        at_once = min(jobs, len(targets)) if not self._heavy or len(targets) >= 2 * jobs else 1
        threads = max(1, jobs // max(1, at_once))

        def several(chunk: Sequence[Target]) -> list[Result]:
            results = []
            for target in chunk:
                if self._stop.is_set():
                    break
                try:
                    results.append(self._look(target, threads))
                except StoppedError:
                    break
                if self._heavy:
                    self.progress.advance(results[-1].size or 0)
                self.progress.file_done(target.shown)
            return results

        # a glance takes less time than handing it to a thread
        step = (
            1
            if self._heavy or self._apptainer_names()
            else max(1, min(CHUNK, len(targets) // (8 * at_once + 1)))
        )
        pool = ThreadPoolExecutor(max(1, at_once), thread_name_prefix="verify")
        try:
            for results in pool.map(several, _chunks(targets, step)):
                yield from results
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _by_processes(self, targets: Sequence[Target], jobs: int) -> Iterator[Result]:
        how = How(allow_legacy=self.wish.allow_legacy, threads=1)
        see = partial(see_all, level=self.wish.level, how=how)
        files = ([str(t.file or "") for t in chunk] for chunk in _chunks(targets, CHUNK))
        pending = iter(targets)
        for several in spread(see, files, jobs):
            for seen, target in zip(several, pending, strict=False):
                yield self._of_file(target, seen, 1)
                self.progress.file_done(target.shown)

    # --- one image ----------------------------------------------------------------------------------

    def _look(self, target: Target, threads: int) -> Result:
        if target.wrong is not None:
            return absent(target, target.wrong)
        if target.file is None:
            return self._remote(target, threads)
        seen = see(target.file, self.wish.level, **self._how(self._expected(target), threads))
        return self._of_file(target, seen, threads)

    def _of_file(self, target: Target, seen: Seen | Unseen, threads: int) -> Result:
        if target.wrong is not None:
            return absent(target, target.wrong)
        assert target.file is not None
        if isinstance(seen, Unseen):
            if seen.wrong.code == "not-checked":
                return self._unknown(target, seen.wrong.message)
            return absent(target, seen.wrong)
        size = seen.stamp.size
        result = self._from_report(target, size, seen.report)
        if target.blob is not None and target.blob.size != size:
            wrong = finding("wrong-size", f"{target.blob.size} bytes are on record, the file has {size}")
            result = replace(
                result, findings=(wrong, *result.findings), checks={**result.checks, "listed": Verdict.BAD}
            )
        foreign = arch_finding(result.arch, self.wish.arch)
        result = self._apptainer_checks(target.file, result, foreign)
        if self.wish.identities:
            with FileSource(target.file) as source:
                result = self._identities(source, result, threads)
        self._attest(target, seen.stamp, result)
        return for_another_machine(result, foreign)

    def _how(self, expected: str | None, threads: int) -> How:
        """All that does not depend on the machine that is to run the image."""
        return How(
            allow_legacy=self.wish.allow_legacy, sha256=expected, hashing=self.wish.hashing,
            threads=threads, stop=self._stop.is_set,
        )  # fmt: skip

    def _expected(self, target: Target) -> str | None:
        if self.wish.sums is not None:
            return self.wish.sums.get(target.shown)
        return target.blob.sha256 if target.blob is not None else None

    def _remote(self, target: Target, threads: int) -> Result:
        assert target.blob is not None
        try:
            report = check(target.remote(), self.wish.level, **self._how(self._expected(target), threads))
            result = self._from_report(target, target.blob.size, report)
            if self.wish.identities:
                result = self._identities(target.remote(), result, threads)
        except CredentialsError:
            raise
        except PoolError as e:
            return self._unknown(target, e.message)
        result = for_another_machine(result, arch_finding(result.arch, self.wish.arch))
        reasons = dict.fromkeys(self._apptainer_names(), "Apptainer reads files only: fetch it first")
        return replace(result, reasons={**result.reasons, **reasons})

    def _from_report(self, target: Target, size: int, report: Report) -> Result:
        reasons: dict[str, str] = {}
        looked = [name for name in report.checks if name in LEVELS]
        if report.verdict is Verdict.UNCHECKED:
            said = "; ".join(report.unchecked) or "it could not be looked at"
            reasons[self.wish.level.value] = said
        elif looked and looked[-1] != self.wish.level.value and report.verdict.passes:
            reasons[self.wish.level.value] = f"only {looked[-1]} was looked at"
        if self.wish.hashing and "hash" not in report.checks and report.verdict is not Verdict.BAD:
            reasons["hash"] = "no sha256 is on record to compare with"
        return Result(target, size, report.checks, report.findings, reasons, report.arch, report.sha256)

    def _apptainer_names(self) -> list[str]:
        return [name for name in ("inspect", "run") if name in self.wish.asked]

    def _apptainer_checks(self, file: Path, result: Result, foreign: Finding | None) -> Result:
        for name in self._apptainer_names():
            if self._apptainer is None:
                said = Said(Verdict.UNCHECKED, "neither apptainer nor singularity is installed")
            elif _damaged(result):
                said = Said(Verdict.UNCHECKED, "not asked: the image does not pass mount")
            elif foreign is not None:
                said = Said(Verdict.UNCHECKED, "not asked: the image is for another architecture")
            else:
                said = self._apptainer.inspect(file) if name == "inspect" else self._apptainer.run_true(file)
            if said.verdict is Verdict.UNCHECKED:
                result = replace(result, reasons={**result.reasons, name: said.message})
            else:
                result = replace(
                    result,
                    checks={**result.checks, name: said.verdict},
                    findings=(*result.findings, *said.findings),
                )
        return result

    def _identities(self, source: Source, result: Result, threads: int) -> Result:
        try:
            stop = self._stop.is_set
            found = {"file_sha256": result.sha256 or file_sha256(source, stop=stop)}
            partition = partition_sha256(source, read_container(source), stop=stop)
            if partition is not None:
                found["partition_sha256"] = partition
            if not _damaged(result):
                found["tree_sha256"] = tree_sha256(open_image(source), threads=threads, stop=stop)
        except CredentialsError:
            raise
        except (PoolError, DamageError, OSError) as e:
            return replace(result, reasons={**result.reasons, "identity": str(e)})
        return replace(result, identities=found)

    def _unknown(self, target: Target, why: str) -> Result:
        said = (finding("not-checked", why),)
        return Result(target, None, {}, said, {self.wish.level.value: why})

    # --- what is remembered -------------------------------------------------------------------------

    def _attest(self, target: Target, stamp: Stamp, result: Result) -> None:
        view = target.view
        if view is None or target.path is None or view.identity is None or view.attest_folder is None:
            return
        checks = {n: v for n, v in result.checks.items() if not of_this_machine(result, n, v)}
        try:
            writer = self._writer(view.attest_folder)
            if writer is None:
                return
            writer.add(
                Attestation(
                    pool=view.identity,
                    path=target.path,
                    stamp=stamp,
                    checks=checks,
                    sha256=result.sha256,
                    findings=tuple(
                        f
                        for f in result.findings
                        if f.severity is not Severity.NOTE and f.code != "wrong-arch"
                    ),
                    arch=result.arch,
                    versions=self.versions,
                    time=time.time(),
                )
            )
        except PoolError as e:
            self._not_kept(view.attest_folder, e.message)

    def _writer(self, folder: Path) -> AttestWriter | None:
        with self._lock:
            if folder not in self._writers:
                nearest = folder
                while not nearest.exists() and nearest != nearest.parent:
                    nearest = nearest.parent
                if os.access(nearest, os.W_OK | os.X_OK):
                    self._writers[folder] = AttestWriter(folder)
                else:
                    self._writers[folder] = None
                    self.notes.append(f"what was proven is not remembered: {nearest} cannot be written")
            return self._writers[folder]

    def _not_kept(self, folder: Path, why: str) -> None:
        with self._lock:
            self._writers[folder] = None
            self.notes.append(f"what was proven is not remembered: {why}")

    def _close(self) -> None:
        for folder, writer in list(self._writers.items()):
            if writer is not None:
                try:
                    writer.close()
                except PoolError as e:
                    self._not_kept(folder, e.message)
        self._writers.clear()


def _damaged(result: Result) -> bool:
    """Whether the image is not fit to be mounted, whatever a deeper level says."""
    return any(result.checks.get(name) is Verdict.BAD for name in ("listed", "header", "mount"))


def _chunks(targets: Sequence[Target], step: int) -> Iterator[Sequence[Target]]:
    return (targets[i : i + step] for i in range(0, len(targets), step))


def _size(target: Target) -> int:
    if target.file is None:
        return target.blob.size if target.blob is not None else 0
    try:
        return target.file.stat().st_size
    except OSError:
        return 0
