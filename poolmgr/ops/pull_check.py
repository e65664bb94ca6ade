"""``pull --check``: does a stored plain blob still hold what its image reference holds?

The image is pulled again, into a scratch folder, and compared path by path: file bytes of two pulls
never agree, their trees do. What Apptainer itself writes into an image (labels with the reference as
it was written, its version, its scripts) is told, and is no difference. Nothing stored is changed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from poolmgr.errors import (
    BadFileError,
    DamagedImageError,
    Exit,
    NoSourceError,
    NothingComparedError,
    PoolError,
    ReferenceInvalidError,
    TreeDiffersError,
    UsageError,
)
from poolmgr.model.reference import Reference, parse_reference
from poolmgr.ops.crew import crew
from poolmgr.ops.progress import Progress
from poolmgr.ops.pull import ENDS_THE_RUN, LOOKUPS
from poolmgr.ops.pull_build import Builder, Layers, Turns
from poolmgr.ops.pull_facts import Request, exit_of, names_in
from poolmgr.ops.pull_record import pulled_files
from poolmgr.ops.view import PoolView
from poolmgr.plan.naming import Aliases
from poolmgr.plan.placement import batch_number
from poolmgr.plan.pull import PullPlan, Refused
from poolmgr.plan.shard import Shard
from poolmgr.sif.apptainer import Apptainer
from poolmgr.sif.compare import Difference, difference
from poolmgr.sif.image import open_image
from poolmgr.sif.source import FileSource
from poolmgr.sif.squashfs import DamageError
from poolmgr.store.blobs_table import TABLE_NAME, read_sources
from poolmgr.store.oci import Registries
from poolmgr.temporary import scratch_folder

TOLD = 1000
"""Paths of a difference that are listed; the count says how many there are."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A stored file, and the image that it should hold."""

    path: str
    """As the user knows it: inside the pool, or as it was given."""
    file: Path
    reference: Reference
    digest: str | None = None
    """The registry's digest when it was pulled, where that is on record."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A subject, and what the registry has for its reference now."""

    subject: Subject
    digest: str | None = None
    error: PoolError | None = None

    @property
    def moved(self) -> bool | None:
        """Whether the registry has another digest than the recorded one; None where none is recorded."""
        if self.digest is None or self.subject.digest is None:
            return None
        return self.digest != self.subject.digest


class Result(StrEnum):
    SAME = "same"
    FAILED = "failed"
    """It differs, or could not be compared."""
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True)
class Checked:
    sight: Sight
    result: Result
    own: tuple[str, ...] = ()
    """Files of Apptainer's own that differ, and do not count."""
    error: PoolError | None = None


@dataclass(frozen=True)
class Checks:
    checked: tuple[Checked, ...]
    refused: tuple[Refused, ...] = ()
    stopped_by: PoolError | None = None

    def of(self, result: Result) -> tuple[Checked, ...]:
        return tuple(c for c in self.checked if c.result is result)

    @property
    def exit(self) -> Exit:
        return exit_of([c.error for c in self.checked if c.error] + [r.error for r in self.refused])


# --- which files -------------------------------------------------------------------------------------


