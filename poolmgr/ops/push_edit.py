"""Changes of a pool's index that bring no blobs: taking assignments out, and sharing blobs of equal trees."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from poolmgr.errors import (
    NothingComparedError,
    PoolChangedError,
    PushRefusedError,
    UnknownTaskError,
    UnknownVariantError,
)
from poolmgr.model.index import nearest
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.push import ROUNDS
from poolmgr.ops.push_pool import Pool, read_pool
from poolmgr.ops.push_seal import documents_of, needs_of
from poolmgr.ops.push_write import Writer, writer_of
from poolmgr.ops.view import PoolView
from poolmgr.plan.push import Change, Held, changes_of
from poolmgr.plan.regroup import Regrouping, regroup


@dataclass(frozen=True, slots=True)
class Edited:
    changes: tuple[Change, ...]
    commit: str | None
    written: tuple[str, ...]
    pull_request: str | None = None


class Edit:
    """One edit of one variant: ``ready``, then ``retraction`` or ``regrouping``, then ``carry_out``."""

    def __init__(
        self,
        view: PoolView,
        variant: str,
        progress: Progress | None = None,
        jobs: int = 4,
        *,
        pull_request: bool = False,
    ) -> None:
        self.view = view
        self.variant = variant
        self.progress: Progress = progress or Silent()
        self.writer: Writer = writer_of(view, jobs, self.progress, pull_request=pull_request)
        self._pool: Pool | None = None

    def ready(self) -> None:
        """Refuses where this user may not write."""
        self.writer.ready()

    def retraction(self, tasks: Sequence[str]) -> tuple[Change, ...]:
        """The assignments that go; ``UnknownTaskError`` lists the tasks that the variant has not."""
        now = self._held().variants[self.variant]
        unknown = [task for task in tasks if task not in now]
        if unknown:
            close = nearest(unknown[0], now)
            raise UnknownTaskError(
                f"{len(unknown):,} of the {len(tasks):,} tasks are not in {self.variant!r}: {unknown[0]!r}",
                hint=f"nearest: {', '.join(close)}" if close else "nothing was changed",
                details=unknown,
            )
        return changes_of(now, dict.fromkeys(tasks))

    def regrouping(self) -> Regrouping:
        """The variant on the fewest blobs. ``NothingComparedError`` where no tree is on record."""
        held = self._held()
        found = regroup(held, self.variant)
        if len(found.unknown) == found.blobs[0]:
            raise NothingComparedError(
                f"of none of the {found.blobs[0]:,} blobs of {self.variant!r} a tree is on record",
                hint="push records it in blobs.parquet, of what it adds and of files that it is given again",
            )
        return found

    def carry_out(self, changes: Sequence[Change], message: str) -> Edited:
        """Write the changes; refused where one of their tasks has another blob by now."""
        self._resume(changes, message)
        for turn in range(1, ROUNDS + 1):
            pool = self._pool
            assert pool is not None
            try:
                documents = documents_of(self.view, pool, self.variant, changes)
                commit = pool.commit
                if documents:
                    needs = needs_of(pool, changes, {})
                    commit = self.writer.seal(documents, pool.documents, needs, message)
                return Edited(tuple(changes), commit, tuple(documents), self.writer.finish())
            except PoolChangedError as e:
                if turn == ROUNDS or not self.writer.merges:
                    raise
                self.progress.note(f"{e.message}; looking again")
            self.view = self.writer.fresh()
            self._pool = None
            self._still(changes)
        raise AssertionError("unreachable")

    def _resume(self, changes: Sequence[Change], message: str) -> None:
        digest = hashlib.sha256(json.dumps([(c.task, c.new) for c in changes]).encode()).hexdigest()[:12]
        view = self.writer.resume(f"poolmgr push: {message} ({digest})")
        if view is not None:
            self.view = view
            self._pool = read_pool(view, (), self.progress)

    def _still(self, changes: Sequence[Change]) -> None:
        now = self._held().variants[self.variant]
        moved = [c.task for c in changes if now.get(c.task) != c.old]
        if moved:
            raise PushRefusedError(
                f"{len(moved):,} tasks were given another blob meanwhile: {moved[0]}; nothing was written",
                hint="run the command again to see what it would do now",
                details=moved,
            )

    def _held(self) -> Held:
        if self._pool is None:
            self._pool = read_pool(self.view, (), self.progress)
        held = self._pool.held
        if self.variant not in held.variants:
            close = nearest(self.variant, held.variants)
            raise UnknownVariantError(
                f"{self.view.address} has no variant {self.variant!r}",
                hint=f"it has: {', '.join(close or held.variants)}",
            )
        return held
