"""The files of a push: found, checked as images, and identified, each once and several at a time."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poolmgr.errors import BadFileError, NothingComparedError, PoolError
from poolmgr.model.finding import Finding, Level, Severity, Verdict
from poolmgr.model.stamp import Stamp
from poolmgr.ops.image_checks import ImageCheck
from poolmgr.ops.progress import Progress
from poolmgr.ops.targets import SUFFIXES
from poolmgr.plan.coverage import found
from poolmgr.sif.check import check
from poolmgr.sif.derived import provenance_of
from poolmgr.sif.header import read_container
from poolmgr.sif.identity import tree_sha256
from poolmgr.sif.image import Image, open_image
from poolmgr.sif.source import FileSource
from poolmgr.sif.squashfs import DamageError

PIECE = 4 << 20
MAPS = ".tasks.json"
"""Ending of the map that ``derive`` writes beside its images."""
_BUILT_BY = "org.label-schema.usage.singularity.version"


@dataclass(frozen=True)
class Demand:
    """What every file must pass."""

    level: Level = Level.MOUNT
    arch: str | None = None
    min_bytes: int = 0
    checks: tuple[ImageCheck, ...] = ()
    required: frozenset[str] = frozenset()
    """Checks that may not stay undone (``inspect`` where the manifest requires it)."""
    identity: bool = True
    """Whether the tree identity is computed."""
    trees: Mapping[str, str] = field(default_factory=dict)
    """sha256 -> tree_sha256, where the pool has it on record: it is not computed again."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file that passed, as it was when it was looked at."""

    key: str
    """As the user named it."""
    path: Path
    stamp: Stamp
    sha256: str
    xxh3: str
    """xxh3_128 of all bytes: whether they changed, never what they are."""
    tree_sha256: str | None
    arch: str | None
    provenance: Mapping[str, Any] | None
    """What the image says it was derived from (sif/derived.provenance_of); None for a plain one."""
    built_with: str | None
    checks: Mapping[str, Verdict]
    """What it passed, as attestations name it."""
    findings: tuple[Finding, ...] = ()
    """What is unusual about it."""
    notes: tuple[str, ...] = ()
    """What could not be checked."""

    @property
    def size(self) -> int:
        return self.stamp.size

    @property
    def derived(self) -> bool:
        return self.provenance is not None


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that must not be pushed."""

    key: str
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        return f"{self.key}: " + "; ".join(f"{f.code}: {f}" for f in self.findings)


def find_files(words: Iterable[str]) -> tuple[dict[str, str], tuple[Path, ...]]:
    """(absolute path -> file as the user named it, the maps that lie in the folders named).

    A folder stands for the images directly in it, as ``derive`` leaves them. ``BadFileError`` lists
    every word that leads to nothing that could be pushed.
    """
    files: dict[str, str] = {}
    maps: list[Path] = []
    problems = []
    for word in words:
        try:
            mode = os.lstat(word).st_mode
            if stat.S_ISDIR(mode):
                inside = sorted(os.listdir(word))
                images = [name for name in inside if name.lower().endswith(SUFFIXES) and name[0] != "."]
                if not images:
                    problems.append(f"{word}: no image lies directly in this folder")
                for name in images:
                    files.setdefault(os.path.abspath(os.path.join(word, name)), os.path.join(word, name))
                maps += [Path(word, name) for name in inside if name.endswith(MAPS)]
            elif stat.S_ISREG(mode):
                files.setdefault(os.path.abspath(word), word)
            elif stat.S_ISLNK(mode):
                problems.append(f"{word}: a symbolic link, to {os.readlink(word)}; name the file itself")
            else:
                problems.append(f"{word}: not a regular file")
        except OSError as e:
            problems.append(f"{word}: {e.strerror}")
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if problems[1:] else ""
        raise BadFileError(problems[0] + more, hint="nothing was written", details=problems)
    return files, tuple(maps)


def examine(
    files: Mapping[str, str], demand: Demand, jobs: int, progress: Progress
) -> tuple[tuple[LocalFile, ...], tuple[Refused, ...]]:
    """Every file of ``files`` (absolute path -> key), checked and identified; those that fail apart."""
    if not files:
        return (), ()
    stop = threading.Event()
    size = 0
    for path in files:
        try:
            size += os.stat(path).st_size
        except OSError:
            continue  # looking at it will say why
    progress.begin("checking and hashing", files=len(files), size=size)

    def one(item: tuple[str, str]) -> LocalFile | Refused | None:
        if stop.is_set():
            return None
        try:
            return _examine(Path(item[0]), item[1], demand, progress, stop)
        finally:
            progress.file_done(item[1])

    pool = ThreadPoolExecutor(max(1, min(jobs, len(files))), thread_name_prefix="push")
    try:
        results = list(pool.map(one, files.items()))
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        progress.end()
    good = tuple(r for r in results if isinstance(r, LocalFile))
    bad = tuple(r for r in results if isinstance(r, Refused))
    if len(good) + len(bad) != len(files):
        raise NothingComparedError("the run was stopped before every file was looked at")
    return good, bad


def fingerprint(path: Path, key: str) -> str:
    """xxh3_128 of the file's bytes as they are now."""
    import xxhash

    digest = xxhash.xxh3_128()
    try:
        with FileSource(path) as source:
            at = 0
            while piece := os.pread(source.fd, PIECE, at):
                digest.update(piece)
                at += len(piece)
    except OSError as e:
        raise BadFileError(f"{key}: cannot be read any more: {e.strerror}") from None
    return digest.hexdigest()