def subjects(
    view: PoolView | None, paths: Iterable[str], chosen: PullPlan, shard: Shard | None = None
) -> tuple[tuple[Subject, ...], tuple[Refused, ...], int]:
    """What to compare: files by ``paths``, the blobs of ``chosen`` references, or all that are on record.

    With ``shard`` (the one that ``chosen`` was made with) only its own; the last value is how many
    are for others.
    """
    found: dict[Path, Subject] = {}
    refused = list(chosen.refused)
    elsewhere = chosen.elsewhere

    def mine(path: str) -> bool:
        nonlocal elsewhere
        held = shard is None or shard.holds(path.rpartition("/")[2])
        elsewhere += not held
        return held

    def add(subject: Subject) -> None:
        found.setdefault(subject.file.absolute(), subject)

    paths = list(paths)
    for path in filter(mine, paths):
        try:
            add(_by_path(view, path))
        except PoolError as e:
            refused.append(Refused(path, e))
    if chosen.items:
        root = _root(view, "a reference is compared with the blob of a pool")
        assert view is not None
        names = names_in(view)
        for item in chosen.items:
            try:
                blob = names.find(item.given[0]).path
                add(Subject(blob, root / blob, item.reference, item.reference.digest))
            except PoolError as e:
                refused.append(Refused(item.given[0], e, item.tasks))
    if not paths and not chosen.items and not chosen.refused and not chosen.elsewhere:
        _root(view, "nothing was named")
        assert view is not None
        for blob, subject in _on_record(view).items():
            if not mine(blob):
                continue
            if isinstance(subject, PoolError):
                refused.append(Refused(blob, subject))
            else:
                add(subject)
    if not found and not refused and not elsewhere:
        raise NothingComparedError("there is no plain blob to compare", hint="give PATH…, REF… or -p POOL")
    return tuple(found.values()), tuple(refused), elsewhere


def _root(view: PoolView | None, what: str) -> Path:
    if view is None:
        raise UsageError(what, hint="give -p POOL, or the path of a file that 'poolmgr pull' made")
    if view.root is None:
        raise UsageError(
            f"files are compared where they lie, and {view.address} is no folder",
            hint="fetch the variant first, then check the mirror",
        )
    return view.root


def _by_path(view: PoolView | None, path: str) -> Subject:
    file = Path(path)
    if not file.is_file():
        raise BadFileError(f"{path}: no such file", hint="give the path of an image, or its reference")
    row = pulled_files(file.parent).get(file.name)
    if row is not None:
        return Subject(path, file, parse_reference(row.source), row.source_digest)
    if view is not None and view.root is not None and file.absolute().is_relative_to(view.root.absolute()):
        known = _on_record(view).get(file.absolute().relative_to(view.root.absolute()).as_posix())
        if isinstance(known, Subject):
            return known
    raise _no_source(path)


def _no_source(path: str) -> NoSourceError:
    return NoSourceError(
        f"{path}: nothing on record says which image it holds",
        hint="give its reference with -p POOL: 'poolmgr pull --check REF -p POOL'",
    )


def _on_record(view: PoolView) -> dict[str, Subject | PoolError]:
    """Plain blob -> what it should hold, by ``blobs.parquet`` and by the records of pulls into the pool."""
    root = _root(view, "")
    sources: dict[str, tuple[str, str | None]] = {
        name: (row.source, row.source_digest) for name, row in pulled_files(root).items()
    }
    if (root / TABLE_NAME).is_file():
        sources |= read_sources(view.store)
    aliases = Aliases(view.manifest.aliases)
    found: dict[str, Subject | PoolError] = {}
    for blob in view.listing.blobs:
        derived = batch_number(view.manifest.layout.derived, blob.rpartition("/")[0]) is not None
        if derived or not blob.endswith(".sif"):
            continue
        if blob not in sources:
            found[blob] = _no_source(blob)
            continue
        source, digest = sources[blob]
        try:
            found[blob] = Subject(
                blob, root / blob, parse_reference(aliases.rewrite(source) or source), digest
            )
        except ReferenceInvalidError as e:
            found[blob] = e
    return found


# --- the comparison ----------------------------------------------------------------------------------


