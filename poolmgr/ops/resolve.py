"""``resolve``: from a task or an image reference to one absolute path, or an error. No network."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from poolmgr.errors import (
    AmbiguousError,
    ChangedSinceProvenError,
    EmptyFileError,
    InvalidImageError,
    MissError,
    PoolError,
    UnknownTaskError,
    UsageError,
)
from poolmgr.model.blob import check_path, path_trouble
from poolmgr.model.finding import Finding, Level, Severity
from poolmgr.model.index import nearest
from poolmgr.ops.view import PoolView
from poolmgr.plan.proof import Need, judge

MISSES: tuple[type[PoolError], ...] = (
    UnknownTaskError, MissError, AmbiguousError, EmptyFileError, InvalidImageError, ChangedSinceProvenError,
)  # fmt: skip
"""What says of one task that it has no image to use; any other error is about the pool or the request."""
_ERRORS: dict[str, type[PoolError]] = {
    "zero-byte": EmptyFileError,
    "wrong-size": ChangedSinceProvenError,
    "wrong-hash": ChangedSinceProvenError,
    "changed-since-proven": ChangedSinceProvenError,
}


def resolve_task(view: PoolView, task: str, variant: str | None = None) -> Path:
    """The image of ``task``, absolute and proven. ``variant`` may be left out where only one has the task.

    Raises ``UnknownVariantError``, ``UnknownTaskError``, ``AmbiguousError``, ``MissError``,
    ``EmptyFileError``, ``InvalidImageError``, ``ChangedSinceProvenError``.
    """
    index = view.index
    if variant is None:
        paths = {v: tasks[task] for v, tasks in index.variants.items() if task in tasks}
        if len(set(paths.values())) > 1:
            raise AmbiguousError(
                f"task {task!r} has different images in the variants {', '.join(map(repr, paths))}",
                hint="name the variant",
                details=[f"{v}: {p}" for v, p in paths.items()],
            )
        variant = next(iter(paths), None) or next(iter(index.variants))
    lock = view.locks.get(variant)
    try:
        path = index.blob(variant, task)
    except UnknownTaskError as e:
        if lock is None or not lock.subset:
            raise
        unknown = e
        raise UnknownTaskError(
            f"{e.message}: this mirror holds {len(lock.tasks):,} of {lock.total_tasks:,} tasks",
            hint=lambda: unknown.hint or "fetch the task too ('poolmgr fetch --tasks')",
        ) from None
    return vouch(view, path, f"task {task!r} of {variant!r}")


def resolve_reference(view: PoolView, reference: str) -> Path:
    """The image that answers to an image reference, absolute and proven (docs/cli/resolve.md).

    What ends in ``.sif`` is a path, passed through if the file is there and is an image; a relative
    one may be a blob's path in the pool. Raises what
    ``resolve_task`` raises, and ``ReferenceInvalidError`` for a reference that is none.
    """
    if is_path(reference):
        return _path_itself(view, reference)
    match = view.names.find(reference)
    return vouch(view, match.path, f"reference {reference!r}")


def is_path(reference: str) -> bool:
    """Whether ``reference`` names a file, and so no image of a registry."""
    return reference.endswith(".sif") and "://" not in reference


def _path_itself(view: PoolView, name: str) -> Path:
    """A ``.sif`` path: under the pool's own rules where it lies in the pool, else looked at on the spot.

    A relative one that is not here may be a blob's path in the pool.
    """
    who = f"path {name!r}"
    file, whole = Path(name), Path(name).absolute()
    if view.root is not None:
        if whole.is_relative_to(view.root.absolute()):
            path = whole.relative_to(view.root.absolute()).as_posix()
            return vouch(view, check_path(path, "resolve"), who)
        if not file.is_absolute() and not os.path.lexists(file) and path_trouble(name) is None:
            return vouch(view, name, who)
    try:
        size = whole.stat().st_size
    except OSError as e:
        raise MissError(
            f"{who}: {e.strerror}", hint="a path is passed through only when the file is there"
        ) from None
    if size == 0:
        raise EmptyFileError(f"{who} has 0 bytes", hint="fetch the blob again")
    _look(whole, who, view.manifest.gates.arch)
    return whole


def vouch(view: PoolView, path: str, who: str) -> Path:
    """The absolute path of the blob ``path`` if it may be used as it lies there; the error names ``who``."""
    if view.root is None:
        raise UsageError(
            f"{view.address} is no folder, so nothing in it has a path",
            hint="fetch the variant first, then resolve in the mirror",
        )
    file = view.root.absolute() / path
    where = f"{who}: {file}"
    try:
        st = os.lstat(file)
        if stat.S_ISLNK(st.st_mode):
            st = _through_link(view.root, file, where)
    except (FileNotFoundError, NotADirectoryError):
        raise _miss(view, path, who) from None
    except PermissionError as e:
        raise MissError(f"{where}: {e.strerror}", hint="ask the pool's owner for read permission") from None
    if not stat.S_ISREG(st.st_mode):
        raise MissError(f"{where} is not a file", hint="run 'poolmgr audit' on the pool")
    recorded = view.recorded(path)
    arch = view.manifest.gates.arch
    judgement = judge(recorded, st.st_size, view.attested.standing(path, st), Level.MOUNT, arch)
    if judgement.need is not Need.NOTHING and view.attest_folder is not None:
        view.__dict__.pop("attested", None)  # another process may have proven it since we looked
        judgement = judge(recorded, st.st_size, view.attested.standing(path, st), Level.MOUNT, arch)
    if judgement.finding is not None:
        raise _refused(judgement.finding, where)
    if judgement.need is Need.HASH:
        raise ChangedSinceProvenError(
            f"{where}: nothing that still holds says that this file has the sha256 on record",
            hint="it changed or was copied since it was proven: 'poolmgr audit' hashes it again",
        )
    if judgement.need is Need.CHECK:
        _look(file, where, arch)
    return file


def _look(file: Path, where: str, arch: str | None) -> None:
    """Nothing is on record of the file: look at what the kernel would look at (about 0.1 ms)."""
    from poolmgr.sif.check import check
    from poolmgr.sif.source import FileSource

    try:
        with FileSource(file) as source:
            report = check(source, Level.MOUNT, arch=arch)
    except PermissionError as e:
        raise MissError(f"{where}: {e.strerror}", hint="ask the pool's owner for read permission") from None
    if not report.verdict.passes:
        worst = next((f for f in report.findings if f.severity is Severity.ERROR), None)
        raise _refused(worst or Finding("not-checked", f"the image is {report.verdict.value}"), where)


def _through_link(root: Path, file: Path, where: str) -> os.stat_result:
    real = file.resolve()
    if not real.is_relative_to(root.resolve()):
        raise MissError(
            f"{where} is a symbolic link that leaves the pool",
            hint="put the file itself into the pool: a bind mount does not show a link's target",
        )
    try:
        return real.stat()
    except FileNotFoundError:
        raise MissError(
            f"{where} is a symbolic link that leads nowhere",
            hint="restore its target, or fetch the blob again",
        ) from None


def _refused(finding: Finding, where: str) -> PoolError:
    kind = _ERRORS.get(finding.code, InvalidImageError)
    return kind(
        f"{where}: {finding}", hint=f"finding {finding.code}: see docs/findings.md; fetch the blob again"
    )


def _miss(view: PoolView, path: str, who: str) -> MissError:
    def hint() -> str:
        name = path.rpartition("/")[2]
        there = [p for p in view.listing.blobs if p.rpartition("/")[2] == name]
        close = there or nearest(path, view.listing.blobs, 1)
        near = f"nearest there: {close[0]}; " if close else ""
        return near + "fetch the variant again, or run 'poolmgr audit'"

    return MissError(f"{who}: expected {path}, which is not in {view.address}", hint=hint)