def changed(file: LocalFile) -> BadFileError:
    """The error for a file that is not what the plan was made of."""
    return BadFileError(
        f"{file.key}: changed since it was checked; no task was mapped",
        hint="run push again when its writer is done",
    )


# --- one file ---------------------------------------------------------------------------------------


def _examine(
    path: Path, key: str, demand: Demand, progress: Progress, stop: threading.Event
) -> LocalFile | Refused:
    try:
        with FileSource(path) as source:
            if os.path.islink(path):
                return Refused(key, (found("outward-link", "a symbolic link in place of the file"),))
            if not stat.S_ISREG(source.stat.st_mode):
                return Refused(key, (found("not-a-file", "not a regular file"),))
            return _identified(source, path, key, demand, progress, stop)
    except FileNotFoundError:
        return Refused(key, (found("missing", "it vanished"),))
    except PermissionError as e:
        return Refused(key, (found("unreadable", str(e.strerror).lower()),))
    except (PoolError, DamageError) as e:
        return Refused(key, (found("not-checked", str(e)),))
    except OSError as e:
        return Refused(key, (found("io-error", f"reading failed: {e.strerror}"),))


def _identified(
    source: FileSource, path: Path, key: str, demand: Demand, progress: Progress, stop: threading.Event
) -> LocalFile | Refused:
    before = Stamp.of(os.fstat(source.fd))
    if 0 < before.size < demand.min_bytes:
        return Refused(
            key, (found("below-floor", f"{before.size:,} bytes, under the floor of {demand.min_bytes:,}"),)
        )
    report = check(source, demand.level, arch=demand.arch, threads=1)
    if not report.verdict.passes:
        said = report.findings or (found("not-checked", "; ".join(report.unchecked) or "not checked"),)
        return Refused(key, said)
    sha256, xxh3 = _hashes(source, progress, stop)
    checks, bad, notes = _more_checks(path, demand)
    if bad:
        return Refused(key, bad)
    image = open_image(source, key)
    tree = demand.trees.get(sha256)
    if tree is None and demand.identity:
        tree = tree_sha256(image, threads=1)
    provenance = provenance_of(source, read_container(source))
    if Stamp.of(os.fstat(source.fd)) != before or Stamp.of(os.lstat(path)) != before:
        return Refused(key, (found("not-checked", "it changed while it was being read"),))
    checks = {**report.checks, "hash": Verdict.OK, **checks}
    unusual = tuple(f for f in report.findings if f.severity is not Severity.NOTE)
    return LocalFile(
        key, path, before, sha256, xxh3, tree, report.arch, provenance, _built_with(image, provenance),
        checks, unusual, notes,
    )  # fmt: skip


def _more_checks(
    path: Path, demand: Demand
) -> tuple[dict[str, Verdict], tuple[Finding, ...], tuple[str, ...]]:
    """(what passed, what is wrong, what was not checked though it was only wished for)."""
    passed: dict[str, Verdict] = {}
    bad: list[Finding] = []
    notes: list[str] = []
    for each in demand.checks:
        for name, said in each(path).items():
            if said.verdict.passes:
                passed[name] = said.verdict
                continue
            told = said.reason or "not checked"
            if said.verdict is Verdict.BAD:
                bad += said.findings
            elif name == "inspect" and name not in demand.required:
                notes.append(f"inspect: {told}")
            else:
                bad.append(found("not-checked", f"{name.partition(':')[0]}: {told}"))
    return passed, tuple(bad), tuple(notes)


def _hashes(source: FileSource, progress: Progress, stop: threading.Event) -> tuple[str, str]:
    """sha256 and xxh3_128 of the whole file, read once."""
    import xxhash

    sha256, xxh3 = hashlib.sha256(), xxhash.xxh3_128()
    at = 0
    while piece := os.pread(source.fd, PIECE, at):
        if stop.is_set():
            raise BadFileError("the run was stopped")
        sha256.update(piece)
        xxh3.update(piece)
        at += len(piece)
        progress.advance(len(piece))
    return sha256.hexdigest(), xxh3.hexdigest()


def _built_with(image: Image, provenance: Mapping[str, Any] | None) -> str | None:
    """What made the image, as it says itself: the tools of a derivation, else Apptainer's version."""
    if provenance is not None:
        tools = provenance.get("tools")
        if not isinstance(tools, dict):
            return None
        return ", ".join(f"{k} {v}" for k, v in sorted(tools.items()) if isinstance(v, str)) or None
    version = image.labels.get(_BUILT_BY)
    return f"apptainer {version}" if isinstance(version, str) and version.isprintable() else None