class PullCheck:
    """One run: ``plan()``, then ``carry_out``."""

    def __init__(
        self,
        wanted: tuple[Subject, ...],
        refused: tuple[Refused, ...],
        request: Request,
        registries: Registries,
        progress: Progress,
    ) -> None:
        self.wanted = wanted
        self.refused = refused
        self.request = request
        self.registries = registries
        self.progress = progress
        self.stop = threading.Event()
        self._turns = Turns(request.per_registry)
        self._halt: PoolError | None = None

    def interrupt(self) -> None:
        self.stop.set()
        self.registries.close()

    def plan(self) -> tuple[Sight, ...]:
        """What the registry has for each reference now."""
        self.progress.begin("looking up", files=len(self.wanted))

        def look(_: int, subject: Subject) -> Sight:
            try:
                return Sight(subject, self.registries.point(subject.reference).digest)
            except PoolError as e:
                return Sight(subject, error=e)
            finally:
                self.progress.file_done(subject.path)

        try:
            return tuple(crew(self.wanted, LOOKUPS, look, self.interrupt))
        finally:
            self.progress.end()

    def carry_out(self, plan: tuple[Sight, ...]) -> Checks:
        """Pull each again and compare. Nothing that is stored is touched."""
        if not any(sight.digest for sight in plan):
            done = [Checked(sight, Result.FAILED, error=sight.error) for sight in plan]
            return Checks(tuple(done), self.refused)
        builder = Builder(
            Apptainer.need(), self.registries, self.request.arch, self.progress.note, self.stop,
            identity=False, tries=self.request.tries,
        )  # fmt: skip
        jobs = max(1, min(self.request.jobs, len(plan)))
        self.progress.begin("pulling and comparing", files=len(plan))
        try:
            with scratch_folder() as scratch:
                layers = [Layers(scratch / f"layers-{number}") for number in range(jobs)]

                def one(worker: int, sight: Sight) -> Checked:
                    try:
                        return self._one(builder, sight, scratch, layers[worker])
                    finally:
                        self.progress.file_done(sight.subject.path)

                return Checks(tuple(crew(plan, jobs, one, self.interrupt)), self.refused, self._halt)
        finally:
            self.progress.end()

    def _one(self, builder: Builder, sight: Sight, scratch: Path, layers: Layers) -> Checked:
        if sight.error is not None or sight.digest is None:
            return Checked(sight, Result.FAILED, error=sight.error)
        if self._halt is not None or self.stop.is_set():
            return Checked(sight, Result.UNTRIED)
        subject = sight.subject
        try:
            with scratch_folder(scratch) as own:
                made = own / "again.sif"
                with self._turns.of(subject.reference.host):
                    if self._halt is not None or self.stop.is_set():
                        return Checked(sight, Result.UNTRIED)
                    builder.build(subject.reference, sight.digest, made, own, layers)
                builder.look(made, made.name, subject.reference, sight.digest)
                found = _compare(subject, made)
        except PoolError as e:
            if self.stop.is_set():
                return Checked(sight, Result.UNTRIED)
            if isinstance(e, ENDS_THE_RUN):
                self._halt = self._halt or e
            return Checked(sight, Result.FAILED, error=e)
        except OSError as e:
            return Checked(sight, Result.FAILED, error=BadFileError(f"{subject.path}: {e.strerror}"))
        if found.of_the_image:
            return Checked(sight, Result.FAILED, error=_differs(sight, found.of_the_image))
        return Checked(sight, Result.SAME, own=found.lines())


def _compare(subject: Subject, made: Path) -> Difference:
    try:
        with FileSource(subject.file) as stored, FileSource(made) as new:
            return difference(open_image(stored, subject.path), open_image(new), threads=1)
    except DamageError as e:
        raise DamagedImageError(f"{subject.path}: {e}", hint="see 'poolmgr verify'") from None


def _differs(sight: Sight, found: Difference) -> TreeDiffersError:
    subject = sight.subject
    lines = found.lines()
    why = {
        True: f"the reference has moved: it was {subject.digest} and is {sight.digest} now",
        False: "the registry still has the same digest, so the stored file is not what was pulled",
        None: "no digest is on record, so the reference may have moved or the file may be another",
    }[sight.moved]
    return TreeDiffersError(
        f"{subject.path} and {subject.reference.canonical} differ in {len(lines):,} paths: {why}",
        hint="'+' is new at the registry, '-' only in the stored file; a new version needs a new name",
        details=[*lines[:TOLD], *([f"… and {len(lines) - TOLD:,} more"] if len(lines) > TOLD else [])],
    )
