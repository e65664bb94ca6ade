"""``push``: put images and a variant's tasks into a pool, without a moment at which the pool is broken.

Every file is checked, hashed and planned before the first byte is sent. Blobs go first, the index
last; where somebody else was quicker, the plan is made again on top of what he left. A run that was
killed leaves blobs that no task names yet, and the next one finds them by their bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from poolmgr.errors import (
    BadFileError,
    PoolChangedError,
    PushRefusedError,
    ReferenceInvalidError,
    UsageError,
)
from poolmgr.model.finding import Level
from poolmgr.model.index import name_trouble
from poolmgr.model.task_map import MAX_MAP_BYTES, MapRow, TaskMap, parse_map
from poolmgr.ops.image_checks import Content, ImageCheck, Inspect
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.push_files import Demand, LocalFile, Refused, examine, find_files
from poolmgr.ops.push_pool import Pool, read_pool
from poolmgr.ops.push_rows import Row, row_of
from poolmgr.ops.push_seal import documents_of, needs_of
from poolmgr.ops.push_shared import Shared
from poolmgr.ops.push_write import Upload, Writer, writer_of
from poolmgr.ops.view import PoolView
from poolmgr.plan.naming import Aliases, file_name
from poolmgr.plan.push import Action, Candidate, Change, Problem, PushPlan, Wish, plan_push
from poolmgr.plan.task_map import Meant, resolve_map
from poolmgr.sif.header import host_arch

ROUNDS = 8
"""Times that a push plans anew because somebody else was quicker."""


@dataclass(frozen=True, slots=True)
class Request:
    variant: str
    paths: tuple[str, ...] = ()
    """Files, and folders whose images are meant."""
    tasks: str | None = None
    """The map's file, ``-`` for stdin; None: the one that lies in a folder of ``paths``."""
    same_tree: bool = False
    remap: bool = False
    identity: bool = True
    """Whether tree identities are computed."""
    arch: str | None = None
    jobs: int = 4
    pull_request: bool = False
    """Whether the commits go into one pull request instead of the branch."""


@dataclass(frozen=True)
class Pushed:
    """What a push did."""

    plan: PushPlan
    """As it was in the end, after whatever others had pushed meanwhile."""
    uploaded: Mapping[str, int]
    """Path -> size, of the blobs that this run sent."""
    written: tuple[str, ...]
    """The documents that were written, the index last; none where all was so already."""
    commit: str | None
    rounds: int = 1
    pull_request: str | None = None
    """Its address, where the push is one."""


