"""One planned image: made and published, or kept because what is there is proven to be it.

Proof is the journal of the run that made it (ops/derive_journal.py); without a row that counts, the
image is made again, which costs no more than reading it, and the bytes are compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from poolmgr.errors import AlreadyExistsError, BadFileError, DeriveFailedError, PoolError
from poolmgr.model.finding import Level
from poolmgr.model.recipe import Pip
from poolmgr.model.stamp import Stamp
from poolmgr.ops.attest import AttestWriter
from poolmgr.ops.derive_build import TOOLS, Materials, build, check_made, identify, rehearse
from poolmgr.ops.derive_facts import Outcome, Planned, Request, Result
from poolmgr.ops.derive_files import RecipeFiles
from poolmgr.ops.derive_journal import MadeRow, journal_folder, read_journal
from poolmgr.plan.derive import described, provenance, reproducible
from poolmgr.sif.check import check_file
from poolmgr.sif.derived import provenance_of
from poolmgr.sif.header import read_container
from poolmgr.sif.identity import file_sha256
from poolmgr.sif.source import FileSource
from poolmgr.store.files import mapped_os_errors, publish_durable
from poolmgr.temporary import scratch_folder


class Maker:
    """Makes the images of one run. Safe for several threads; a context that closes the journal."""

    def __init__(self, request: Request, files: RecipeFiles) -> None:
        self._to = request.to
        self._identity = request.identity
        self._files = files
        self._expected = hashlib.sha256(repr(files.recipe.expect).encode()).hexdigest()
        self._journal = read_journal(request.to)
        self._writer = AttestWriter(journal_folder(request.to))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        with suppress(OSError, PoolError):
            self._writer.close()

    def rehearse(self, planned: Planned) -> PoolError | None:
        """Why the image surely cannot be made, or be kept; nothing is written, and no command is run."""
        if planned.error is not None:
            return planned.error
        assert planned.file is not None
        try:
            if planned.there:
                final = self._to / planned.name
                if not self._same(planned, _told(final)):
                    return _something_else(final)
            steps, base = planned.work.steps, planned.work.base
            rehearse(planned.file, base, steps, self._materials(planned))
        except PoolError as e:
            return e
        except (OSError, ValueError) as e:
            return DeriveFailedError(f"{planned.work.base}: {e}")
        return None

    def make(self, planned: Planned) -> Outcome:
        try:
            if planned.error is not None:
                return Outcome(planned, Result.FAILED, error=planned.error)
            final = self._to / planned.name
            kept = self._known(planned, final)
            if kept is not None:
                return kept
            with mapped_os_errors(final), scratch_folder(self._to) as scratch:
                return self._write_down(self._build(planned, final, scratch), final)
        except PoolError as e:
            return Outcome(planned, Result.FAILED, error=e)
        except ValueError as e:
            return Outcome(planned, Result.FAILED, error=DeriveFailedError(f"{planned.work.base}: {e}"))

    def _build(self, planned: Planned, final: Path, scratch: Path) -> Outcome:
        if os.path.lexists(final) and not self._comparable(planned, final):
            return self._keep(planned, final)
        made = scratch / planned.name
        self._write(planned, scratch, made)
        notes = check_made(made, self._files.recipe.expect, planned.name)
        made.chmod(0o644)
        outcome = self._identified(Outcome(planned, Result.MADE, notes=tuple(notes)), made)
        try:
            publish_durable(made, final)
        except AlreadyExistsError:  # it was there before, or another run made it meanwhile
            if not reproducible(planned.work.steps):
                return self._keep(planned, final)
            with FileSource(final) as source:
                if source.size != outcome.size or file_sha256(source) != outcome.sha256:
                    raise _something_else(final) from None
            return replace(outcome, result=Result.KEPT)
        return outcome

    def _write(self, planned: Planned, scratch: Path, made: Path) -> None:
        assert planned.file is not None
        steps = planned.work.steps
        rows = described(steps, self._files.digests, planned.wheels)
        told = provenance(
            self._files.recipe.name, planned.sha256, planned.digest, planned.method, rows, TOOLS,
            is_reproducible=reproducible(steps),
        )  # fmt: skip
        materials = self._materials(planned)
        build(planned.file, planned.work.base, steps, planned.method, materials, told, scratch, made)

    def _materials(self, planned: Planned) -> Materials:
        folders = {s.wheels: self._files.inside(s.wheels) for s in planned.work.steps if isinstance(s, Pip)}
        return Materials(self._files.contents, planned.wheels, folders)

    def _known(self, planned: Planned, final: Path) -> Outcome | None:
        """What the journal says of the file that is there; None where it must be made, or compared.

        ``AlreadyExistsError`` when the journal knows the file, and it has other bytes by now.
        """
        rows = [
            row
            for row in self._journal.get(planned.name, ())
            if (row.base_sha256, row.recipe_sha256) == (planned.sha256, planned.digest)
            and row.expect_sha256 == self._expected
            and (row.tree_sha256 is not None or not self._identity)
        ]
        if not rows:
            return None
        try:
            with FileSource(final) as source:
                stamp = Stamp.of(os.fstat(source.fd))
                row = next((row for row in rows if row.stamp == stamp), None)
                sha256 = row.sha256 if row else file_sha256(source)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise BadFileError(f"{final}: {e.strerror}") from None
        known = row or next((row for row in rows if row.sha256 == sha256), None)
        if known is None:
            raise _something_else(final)
        tree = known.tree_sha256 if self._identity else None
        kept = Outcome(planned, Result.KEPT, sha256, stamp.size, tree, known.shared, known.notes)
        return kept if row else self._write_down(kept, final)

    def _comparable(self, planned: Planned, final: Path) -> bool:
        """Whether making the image again must give the bytes of the file that is there."""
        return reproducible(planned.work.steps) and _told(final).get("tools") == TOOLS

    def _same(self, planned: Planned, told: Mapping[str, Any]) -> bool:
        return told.get("recipe_sha256") == planned.digest and told.get("base_sha256") == planned.sha256

    def _keep(self, planned: Planned, final: Path) -> Outcome:
        """The file that is there, if it says that it is what would be made, and every block can be read."""
        if not self._same(planned, _told(final)) or not check_file(final, Level.DATA).verdict.passes:
            raise _something_else(final)
        notes = check_made(final, self._files.recipe.expect, planned.name)
        return self._identified(Outcome(planned, Result.KEPT, notes=tuple(notes)), final)

    def _write_down(self, outcome: Outcome, final: Path) -> Outcome:
        planned = outcome.planned
        with suppress(OSError, PoolError):  # only a saving of the next run is lost
            stamp = Stamp.of(final.stat())
            made = (outcome.sha256, outcome.tree_sha256, outcome.shared, outcome.notes)
            self._writer.add(
                MadeRow(planned.name, planned.sha256, planned.digest, self._expected, stamp, *made)
            )
        return outcome

    def _identified(self, outcome: Outcome, path: Path) -> Outcome:
        assert outcome.planned.file is not None
        sha256, size, tree, shared = identify(path, outcome.planned.file, tree=self._identity)
        return replace(outcome, sha256=sha256, size=size, tree_sha256=tree, shared=shared)


def _told(final: Path) -> Mapping[str, Any]:
    """What the derived image at ``final`` says of how it was made; nothing when it says nothing."""
    try:
        with FileSource(final) as source:
            return provenance_of(source, read_container(source)) or {}
    except OSError as e:
        raise BadFileError(f"{final}: {e.strerror}") from None


def _something_else(final: Path) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{final} is there and is not what this recipe makes", hint="move it away; nothing is overwritten"
    )