class Push:
    """One run: ``ready``, ``plan``, ``check``, ``carry_out``; the last is given what ``plan`` returned."""

    def __init__(
        self, view: PoolView, request: Request, progress: Progress | None = None, writer: Writer | None = None
    ) -> None:
        if trouble := name_trouble(request.variant):
            raise UsageError(f"the variant's name {request.variant!r} {trouble}")
        self.view = view
        self.request = request
        self.progress: Progress = progress or Silent()
        self.refused: tuple[Refused, ...] = ()
        """Files that did not pass."""
        self.unmapped: tuple[str, ...] = ()
        """Files that no task names; they are not pushed."""
        self.notes: list[str] = []
        self._writer = writer
        self._local: dict[str, LocalFile] = {}
        self._meant = Meant({}, {}, {})
        self._bad_names: list[Problem] = []
        self._pool: Pool | None = None
        self._shared: Shared | None = None

    @property
    def pool(self) -> Pool:
        """The pool as it was read last."""
        assert self._pool is not None
        return self._pool

    @property
    def writer(self) -> Writer:
        if self._writer is None:
            request = self.request
            self._writer = writer_of(
                self.view, request.jobs, self.progress, pull_request=request.pull_request
            )
        return self._writer

    def ready(self) -> None:
        """Refuses where this user may not write: before hours of hashing, and before any byte is sent."""
        self.writer.ready()

    # --- the plan -------------------------------------------------------------------------------

    def plan(self) -> PushPlan:
        """Look at everything and decide. What is wrong is in the plan's problems and in ``refused``."""
        files, maps = find_files(self.request.paths)
        tasks = self._map(maps)
        if self.request.pull_request:
            self.view = self.writer.resume(self._title(tasks.rows)) or self.view
        sizes = {size for path in files if (size := _size(path)) is not None}
        self._pool = read_pool(self.view, sizes, self.progress)
        held = self._pool.held
        own = None if self.view.root is None else os.path.abspath(self.view.root)
        bases = (os.getcwd(), os.path.dirname(os.path.abspath(tasks.source)))
        self._meant = resolve_map(tasks, files, held.blobs, bases=bases, own=own)
        wanted = set(self._meant.files.values())
        self.unmapped = tuple(key for key in files.values() if key not in wanted)
        chosen = {path: key for path, key in files.items() if key in wanted}
        good, self.refused = examine(chosen, self._demand(), self.request.jobs, self.progress)
        self._local = {f.key: f for f in good}
        self.notes = sorted({note for f in good for note in f.notes})
        return self._decide()

    def check(self, plan: PushPlan) -> None:
        """``PushRefusedError`` with everything that is wrong, unless nothing is."""
        wrong = [*map(str, self.refused), *map(str, plan.problems)]
        if not wrong:
            return
        hint = ""
        if any(p.code == "task-taken" for p in plan.problems):
            hint = "--remap gives tasks another blob, and says which"
        more = f" (and {len(wrong) - 1:,} more)" if wrong[1:] else ""
        raise PushRefusedError(f"nothing was written: {wrong[0]}{more}", hint=hint, details=wrong)

    def _map(self, maps: Sequence[Path]) -> TaskMap:
        """The map that was named, else the one that lies in a folder of the request."""
        name = self.request.tasks
        if name is None:
            if len(maps) != 1:
                found = ", ".join(map(str, maps)) or "none"
                raise UsageError(
                    f"no map of tasks was named; in the folders given: {found}",
                    hint="give --tasks MAP: task -> file, as JSON, JSON Lines, CSV or TSV",
                )
            name = str(maps[0])
        try:
            if name == "-":
                return parse_map(sys.stdin.buffer.read(MAX_MAP_BYTES + 1), "stdin")
            with open(name, "rb") as file:
                data = file.read(MAX_MAP_BYTES + 1)
        except OSError as e:
            raise BadFileError(f"{name}: {e.strerror}", hint="--tasks names the map") from None
        return parse_map(data, name)

    def _title(self, rows: Sequence[MapRow]) -> str:
        """Of the pull request: the same for the same wish, so that an interrupted one is found again."""
        wish = json.dumps([self.request.variant, sorted((r.task, r.file) for r in rows)])
        digest = hashlib.sha256(wish.encode()).hexdigest()[:12]
        return f"poolmgr push: {len(rows):,} tasks of {self.request.variant} ({digest})"

    def _demand(self) -> Demand:
        gates = self.view.manifest.gates
        checks: list[ImageCheck] = []
        content = Content.of(self.view.manifest.rules(self.request.variant))
        if content is not None:
            checks.append(content)
        if gates.inspect != "off":
            checks.append(Inspect())
        held = self.pool.held
        trees = {b.sha256: held.trees[p] for p, b in held.blobs.items() if b.sha256 and p in held.trees}
        return Demand(
            level=gates.level or Level.MOUNT,
            arch=self.request.arch or gates.arch or host_arch(),
            min_bytes=gates.min_bytes,
            checks=tuple(checks),
            required=frozenset({"inspect"} if gates.inspect == "required" else ()),
            identity=self.request.identity,
            trees=trees,
        )

    def _decide(self) -> PushPlan:
        """The plan on the pool as it was read last."""
        request = self.request
        self._bad_names = []
        candidates = [self._candidate(f) for f in self._local.values()]
        wish = Wish(
            request.variant,
            {task: key for task, key in self._meant.files.items() if key in self._local},
            self._meant.blobs,
            request.same_tree,
            request.remap,
            self.view.manifest.layout,
        )
        plan = plan_push(candidates, self.pool.held, wish)
        return plan.with_problems(self._bad_names)

    def _candidate(self, file: LocalFile) -> Candidate:
        name = file.path.name
        if file.key in self._meant.images:
            image = self._meant.images[file.key][0]
            manifest = self.view.manifest
            try:
                name = file_name(Aliases(manifest.aliases).rewrite(image) or image, manifest.naming.rule)
            except ReferenceInvalidError as e:
                self._bad_names.append(Problem("bad-reference", f"{file.key}: {e.message}"))
        return Candidate(file.key, name, file.size, file.sha256, file.tree_sha256, file.derived)

    # --- the work -------------------------------------------------------------------------------

    def carry_out(self, plan: PushPlan) -> Pushed:
        """Send what the plan says; ``PushRefusedError`` where what others did meanwhile forbids it."""
        self.check(plan)
        writer = self.writer
        confirmed = set(plan.replaced)
        sent: dict[str, int] = {}
        for turn in range(1, ROUNDS + 1):
            try:
                return self._write(writer, plan, sent, turn)
            except PoolChangedError as e:
                if turn == ROUNDS or not writer.merges:
                    raise
                self.progress.note(f"{e.message}; planning again on top of it")
            self.view = writer.fresh()
            self._pool = read_pool(self.view, {f.size for f in self._local.values()}, self.progress)
            plan = self._decide()
            self.check(plan)
            self._not_confirmed(set(plan.replaced) - confirmed)
        raise AssertionError("unreachable")

    def _write(self, writer: Writer, plan: PushPlan, sent: dict[str, int], turn: int) -> Pushed:
        pool = self.pool
        uploads = [Upload(self._local[f.candidate.key], f.path) for f in plan.added]
        if uploads:
            writer.room(uploads)
            writer.add(uploads, lambda u: sent.update({u.path: u.file.size}))
        writer.vouch(
            [
                (f.path, self._local[f.candidate.key], pool.hashed[f.path])
                for f in plan.of(Action.REUSE)
                if f.path in pool.hashed
            ]
        )
        documents = documents_of(self.view, pool, plan.variant, plan.changes, self._rows(plan))
        commit = pool.commit
        if documents:
            expected = pool.documents
            needs = needs_of(pool, plan.changes, sent)
            commit = writer.seal(documents, expected, needs, self._message(plan, sent))
        return Pushed(plan, sent, tuple(documents), commit, turn, writer.finish())

    def _rows(self, plan: PushPlan) -> list[Row]:
        """A row for every file whose bytes the pool has, or will have, at the planned path."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        rows: dict[str, Row] = {}
        if self._shared is None:
            files, held = self._local.values(), self.pool.held.blobs
            self._shared = Shared(files, held, self.view.root, self.progress)
        for planned in plan.files:
            if planned.action in (Action.ADD, Action.REUSE):
                file = self._local[planned.candidate.key]
                image, digest = self._meant.images.get(file.key, (None, None))
                row = row_of(
                    file, planned.path, image=image, digest=digest, added_at=now, shared=self._shared.of(file)
                )
                rows.setdefault(planned.path, row)
        return list(rows.values())

    def _message(self, plan: PushPlan, sent: Mapping[str, int]) -> str:
        return f"Push {len(sent):,} images, {len(plan.changes):,} tasks of {plan.variant}"

    def _not_confirmed(self, more: set[Change]) -> None:
        if more:
            details = [f"task {c.task!r} has {c.old} now" for c in sorted(more, key=lambda c: c.task)]
            raise PushRefusedError(
                f"{len(more):,} tasks were given another blob while this push ran: {details[0]}",
                hint="run the command again to see what it would replace now",
                details=details,
            )


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
